"""Read the headers of all device code in one file; nothing is decompressed.

In goes a file of any form: ELF, PE, static library, fatbin, cubin or device pack. Out come its
units. Two ways lead to device code: the tables of the file (`units`), and, without a table, a
search (`container_search`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from archsplit.devicecode.container_search import MAX_UNREADABLE, ContainerSearch
from archsplit.devicecode.file_forms import Form, window_form
from archsplit.devicecode.model import Place
from archsplit.devicecode.units import container_unit, cubin_unit, pack_units, section_units
from archsplit.formats.elf import Elf
from archsplit.formats.fatbin import EXECUTABLE, RELOCATABLE, read_containers
from archsplit.formats.libraries import read_members, read_pe_sections
from archsplit.formats.mapped import release_pages
from archsplit.system.units import BLOCK

if TYPE_CHECKING:
    from archsplit.devicecode.model import Unit
    from archsplit.devicecode.units import WheelShare
    from archsplit.formats.reader import Window

PE_PLACES = {
    EXECUTABLE[:8]: Place.EXECUTABLE,
    RELOCATABLE[:8]: Place.RELOCATABLE,
}
"""Fatbin sections by their names in Windows libraries, which have eight bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileContents:
    """Units of a file, and the reason why they may be incomplete, or None."""

    units: tuple[Unit, ...] = field(default=(), repr=False)
    problem: str | None = None


def read_contents(window: Window, wheel_share: WheelShare = None) -> FileContents:
    """Read all headers of device code in a file; files of other forms have none.

    Args:
        window: the whole file.
        wheel_share: the part of the download that a range of the file takes.

    Raises:
        BinaryFormatError: the file is damaged.
    """
    form, contents = window_form(window), FileContents()
    if form is Form.ELF:
        contents = _read_host_file(window, wheel_share)
    elif form is Form.CUBIN:
        contents = FileContents(units=(cubin_unit(window, wheel_share),))
    elif form is Form.FATBIN:
        containers = read_containers(window)
        units = tuple(container_unit(container, wheel_share) for container in containers)
        contents = FileContents(units=units)
    elif form is Form.DEVICE_PACK:
        contents = FileContents(units=tuple(pack_units(window, wheel_share)))
    elif form is Form.PE:
        contents = _read_pe(window, wheel_share)
    elif form is Form.STATIC_LIBRARY:
        contents = _read_static_library(window, wheel_share)
    release_pages(window)
    return contents


def search_unregistered(window: Window) -> tuple[Unit, ...]:
    """Return the device code of a library outside of its fatbin sections.

    Raises:
        BinaryFormatError: the file is damaged.
    """
    return tuple(_file_search(window).search_data_sections(Elf(window)))


def _read_host_file(
    window: Window, wheel_share: WheelShare, member: str | None = None
) -> FileContents:
    elf, search = Elf(window), _file_search(window, wheel_share)
    # The search goes over everything else too: cuBLASLt and cuDNN have most of their newest code
    # outside of the fatbin sections.
    if elf.section_count:
        units = (*section_units(elf, wheel_share, member=member), *search.search_data_sections(elf))
        problem = None
    else:
        units = tuple(search.search_segments(elf))
        problem = "it has no section headers: its device code was searched for"
    return FileContents(units=units, problem=problem or _unreadable_problem(search.unreadable))


def _read_pe(window: Window, wheel_share: WheelShare) -> FileContents:
    search = _file_search(window, wheel_share)
    units: list[Unit] = []
    for section in read_pe_sections(window):
        place = PE_PLACES.get(section.name)
        if place is not None:
            containers = read_containers(section.content)
            units += (
                container_unit(one, wheel_share, section=section.name, place=place)
                for one in containers
            )
        # Machine code is skipped: constants in it look like magic numbers.
        elif not section.is_code:
            units += (unit for unit, _ in search.search_window(section.content, section.name))
    return FileContents(units=tuple(units), problem=_unreadable_problem(search.unreadable))


def _read_static_library(window: Window, wheel_share: WheelShare) -> FileContents:
    members, mapped = [], 0
    for member in read_members(window):
        # Other members are LLVM bitcode, or the index of another tool.
        if window_form(member.content) is Form.ELF:
            members.append(_read_host_file(member.content, wheel_share, member.name))
        mapped += len(member.content)
        if mapped >= BLOCK:
            release_pages(window)
            mapped = 0
    return FileContents(
        units=tuple(unit for contents in members for unit in contents.units),
        problem=next((contents.problem for contents in members if contents.problem), None),
    )


def _file_search(window: Window, wheel_share: WheelShare = None) -> ContainerSearch:
    # A byte lies in two sections or segments at most, and is searched for wrappers and for units.
    return ContainerSearch(wheel_share, 4 * len(window))


def _unreadable_problem(places: list[int]) -> str | None:
    if not places:
        return None
    or_more = " or more" if len(places) == MAX_UNREADABLE else ""
    return (
        "places outside of its fatbin sections that look like device code and can't be read:"
        f" {len(places)}{or_more}; the first is at offset {places[0]:#x}"
    )
