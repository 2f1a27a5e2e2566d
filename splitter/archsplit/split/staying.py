"""Device code that a split leaves where it is: what it is, how much, and why it can't move."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from archsplit.devicecode.contents import read_contents
from archsplit.devicecode.model import Place
from archsplit.devicecode.read import Form
from archsplit.errors import BinaryFormatError
from archsplit.formats.mapped import open_file
from archsplit.release.split_report import UnmovedCode

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from archsplit.devicecode.model import Unit

_OUTSIDE = "it is outside of the fatbin sections, in {section}, where only the library finds it"
_WHOLE = {
    Form.STATIC_LIBRARY: "a static library is for others' linkers",
    Form.FATBIN: "a fatbin is read by a program, not registered by a library",
    Form.CUBIN: "a cubin is read by a program, not registered by a library",
    Form.PE: "it is a library for Windows",
    Form.DEVICE_PACK: "a device pack is served by the loader of its core",
}


def outside_of(name: str, path: Path) -> Iterator[UnmovedCode]:
    """What a library has outside of its fatbin sections.

    Raises:
        BinaryFormatError: it is damaged.
    """
    by_section: defaultdict[str | None, list[Unit]] = defaultdict(list)
    for unit in read_contents(open_file(path)).units:
        if unit.images and unit.place is Place.OUTSIDE:
            by_section[unit.section].append(unit)
    for section, units in by_section.items():
        yield _stay(name, units, _OUTSIDE.format(section=section))


def left_whole(name: str, path: Path, form: Form, why: str) -> Iterator[UnmovedCode]:
    """What a member has that is not split at all; nothing for one without device code.

    Args:
        why: for ELF files, whose form says nothing.
    """
    try:
        units = [unit for unit in read_contents(open_file(path)).units if unit.images]
    except BinaryFormatError as error:
        reason = str(error).partition("\n")[0].replace(f"{path}", name)
        yield UnmovedCode(name=name, images=0, size=0, why=f"it doesn't read: {reason}")
        return
    if units:
        yield _stay(name, units, _WHOLE.get(form, why))


def _stay(name: str, units: list[Unit], why: str) -> UnmovedCode:
    images = [image for unit in units for image in unit.images]
    return UnmovedCode(
        name=name,
        images=len(images),
        size=sum(image.file_bytes for image in images),
        why=why,
    )
