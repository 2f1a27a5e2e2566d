"""The section headers of an ELF file of 64 bits, little-endian (System V gABI, chapter 4)."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING

from archsplit.formats.elf_header import require_size
from archsplit.formats.reader import Strings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archsplit.formats.elf_header import Header
    from archsplit.formats.reader import Window

__pure__ = True

_SECTION = Struct("<IIQQQQIIQQ")
_ELSEWHERE = 0xFFFF  # SHN_XINDEX: the number did not fit into the header


class SectionType(enum.IntEnum):
    """What a section holds: sh_type."""

    SYMBOLS = 2
    RELA = 4
    NOTE = 7
    NOBITS = 8


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


class SectionTable:
    """The section headers, each read when it is asked for."""

    __slots__ = ("_names", "_rows", "_window")

    def __init__(self, window: Window, header: Header) -> None:
        """Find the headers and the table of their names.

        Raises:
            BinaryFormatError: they are not all in the file.
        """
        self._window = window
        self._rows = _section_rows(window, header)
        self._names = _names_table(window, header, self._rows)

    def __len__(self) -> int:
        return len(self._rows) // _SECTION.size

    def __iter__(self) -> Iterator[Section]:
        names = Strings(self._names, limit=2 * len(self._window))
        for index, row in enumerate(self._rows.records(_SECTION, "section headers")):
            yield self._section(index, row, names)

    def at(self, index: int) -> Section:
        """The section with this number.

        Raises:
            BinaryFormatError: there is none.
        """
        row = self._rows.unpack(_SECTION, index * _SECTION.size, f"header of section {index}")
        return self._section(index, row, Strings(self._names, limit=len(self._window)))

    def _section(self, index: int, row: tuple[int, ...], names: Strings) -> Section:
        return Section(
            index=index,
            name=names.text(row[0], f"name of section {index}"),
            type=row[1],
            flags=row[2],
            address=row[3],
            offset=self._window.start + row[4],
            size=row[5],
            link=row[6],
            info=row[7],
            alignment=row[8],
        )


def _section_rows(window: Window, header: Header) -> Window:
    if header.sections_offset == 0:
        return window.part(0, 0, "section headers")
    require_size(window, 58, "section header", header.section_size, _SECTION)
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
