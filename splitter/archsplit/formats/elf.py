"""Read ELF files of 64 bits, little-endian: sections, and what lies at an address.

Section headers are read as they are iterated over, so that the size of a file costs nothing.
"""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING

from archsplit.formats.elf_header import SegmentType, read_header, read_segments
from archsplit.formats.elf_sections import SectionTable, SectionType

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archsplit.formats.elf_header import Segment
    from archsplit.formats.elf_sections import Section
    from archsplit.formats.reader import Window

__pure__ = True


class Elf:
    """An ELF file. Its header and segments are checked at once, all else when it is asked for.

    Attributes:
        window: the whole file.
        header: what the file is.
        segments: the program headers in their order; every PT_LOAD's bytes are in the file.
    """

    __slots__ = ("_loads", "_sections", "header", "segments", "window")

    def __init__(self, window: Window) -> None:
        """Read the headers.

        Raises:
            BinaryFormatError: it is not a little-endian ELF file of 64 bits, or is cut short.
        """
        self.window = window
        self.header = read_header(window)
        self.segments = tuple(read_segments(window, self.header))
        self._loads = sorted(
            (segment for segment in self.segments if segment.type == SegmentType.LOAD),
            key=_address,
        )
        self._sections = SectionTable(window, self.header)

    @property
    def section_count(self) -> int:
        """How many sections there are; 0 in a file that was stripped of their headers."""
        return len(self._sections)

    def sections(self) -> Iterator[Section]:
        """All sections, in the order of their headers.

        Raises:
            BinaryFormatError: a name lies outside the table of names.
        """
        return iter(self._sections)

    def section(self, name: str) -> Section | None:
        """The first section of this name, or None; raises as `sections` does."""
        return next((section for section in self.sections() if section.name == name), None)

    def section_at(self, index: int) -> Section:
        """The section with this number.

        Raises:
            BinaryFormatError: there is none.
        """
        return self._sections.at(index)

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


def _address(segment: Segment) -> int:
    return segment.address
