"""Device code that a split leaves where it is: what it is, how much, and why it can't move."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from splitter.binfmt.mapped import open_file
from splitter.devicecode.contents import contents_of
from splitter.devicecode.images import Place
from splitter.devicecode.read import Form
from splitter.errors import BinaryFormatError
from splitter.split_report import Stay

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from splitter.devicecode.images import Unit

_OUTSIDE = "it is outside of the fatbin sections, in {section}, where only the library finds it"
_WHOLE = {
    Form.STATIC_LIBRARY: "a static library is for others' linkers",
    Form.FATBIN: "a fatbin is read by a program, not registered by a library",
    Form.CUBIN: "a cubin is read by a program, not registered by a library",
    Form.PE: "it is a library for Windows",
    Form.DEVICE_PACK: "a device pack is served by the loader of its core",
}


def outside_of(name: str, path: Path) -> Iterator[Stay]:
    """What a library has outside of its fatbin sections.

    Raises:
        BinaryFormatError: it is damaged.
    """
    by_section: defaultdict[str | None, list[Unit]] = defaultdict(list)
    for unit in contents_of(open_file(path)).units:
        if unit.images and unit.place is Place.OUTSIDE:
            by_section[unit.section].append(unit)
    for section, units in by_section.items():
        yield _stay(name, units, _OUTSIDE.format(section=section))


def left_whole(name: str, path: Path, form: Form, why: str) -> Iterator[Stay]:
    """What a member has that is not split at all; nothing for one without device code.

    Args:
        why: for ELF files, whose form says nothing.
    """
    try:
        units = [unit for unit in contents_of(open_file(path)).units if unit.images]
    except BinaryFormatError as error:
        reason = str(error).partition("\n")[0].replace(f"{path}", name)
        yield Stay(name=name, images=0, size=0, why=f"it doesn't read: {reason}")
        return
    if units:
        yield _stay(name, units, _WHOLE.get(form, why))


def _stay(name: str, units: list[Unit], why: str) -> Stay:
    images = [image for unit in units for image in unit.images]
    return Stay(
        name=name,
        images=len(images),
        size=sum(image.file_bytes for image in images),
        why=why,
    )
