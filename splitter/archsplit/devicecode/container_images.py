"""Moved from archsplit.split.take_apart."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from archsplit.devicecode.scan import release_pages
from archsplit.formats.device_pack import PackImage

if TYPE_CHECKING:
    from archsplit.devicecode.registered import RegisteredContainer


def container_images(place: RegisteredContainer) -> tuple[PackImage, ...]:
    """What a container had, with the digests of its images."""
    images = []
    for number, entry in enumerate(place.entries):
        content = place.container.body.at(entry.offset, entry.size, "image")
        assert entry.target is not None, "what is no code does not move"
        images.append(
            PackImage(
                number=number,
                target=entry.target,
                size=entry.size,
                digest=hashlib.sha256(content.data).digest(),
            )
        )
    release_pages(place.container.body)
    return tuple(images)
