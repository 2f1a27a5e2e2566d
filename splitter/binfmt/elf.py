"""Read ELF files of 64 bits, little-endian: segments, sections, what lies at an address.

The layouts are those of the System V gABI, chapters 4 and 5. Section headers are read as they are
iterated over, so that the size of a file costs nothing.
"""

from __future__ import annotations

import bisect
import enum
from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING

from splitter.binfmt.cursor import Strings
from splitter.binfmt.elf_header import read_header

if TYPE_CHECKING:
    from collections.abc import Iterator

    from splitter.binfmt.cursor import Window
    from splitter.binfmt.elf_header import Header

_SEGMENT = Struct("<IIQQQQQQ")
_SECTION = Struct("<IIQQQQIIQQ")
_ELSEWHERE = 0xFFFF  # PN_XNUM, SHN_XINDEX: the number did not fit into the header


class SegmentType(enum.IntEnum):
    """What a segment is for: p_type."""

    LOAD = 1
    DYNAMIC = 2
    NOTE = 4


class SectionType(enum.IntEnum):
    """What a section holds: sh_type."""

    SYMBOLS = 2
    RELA = 4
    NOTE = 7
    NOBITS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A program header; ``offset`` counts from the start of the file."""

    type: int
    flags: int
    offset: int
    address: int
    file_size: int
    memory_size: int
    alignment: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A section header; ``offset`` counts from the start of the file."""

    index: int
    name: str
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int


class Elf:
    """An ELF file. Its header and segments are checked at once, all else when it is asked for.

    Attributes:
        window: the whole file.
        header: what the file is.
        segments: the program headers in their order; every PT_LOAD's bytes are in the file.
    """

    __slots__ = ("_loads", "_names", "_rows", "header", "segments", "window")

    def __init__(self, window: Window) -> None:
        """Read the headers.

        Raises:
            BinaryFormatError: it is not a little-endian ELF file of 64 bits, or is cut short.
        """
        self.window = window
        self.header = read_header(window)
        self.segments = tuple(_segments(window, self.header))
        self._loads = sorted(
            (segment for segment in self.segments if segment.type == SegmentType.LOAD),
            key=_address,
        )
        self._rows = _section_rows(window, self.header)
        self._names = _names_table(window, self.header, self._rows)

    @property
    def section_count(self) -> int:
        """How many sections there are; 0 in a file that was stripped of their headers."""
        return len(self._rows) // _SECTION.size

    def sections(self) -> Iterator[Section]:
        """All sections, in the order of their headers.

        Raises:
            BinaryFormatError: a name lies outside the table of names.
        """
        names = Strings(self._names, limit=2 * len(self.window))
        for index, row in enumerate(self._rows.records(_SECTION, "section headers")):
            yield self._section(index, row, names)

    def section(self, name: str) -> Section | None:
        """The first section of this name, or None; raises as `sections` does."""
        return next((section for section in self.sections() if section.name == name), None)

    def section_at(self, index: int) -> Section:
        """The section with this number.

        Raises:
            BinaryFormatError: there is none.
        """
        row = self._rows.unpack(_SECTION, index * _SECTION.size, f"header of section {index}")
        return self._section(index, row, Strings(self._names, limit=len(self.window)))

    def content(self, section: Section) -> Window:
        """The bytes that a section has in the file; none for NOBITS.

        Raises:
            BinaryFormatError: they are not all there.
        """
        size = 0 if section.type == SectionType.NOBITS else section.size
        return self.window.at(section.offset, size, f"section {section.name!r}")

    def from_address(self, address: int, what: str) -> Window:
        """The bytes that a loader maps from ``address`` on, to the end of their segment.

        Raises:
            BinaryFormatError: no PT_LOAD brings that address from the file.
        """
        after = bisect.bisect_right(self._loads, address, key=_address)
        load = self._loads[after - 1] if after else None
        if load is None or address > load.address + load.file_size:
            found = f"address {address:#x}"
            raise self.window.fault(0, what, found, "one that a PT_LOAD brings from the file")
        ahead = address - load.address
        return self.window.at(load.offset + ahead, load.file_size - ahead, what)

    def at_address(self, address: int, size: int, what: str) -> Window:
        """The ``size`` bytes that a loader maps at ``address``.

        Raises:
            BinaryFormatError: no PT_LOAD brings them all from the file.
        """
        return self.from_address(address, what).part(0, size, what)

    def _section(self, index: int, row: tuple[int, ...], names: Strings) -> Section:
        return Section(
            index=index,
            name=names.text(row[0], f"name of section {index}"),
            type=row[1],
            flags=row[2],
            address=row[3],
            offset=self.window.start + row[4],
            size=row[5],
            link=row[6],
            info=row[7],
            alignment=row[8],
        )


def _address(segment: Segment) -> int:
    return segment.address


def _segments(window: Window, header: Header) -> Iterator[Segment]:
    if header.segment_count == _ELSEWHERE:
        raise window.fault(56, "number of segments", "65535 or more", "fewer")
    if header.segment_count:
        _require_size(window, 54, "program header", header.segment_size, _SEGMENT)
    size = header.segment_count * _SEGMENT.size
    table = window.part(header.segments_offset, size, "program headers")
    for row in table.records(_SEGMENT, "program headers"):
        segment = Segment(
            type=row[0],
            flags=row[1],
            offset=window.start + row[2],
            address=row[3],
            file_size=row[5],
            memory_size=row[6],
            alignment=row[7],
        )
        if segment.type == SegmentType.LOAD:
            # glibc doesn't check this: a file cut short dies with SIGBUS inside dlopen.
            window.at(segment.offset, segment.file_size, "PT_LOAD segment")
        yield segment


def _section_rows(window: Window, header: Header) -> Window:
    if header.sections_offset == 0:
        return window.part(0, 0, "section headers")
    _require_size(window, 58, "section header", header.section_size, _SECTION)
    first = window.unpack(_SECTION, header.sections_offset, "first section header")
    count = header.section_count or first[5]
    return window.part(header.sections_offset, count * _SECTION.size, "section headers")


def _names_table(window: Window, header: Header, rows: Window) -> Window:
    index = header.names_index
    if index == _ELSEWHERE:
        index = rows.unpack(_SECTION, 0, "first section header")[6]
    if len(rows) == 0:
        return rows
    row = rows.unpack(_SECTION, index * _SECTION.size, "header of the section of names")
    return window.part(row[4], row[5], "section of names")


def _require_size(window: Window, at: int, what: str, found: int, layout: Struct) -> None:
    if found != layout.size:
        raise window.fault(at, f"size of a {what}", str(found), str(layout.size))
