"""All device code of one file, whatever its form."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from archsplit.devicecode.model import Place
from archsplit.devicecode.outside import MOST_UNREADABLE, ContainerSearch
from archsplit.devicecode.read import (
    HEAD_SIZE,
    WINDOWS_PLACES,
    Form,
    cubin_unit,
    fatbin_units,
    form_of,
    pack_units,
    pe_section_units,
    section_units,
)
from archsplit.devicecode.scan import release_pages
from archsplit.formats.ar import read_members
from archsplit.formats.elf import Elf
from archsplit.formats.pe import read_pe_sections

if TYPE_CHECKING:
    from archsplit.devicecode.model import Unit
    from archsplit.devicecode.read import Share
    from archsplit.formats.reader import Window


@dataclass(frozen=True, slots=True, kw_only=True)
class FileContents:
    """What was found in a file, and what keeps it from being all, or None."""

    units: tuple[Unit, ...] = field(repr=False)
    problem: str | None


def read_contents(window: Window, share: Share = None) -> FileContents:
    """Read all headers of device code in a file; a file of an unknown form has none.

    Args:
        window: the whole file.
        share: tells how much of the download a range of the file takes.

    Raises:
        BinaryFormatError: the file is damaged.
    """
    form = form_of(window.data[:HEAD_SIZE].tobytes())
    contents = FileContents(units=(), problem=None)
    if form is Form.ELF:
        contents = _of_host_file(window, share)
    elif form is Form.CUBIN:
        unit = cubin_unit(window, share, section=None, place=Place.EXECUTABLE)
        contents = FileContents(units=(unit,), problem=None)
    elif form is Form.FATBIN:
        contents = FileContents(units=tuple(fatbin_units(window, share)), problem=None)
    elif form is Form.DEVICE_PACK:
        contents = FileContents(units=tuple(pack_units(window, share)), problem=None)
    elif form is Form.PE:
        contents = _of_windows_file(window, share)
    elif form is Form.STATIC_LIBRARY:
        contents = _of_static_library(window, share)
    release_pages(window)
    return contents


def _of_host_file(window: Window, share: Share, member: str | None = None) -> FileContents:
    elf = Elf(window)
    search = ContainerSearch(share, 4 * len(window))
    if elf.section_count:
        units = (*section_units(elf, share, member=member), *search.outside(elf))
        problem = None
    else:
        units = tuple(search.stripped(elf))
        problem = "it has no section headers: what is said about it was found by searching"
    return FileContents(units=units, problem=problem or _unreadable(search.unreadable))


def _of_windows_file(window: Window, share: Share) -> FileContents:
    search = ContainerSearch(share, 4 * len(window))
    units: list[Unit] = []
    for section in read_pe_sections(window):
        if section.name in WINDOWS_PLACES:
            units += pe_section_units(section, share)
        elif not section.is_code:
            units += (unit for unit, _ in search.found_in(section.content, section.name))
    return FileContents(units=tuple(units), problem=_unreadable(search.unreadable))


def _unreadable(places: list[int]) -> str | None:
    if not places:
        return None
    most = " or more" if len(places) == MOST_UNREADABLE else ""
    return (
        f"{len(places)}{most} places outside of its fatbin sections begin as device code does, but "
        f"don't read as such; the first is at offset {places[0]:#x}"
    )


def _of_static_library(window: Window, share: Share) -> FileContents:
    found = [
        _of_host_file(member.content, share, member.name)
        for member in read_members(window)
        if form_of(member.content.data[:HEAD_SIZE].tobytes()) is Form.ELF
    ]
    return FileContents(
        units=tuple(unit for contents in found for unit in contents.units),
        problem=next((contents.problem for contents in found if contents.problem), None),
    )
