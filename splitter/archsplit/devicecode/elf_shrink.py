"""Make a library shorter by the images that were taken out of it.

The containers are pushed together at the front of their section, their pointers follow, and the
whole pages behind them are cut out of the file. Addresses stay: the section's memory behind the
containers belongs to nobody afterwards, and nothing else in the library notices.

The segment around each cut becomes two, so one program header more is needed than there is room
for behind the ELF header. The table moves into the section's free bytes, which are mapped as it has
to be; so no note and no other segment is lost. (``strip`` and ``patchelf`` rebuild a file's layout
by their own ideas: they have to be run before, not after.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from archsplit.devicecode.edits import Edit, Text, Zeros
from archsplit.devicecode.headers import (
    SEGMENT,
    Cut,
    HeaderTable,
    header_edits,
    program_headers,
    shifted,
)
from archsplit.devicecode.moving import Compaction, ObstacleError, compact, relocate_section
from archsplit.formats.elf_header import FileType, Machine, SegmentType
from archsplit.formats.elf_sections import SectionType

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from archsplit.devicecode.rewrite import FilteredContainer
    from archsplit.formats.elf import Elf
    from archsplit.formats.elf_header import Segment
    from archsplit.formats.elf_sections import Section

PAGES: Mapping[int, int] = {Machine.X86_64: 0x1000, Machine.AARCH64: 0x10000}
"""The largest pages that kernels for a machine use: a cut has to be a multiple of them.

AArch64 kernels are built with 4, 16 or 64 KiB (Linux, Documentation/arch/arm64/memory.rst).
"""

_WORD_SIZE = 8
_LAST_ADDRESS = (1 << 64) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FreedSpace:
    """A section that is longer than its containers.

    Attributes:
        reserved: bytes behind the containers that stay, for the program headers.
    """

    compaction: Compaction
    page: int
    reserved: int = 0

    @property
    def section(self) -> Section:
        """As it was."""
        return self.compaction.section

    @property
    def free(self) -> int:
        """The file offset of the first byte behind the containers, aligned for a table."""
        return _up(self.section.offset + self.compaction.size, _WORD_SIZE)

    @property
    def cut(self) -> Cut:
        """The pages that can go; none of them when the cut's end is not after its start."""
        start = _up(self.free + self.reserved, self.page)
        end = (self.section.offset + self.section.size) // self.page * self.page
        return Cut(start=start, end=max(start, end))

    @property
    def saved(self) -> int:
        """Bytes of the cut."""
        return self.cut.end - self.cut.start


def shrink_elf(elf: Elf, containers: Sequence[FilteredContainer]) -> tuple[Edit, ...]:
    """Plan a shorter library with these containers, which are all that it has.

    Raises:
        ObstacleError: it is not position-independent; less than a page would be cut;
            or something lies, or points, where a sound cut can't be made.
        BinaryFormatError: it is damaged.
    """
    page = _page(elf)
    holes = [
        FreedSpace(compaction=compact(section, of_section), page=page)
        for section, of_section in _by_section(containers)
        if any(one.is_changed for one in of_section)
    ]
    for hole in holes:
        _check_around(elf, hole)
    holes = _with_reserve(elf, holes)
    moved = [edit for hole in holes for edit in relocate_section(elf, hole.compaction)]
    return (*moved, *_layout_edits(elf, holes, page))


def _page(elf: Elf) -> int:
    if elf.header.type != FileType.LIBRARY:
        raise ObstacleError(f"{elf.window.source}: addresses in it are fixed")
    if elf.header.machine not in PAGES:
        raise ObstacleError(
            f"{elf.window.source}: nothing is known of machine {elf.header.machine}"
        )
    return PAGES[elf.header.machine]


def _by_section(
    containers: Sequence[FilteredContainer],
) -> Iterator[tuple[Section, tuple[FilteredContainer, ...]]]:
    sections = {one.section.index: one.section for one in containers if one.section is not None}
    for index, section in sections.items():
        yield (
            section,
            tuple(one for one in containers if one.section and one.section.index == index),
        )


def _with_reserve(elf: Elf, holes: list[FreedSpace]) -> list[FreedSpace]:
    """Leave room for the program headers in the largest hole."""
    source = elf.window.source
    cuts = sum(hole.saved > 0 for hole in holes)
    if not cuts:
        raise ObstacleError(f"{source}: no whole page gets free")
    largest = max(holes, key=lambda hole: hole.saved)
    size = (elf.header.segment_count + cuts) * SEGMENT.size
    roomy = FreedSpace(compaction=largest.compaction, page=largest.page, reserved=size)
    if not roomy.saved:
        raise ObstacleError(f"{source}: no whole page gets free")
    return [roomy if hole is largest else hole for hole in holes]


def _layout_edits(elf: Elf, holes: Sequence[FreedSpace], page: int) -> Iterator[Edit]:
    cuts = sorted((hole.cut for hole in holes if hole.saved), key=lambda cut: cut.start)
    home = next(hole for hole in holes if hole.reserved)
    table = HeaderTable(
        offset=shifted(home.free, cuts),
        address=home.section.address + home.free - home.section.offset,
    )
    rows = program_headers(elf, cuts, page=page, table=table)
    for hole in holes:
        yield _section_edit(hole, rows if hole is home else b"")
    sizes = {hole.section.index: hole.compaction.size for hole in holes}
    count = len(rows) // SEGMENT.size
    yield from header_edits(elf, cuts, count=count, table=table, sizes=sizes)


def _section_edit(hole: FreedSpace, rows: bytes) -> Edit:
    section, size = hole.section, hole.compaction.size
    end = section.offset + section.size
    used = hole.free - section.offset + len(rows)
    left = section.size - used - hole.saved
    return Edit(
        start=section.offset,
        end=end,
        pieces=(
            *(piece for one in hole.compaction.containers for piece in one.pieces),
            Zeros(size=hole.free - section.offset - size),
            Text(content=rows),
            Zeros(size=left),
        ),
    )


def _check_around(elf: Elf, hole: FreedSpace) -> None:
    """Make sure that nothing but containers is between a section's start and its end."""
    section, source = hole.section, elf.window.source
    for other in elf.sections():
        has_bytes = other.type != SectionType.NOBITS and other.index != section.index
        if has_bytes and _meets(section, other.offset, other.size):
            raise ObstacleError(f"{source}: {other.name} lies in {section.name}")
    around = [each for each in elf.segments if _meets(section, each.offset, each.file_size)]
    if len(around) != 1:
        raise ObstacleError(f"{source}: {len(around)} segments hold {section.name}, not one")
    if not _is_around(around[0], hole):
        raise ObstacleError(f"{source}: the segment around {section.name} can't be split")


def _is_around(segment: Segment, hole: FreedSpace) -> bool:
    """Whether a segment can be split inside of a section."""
    section = hole.section
    end = section.offset + section.size
    return (
        segment.type == SegmentType.LOAD
        and segment.offset <= section.offset
        and end <= segment.offset + segment.file_size
        and segment.file_size <= segment.memory_size
        and segment.address + segment.memory_size <= _LAST_ADDRESS
        and (segment.offset - segment.address) % hole.page == 0
        and segment.address - segment.offset == section.address - section.offset
    )


def _meets(section: Section, offset: int, size: int) -> bool:
    """Whether some bytes of the file are the section's too."""
    return size > 0 and offset < section.offset + section.size and section.offset < offset + size


def _up(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment
