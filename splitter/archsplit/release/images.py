"""The device code of a library or a pack, as a manifest lists it."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from archsplit.formats.elf import Elf
from archsplit.formats.fatbin import containers_of
from archsplit.formats.mapped import open_file
from archsplit.release.manifest import ManifestImage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from archsplit.formats.device_pack import PackLibrary


def library_images(path: Path, name: str) -> tuple[ManifestImage, ...]:
    """Every image of a library.

    Args:
        path: of the file.
        name: the library's place in the wheel.

    Raises:
        InputError: the file can't be read.
        BinaryFormatError: it is no ELF file, or a damaged one.
    """
    window = open_file(path)
    return tuple(
        ManifestImage(
            library=name,
            container=index,
            number=number,
            target=str(entry.target or entry.kind_name),
            size=entry.size,
            sha256=hashlib.sha256(
                container.body.at(entry.offset, entry.size, "image").data
            ).hexdigest(),
        )
        for index, (_, container) in enumerate(containers_of(Elf(window)))
        for number, entry in enumerate(container.entries())
    )


def pack_images(libraries: Iterable[PackLibrary]) -> Iterator[ManifestImage]:
    """Every image that a pack's index lists, with the digests that it has."""
    for library in libraries:
        for index, container in enumerate(library.containers):
            for image in container.images:
                yield ManifestImage(
                    library=library.name,
                    container=index,
                    number=image.number,
                    target=str(image.target),
                    size=image.size,
                    sha256=image.digest.hex(),
                )
