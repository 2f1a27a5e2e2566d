"""Cut whole pages out of an ELF file: what its own header and tables have to say afterwards.

Addresses never change; only file offsets do. The segment around a cut is split in two, and the
addresses in between belong to nobody.

Move containers inside of a library: everything that points at them has to follow.

What is changed is what the loader fills pointers from (the wrappers' and any other), and the
symbols of the containers. A pointer that can't be followed is an obstacle, never left behind.

Make a library shorter by the images that were taken out of it.

The containers are pushed together at the front of their section, their pointers follow, and the
whole pages behind them are cut out of the file. Addresses stay: the section's memory behind the
containers belongs to nobody afterwards, and nothing else in the library notices.

The segment around each cut becomes two, so one program header more is needed than there is room
for behind the ELF header. The table moves into the section's free bytes, which are mapped as it has
to be; so no note and no other segment is lost. (``strip`` and ``patchelf`` rebuild a file's layout
by their own ideas: they have to be run before, not after.)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct
from typing import TYPE_CHECKING

from archsplit.devicecode.edits import Edit, NewBytes, ZeroBytes, overwrite
from archsplit.errors import BinaryFormatError
from archsplit.formats.elf import FileType, Machine, SectionType, SegmentType
from archsplit.formats.elf_dynamic import SYMBOL, Dynamic, read_pointers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from archsplit.devicecode.edits import FilteredContainer
    from archsplit.formats.elf import Elf, Section, Segment

PROGRAM_HEADER = Struct("<IIQQQQQQ")
_U64 = Struct("<Q")
_U16 = Struct("<H")
_SEGMENTS_OFFSET_AT, _SECTIONS_OFFSET_AT, _SEGMENT_COUNT_AT = 32, 40, 56
_ROW_SIZE, _OFFSET_IN_ROW, _SIZE_IN_ROW = 64, 24, 32
_PT_PHDR = 6
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Whole pages of the old file that the new one doesn't have."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderTable:
    """Where the program headers move to: a file offset in the new file, and its address."""

    offset: int
    address: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramHeader:
    """A program header, with the fields of the gABI in its order."""

    type: int
    flags: int
    offset: int
    address: int
    physical: int
    file_size: int
    memory_size: int
    alignment: int

    def pack(self) -> bytes:
        """The bytes in the table."""
        return PROGRAM_HEADER.pack(
            self.type,
            self.flags,
            self.offset,
            self.address,
            self.physical,
            self.file_size,
            self.memory_size,
            self.alignment,
        )


def shift_offset(offset: int, cuts: Sequence[Cut]) -> int:
    """Where in the new file the old one's byte at ``offset`` is."""
    return offset - sum(cut.end - cut.start for cut in cuts if cut.end <= offset)


def build_program_headers(elf: Elf, cuts: Sequence[Cut], *, page: int, table: HeaderTable) -> bytes:
    """The new table of program headers, which will be where ``table`` says."""
    start = elf.header.segments_offset
    size = elf.header.segment_count * PROGRAM_HEADER.size
    rows = elf.window.part(start, size, "program headers").records(
        PROGRAM_HEADER, "program headers"
    )
    old = [ProgramHeader(**dict(zip(ProgramHeader.__slots__, row, strict=True))) for row in rows]
    new = [part for row in old for part in _parts(row, cuts, page)]
    count = len(new) * PROGRAM_HEADER.size
    return b"".join(_placed(row, table, count).pack() for row in new)


def header_edits(
    elf: Elf, cuts: Sequence[Cut], *, count: int, table: HeaderTable, sizes: Mapping[int, int]
) -> Iterator[Edit]:
    """Set the ELF header and the section headers anew.

    Args:
        elf: the old file.
        cuts: what the new one doesn't have.
        count: how many program headers there are now.
        table: where they are.
        sizes: the new sizes of sections by their index.
    """
    start = elf.window.start
    yield overwrite(start + _SEGMENTS_OFFSET_AT, _U64.pack(table.offset))
    yield overwrite(start + _SEGMENT_COUNT_AT, _U16.pack(count))
    yield from section_edits(elf, cuts, sizes=sizes)


def section_edits(elf: Elf, cuts: Sequence[Cut], *, sizes: Mapping[int, int]) -> Iterator[Edit]:
    """Set the section headers anew, and where they are; the arguments are those of `header_edits`.

    The file may be a part of another one, such as of a static library.
    """
    start = elf.window.start
    sections = start + elf.header.sections_offset
    new = _U64.pack(shift_offset(sections, cuts) - start)
    yield overwrite(start + _SECTIONS_OFFSET_AT, new)
    for section in elf.sections():
        row = sections + section.index * _ROW_SIZE
        offset = shift_offset(section.offset, cuts)
        if offset != section.offset:
            yield overwrite(row + _OFFSET_IN_ROW, _U64.pack(offset - start))
        if section.index in sizes:
            yield overwrite(row + _SIZE_IN_ROW, _U64.pack(sizes[section.index]))


def _parts(row: ProgramHeader, cuts: Sequence[Cut], page: int) -> Iterator[ProgramHeader]:
    end = row.offset + row.file_size
    start = row.offset
    if row.type == SegmentType.LOAD:
        for cut in cuts:
            if row.offset <= cut.start < end:
                yield _part(row, start, cut.start - start, cuts, page)
                start = cut.end
    rest = _part(row, start, end - start, cuts, page)
    # A cut may reach to the segment's end, and leave nothing behind it.
    if rest.memory_size or start == row.offset:
        yield rest


def _part(
    row: ProgramHeader, start: int, size: int, cuts: Sequence[Cut], page: int
) -> ProgramHeader:
    """The part of a segment that begins with the old file's byte at ``start``."""
    ahead = start - row.offset
    is_last = start + size == row.offset + row.file_size
    offset = shift_offset(start, cuts)
    alignment = row.alignment
    if row.type == SegmentType.LOAD and (row.address + ahead - offset) % max(alignment, 1):
        # glibc before 2.35 refuses a segment that isn't aligned in the file as it is in memory.
        alignment = page
    return ProgramHeader(
        type=row.type,
        flags=row.flags,
        offset=offset,
        address=row.address + ahead,
        physical=(row.physical + ahead) & _MASK,
        file_size=size,
        memory_size=row.memory_size - ahead if is_last else size,
        alignment=alignment,
    )


def _placed(row: ProgramHeader, table: HeaderTable, size: int) -> ProgramHeader:
    """The program headers' own row, where there is one."""
    if row.type != _PT_PHDR:
        return row
    return ProgramHeader(
        type=row.type,
        flags=row.flags,
        offset=table.offset,
        address=table.address,
        physical=table.address,
        file_size=size,
        memory_size=size,
        alignment=row.alignment,
    )


_WORD = Struct("<Q")
_ADDEND_AT = 16
_VALUE_AT = 8
_EVERYWHERE = 1 << 64
_DYNAMIC_SYMBOLS = 11  # SHT_DYNSYM
_SYMBOL_TABLES = {SectionType.SYMBOLS, _DYNAMIC_SYMBOLS}


class NotShrinkableError(BinaryFormatError):
    """A sound library that can't be made shorter; its images can still be taken out in place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """All containers of a section, pushed together at its front.

    Attributes:
        addresses: the containers' new addresses by their old ones.
        size: bytes that the section has afterwards.
    """

    section: Section
    containers: tuple[FilteredContainer, ...] = field(repr=False)
    addresses: Mapping[int, int] = field(repr=False)
    size: int

    def holds(self, address: int) -> bool:
        """Whether an address lies in the section as it was."""
        return self.section.address <= address < self.section.address + self.section.size


def compact_section(section: Section, containers: tuple[FilteredContainer, ...]) -> Compaction:
    """Push a section's containers together."""
    addresses, size = {}, 0
    for one in containers:
        addresses[section.address + one.start - section.offset] = section.address + size
        size += one.size
    return Compaction(section=section, containers=containers, addresses=addresses, size=size)


def relocate_section(elf: Elf, compaction: Compaction) -> Iterator[Edit]:
    """Set everything that points into a section anew.

    Raises:
        NotShrinkableError: a pointer into the middle of a container, or one that moves and that no
            pointer leads to; code could have its address in a way that nobody can see.
        BinaryFormatError: the tables of pointers or symbols are damaged.
    """
    reached = set()
    for pointer in read_pointers(elf, Dynamic(elf), 0, _EVERYWHERE):
        if compaction.holds(pointer.value):
            new = _followed(elf, compaction, pointer.value, "a pointer")
            reached.add(pointer.value)
            yield from _pointer_edits(elf, pointer.address, pointer.record, pointer.value, new)
    for old, new in compaction.addresses.items():
        if old != new and old not in reached:
            raise NotShrinkableError(f"{elf.window.source}: no pointer leads to container {old:#x}")
    for table in elf.sections():
        if table.type in _SYMBOL_TABLES:
            yield from _symbol_edits(elf, compaction, table)


def _followed(elf: Elf, compaction: Compaction, address: int, what: str) -> int:
    if address not in compaction.addresses:
        raise NotShrinkableError(f"{elf.window.source}: {what} leads into a container")
    return compaction.addresses[address]


def _pointer_edits(
    elf: Elf, address: int, record: int | None, old: int, new: int
) -> Iterator[Edit]:
    if record is not None:
        yield overwrite(record + _ADDEND_AT, _WORD.pack(new))
    copy = elf.at_address(address, _WORD.size, "pointer")
    # Where a record says what the pointer will be, its own bytes mean nothing, but most linkers
    # set them to the same address.
    if copy.u64(0, "pointer") == old:
        yield overwrite(copy.start, _WORD.pack(new))


def _symbol_edits(elf: Elf, compaction: Compaction, table: Section) -> Iterator[Edit]:
    content = elf.content(table)
    for number, row in enumerate(content.records(SYMBOL, "symbols")):
        value = row[4]
        if row[3] == compaction.section.index and compaction.holds(value):
            if table.type == _DYNAMIC_SYMBOLS:
                _followed(elf, compaction, value, "an exported symbol")
            new = compaction.addresses.get(value, value)
            offset = content.start + number * SYMBOL.size + _VALUE_AT
            yield overwrite(offset, _WORD.pack(new))


PAGE_SIZES: Mapping[int, int] = {Machine.X86_64: 0x1000, Machine.AARCH64: 0x10000}
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
        NotShrinkableError: it is not position-independent; less than a page would be cut;
            or something lies, or points, where a sound cut can't be made.
        BinaryFormatError: it is damaged.
    """
    page = _page(elf)
    holes = [
        FreedSpace(compaction=compact_section(section, of_section), page=page)
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
        raise NotShrinkableError(f"{elf.window.source}: addresses in it are fixed")
    if elf.header.machine not in PAGE_SIZES:
        raise NotShrinkableError(
            f"{elf.window.source}: nothing is known of machine {elf.header.machine}"
        )
    return PAGE_SIZES[elf.header.machine]


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
        raise NotShrinkableError(f"{source}: no whole page gets free")
    largest = max(holes, key=lambda hole: hole.saved)
    size = (elf.header.segment_count + cuts) * PROGRAM_HEADER.size
    roomy = FreedSpace(compaction=largest.compaction, page=largest.page, reserved=size)
    if not roomy.saved:
        raise NotShrinkableError(f"{source}: no whole page gets free")
    return [roomy if hole is largest else hole for hole in holes]


def _layout_edits(elf: Elf, holes: Sequence[FreedSpace], page: int) -> Iterator[Edit]:
    cuts = sorted((hole.cut for hole in holes if hole.saved), key=lambda cut: cut.start)
    home = next(hole for hole in holes if hole.reserved)
    table = HeaderTable(
        offset=shift_offset(home.free, cuts),
        address=home.section.address + home.free - home.section.offset,
    )
    rows = build_program_headers(elf, cuts, page=page, table=table)
    for hole in holes:
        yield _section_edit(hole, rows if hole is home else b"")
    sizes = {hole.section.index: hole.compaction.size for hole in holes}
    count = len(rows) // PROGRAM_HEADER.size
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
            ZeroBytes(size=hole.free - section.offset - size),
            NewBytes(content=rows),
            ZeroBytes(size=left),
        ),
    )


def _check_around(elf: Elf, hole: FreedSpace) -> None:
    """Make sure that nothing but containers is between a section's start and its end."""
    section, source = hole.section, elf.window.source
    for other in elf.sections():
        has_bytes = other.type != SectionType.NOBITS and other.index != section.index
        if has_bytes and _meets(section, other.offset, other.size):
            raise NotShrinkableError(f"{source}: {other.name} lies in {section.name}")
    around = [each for each in elf.segments if _meets(section, each.offset, each.file_size)]
    if len(around) != 1:
        raise NotShrinkableError(f"{source}: {len(around)} segments hold {section.name}, not one")
    if not _is_around(around[0], hole):
        raise NotShrinkableError(f"{source}: the segment around {section.name} can't be split")


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
