"""Reasons why no device code of a file or wheel can be removed."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from archsplit.devicecode.model import Place
from archsplit.devicecode.scan import HEAD_SIZE, Form, detect_form, read_contents
from archsplit.errors import BinaryFormatError
from archsplit.formats.pe import is_signed_pe
from archsplit.formats.reader import open_file
from archsplit.wheels.offsets import read_head
from archsplit.wheels.reader import extract_member
from archsplit.wheels.record import RecordRow

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from archsplit.devicecode.model import Image
    from archsplit.wheels.reader import Wheel

NO_CODE = "it has no device code"


def kept_code_reasons(name: str, path: Path, choice: str) -> Iterator[str]:
    """Yield the reasons why each group of images stays; none for a file without images."""
    try:
        window = open_file(path)
        units = read_contents(window).units
        form = detect_form(window.data[:HEAD_SIZE].tobytes())
        is_signed = form is Form.PE and is_signed_pe(window)
    except BinaryFormatError as error:
        # One line of the report; a member's path is that of a temporary folder.
        reason = str(error).partition("\n")[0].replace(str(path), name)
        yield f"{name}: it can't be read: {reason}"
        return
    images_by_reason: defaultdict[str, list[Image]] = defaultdict(list)
    for unit in units:
        outside = unit.place is Place.OUTSIDE
        reason = (
            # Only the library's own code knows the offsets of such code, so nothing may move it.
            f"outside of the fatbin sections, in {unit.section}"
            if outside
            else "covered by the library's signature (Authenticode), which a change would break"
            if is_signed
            else f"kept by {choice}"
        )
        images_by_reason[reason] += unit.images
    for reason, images in images_by_reason.items():
        # A container emptied by an earlier run has no images, and needs no reason.
        if images:
            size = sum(image.file_bytes for image in images) / 1e6
            yield f"{name}: {len(images)} images, {size:.2f} MB, {reason}"


def wheel_kept_code_reasons(wheel: Wheel, choice: str, folder: Path) -> tuple[str, ...]:
    """Return the reasons for all members of a wheel."""
    reasons: list[str] = []
    for name in wheel.names:
        if (
            detect_form(read_head(wheel.archive, wheel.archive.members[name], HEAD_SIZE))
            is not None
        ):
            # One member at a time: a wheel may have more libraries than the disk has space.
            path = folder / "library"
            extract_member(wheel.archive, RecordRow(path=name), path)
            reasons += kept_code_reasons(name, path, choice)
            path.unlink()
    return tuple(reasons) or (NO_CODE,)
