"""Shrink a shared library from which images were removed.

In: an ELF file and its filtered containers (the containers without the removed images). Out: edits
of the file. The one idea: file offsets change, addresses of other sections never do. The containers
are compacted at the start of their section, pointers to them are updated, and the whole pages
behind them are cut out of the file. The addresses of the cut are unmapped afterwards::

    old file   | .text ... | A  .  B  .  .  .  .  .  .  | .data ... |
                             `- .nv_fatbin ----------'
    new file   | .text ... | A B T |  | .data ... |      T: program header table
    memory     | .text ... | A B T |   (unmapped)    | .data ... |   addresses as before
                 LOAD 1 ---------->                    LOAD 2 ---->  one segment became two

Each cut splits its PT_LOAD segment in two, so the program header table gets one more entry, for
which there is no room behind the ELF header. The table (it must be mapped) moves into the section's
free bytes, so no other entry such as PT_NOTE is given up. (``strip`` and ``patchelf`` change the
layout again: run them before, not after.)

Pointers are the targets of dynamic relocations (the fatbin wrappers are among them) and the symbols
of the containers. If a pointer can't be updated, the library is not shrinkable, and the caller
zeroes the images in place.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from archsplit.devicecode.edits import Edit, NewBytes, ZeroBytes, overwrite
from archsplit.errors import BinaryFormatError
from archsplit.formats.elf import PROGRAM_HEADER, FileType, Machine, SectionType, SegmentType
from archsplit.formats.elf_dynamic import SYMBOL, Dynamic, read_pointers
from archsplit.formats.reader import align_up

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from archsplit.devicecode.edits import FilteredContainer
    from archsplit.formats.elf import Elf, Section, Segment

_U64 = Struct("<Q")
_U16 = Struct("<H")
_SEGMENTS_OFFSET_AT, _SECTIONS_OFFSET_AT, _SEGMENT_COUNT_AT = 32, 40, 56
# Offsets of fields: e_phoff, e_shoff and e_phnum of the ELF header; sh_offset and sh_size of a
# section header of 64 bytes.
_ROW_SIZE, _OFFSET_IN_ROW, _SIZE_IN_ROW = 64, 24, 32
_ADDEND_AT = 16  # r_addend in Elf64_Rela
_VALUE_AT = 8  # st_value in Elf64_Sym
_SYMBOL_TABLES = {SectionType.SYMBOLS, SectionType.DYNAMIC_SYMBOLS}

PAGE_SIZES: Mapping[int, int] = {Machine.X86_64: 0x1000, Machine.AARCH64: 0x10000}
"""Largest page size that kernels for a machine use: cuts are multiples of it.

AArch64 kernels are built with 4, 16 or 64 KiB (Linux, Documentation/arch/arm64/memory.rst).
"""

_WORD_SIZE = 8
_LAST_ADDRESS = (1 << 64) - 1


class NotShrinkableError(BinaryFormatError):
    """An undamaged library that can't be made shorter; its images can be zeroed in place."""


def shrink_elf(elf: Elf, containers: Sequence[FilteredContainer]) -> tuple[Edit, ...]:
    """Plan the edits that shrink a library.

    Args:
        elf: the library.
        containers: all containers of the library, also the unchanged ones.

    Raises:
        NotShrinkableError: the file is not a shared library, less than a page would be cut, or
            another section or a pointer uses the part to cut.
        BinaryFormatError: the library is damaged.
    """
    page = _page_size(elf)
    spaces = [
        FreedSpace(compaction=compact_section(section, of_section), page=page)
        for section, of_section in _group_by_section(containers).items()
        # A section without a change keeps its bytes and needs no cut.
        if any(filtered.is_changed for filtered in of_section)
    ]
    for space in spaces:
        _check_section_alone(elf, space)
    spaces = _reserve_header_table(elf, spaces)
    moved = [edit for space in spaces for edit in relocate_section(elf, space.compaction)]
    return (*moved, *_layout_edits(elf, spaces, page))


def _page_size(elf: Elf) -> int:
    # A program that isn't position-independent has addresses in its instructions, without
    # relocations.
    if elf.header.type != FileType.LIBRARY:
        raise NotShrinkableError(
            f"{elf.window.source}: not a shared library: its addresses are fixed"
        )
    if elf.header.machine not in PAGE_SIZES:
        raise NotShrinkableError(
            f"{elf.window.source}: the page size of machine {elf.header.machine} is unknown"
        )
    return PAGE_SIZES[elf.header.machine]


def _group_by_section(
    containers: Iterable[FilteredContainer],
) -> dict[Section, list[FilteredContainer]]:
    groups: dict[Section, list[FilteredContainer]] = {}
    for filtered in containers:
        if filtered.section is not None:
            groups.setdefault(filtered.section, []).append(filtered)
    return groups


@dataclass(frozen=True, slots=True, kw_only=True)
class FreedSpace:
    """Space behind the compacted containers of a section.

    Attributes:
        reserved: bytes behind the containers that stay, for the program headers.
    """

    compaction: Compaction
    page: int
    reserved: int = 0

    @property
    def section(self) -> Section:
        """Old section."""
        return self.compaction.section

    @property
    def free(self) -> int:
        """File offset of the first byte behind the containers, aligned for a table."""
        return align_up(self.section.offset + self.compaction.size, _WORD_SIZE)

    @property
    def cut(self) -> range:
        """Whole pages of the old file that the new file lacks; empty if there are none."""
        end = (self.section.offset + self.section.size) // self.page * self.page
        return range(align_up(self.free + self.reserved, self.page), end)


def _check_section_alone(elf: Elf, space: FreedSpace) -> None:
    """Refuse a section that overlaps another, or whose segment can't be split."""
    section, source = space.section, elf.window.source
    for other in elf.sections():
        # A section of NOBITS has an offset, but no bytes there.
        has_bytes = other.type != SectionType.NOBITS and other.index != section.index
        if has_bytes and _overlaps(section, other.offset, other.size):
            raise NotShrinkableError(f"{source}: {other.name} lies in {section.name}")
    enclosing = [
        segment for segment in elf.segments if _overlaps(section, segment.offset, segment.file_size)
    ]
    if len(enclosing) != 1:
        raise NotShrinkableError(
            f"{source}: {len(enclosing)} segments hold {section.name}, not one"
        )
    if not _can_split(enclosing[0], space):
        raise NotShrinkableError(f"{source}: the segment of {section.name} can't be split")


def _can_split(segment: Segment, space: FreedSpace) -> bool:
    """Return True if a segment can be split inside of a section."""
    section = space.section
    end = section.offset + section.size
    return (
        segment.type == SegmentType.LOAD
        and segment.offset <= section.offset
        and end <= segment.offset + segment.file_size
        and segment.file_size <= segment.memory_size
        and segment.address + segment.memory_size <= _LAST_ADDRESS
        # The dynamic linker maps whole pages: file and memory must agree within a page.
        and (segment.offset - segment.address) % space.page == 0
        # A section outside of its segment's mapping would be moved by another distance than its
        # addresses.
        and segment.address - segment.offset == section.address - section.offset
    )


def _overlaps(section: Section, offset: int, size: int) -> bool:
    """Return True if a range of the file shares bytes with the section."""
    return size > 0 and offset < section.offset + section.size and section.offset < offset + size


def _reserve_header_table(elf: Elf, spaces: list[FreedSpace]) -> list[FreedSpace]:
    """Reserve space for the program headers in the largest freed space."""
    source = elf.window.source
    cuts = sum(len(space.cut) > 0 for space in spaces)
    if not cuts:
        raise NotShrinkableError(f"{source}: less than a page would be freed")
    largest = max(spaces, key=lambda space: len(space.cut))
    # Each cut makes two segments of one.
    size = (elf.header.segment_count + cuts) * PROGRAM_HEADER.size
    reserved = replace(largest, reserved=size)
    # The table itself may use up the last page that would be saved.
    if not reserved.cut:
        raise NotShrinkableError(f"{source}: less than a page would be freed")
    return [reserved if space is largest else space for space in spaces]


def _layout_edits(elf: Elf, spaces: Sequence[FreedSpace], page: int) -> Iterator[Edit]:
    cuts = sorted((space.cut for space in spaces if space.cut), key=lambda cut: cut.start)
    table_space = next(space for space in spaces if space.reserved)
    # In the mapped part: dl_iterate_phdr and the loader read the table from memory.
    table = HeaderTable(
        offset=shift_offset(table_space.free, cuts),
        address=table_space.section.address_at(table_space.free),
    )
    rows = build_program_headers(elf, cuts, page=page, table=table)
    for space in spaces:
        yield _section_edit(space, rows if space is table_space else b"")
    sizes = {space.section.index: space.compaction.size for space in spaces}
    count = len(rows) // PROGRAM_HEADER.size
    yield from header_edits(elf, cuts, count=count, table=table, sizes=sizes)


def _section_edit(space: FreedSpace, rows: bytes) -> Edit:
    section, size = space.section, space.compaction.size
    end = section.offset + section.size
    used = space.free - section.offset + len(rows)
    rest = section.size - used - len(space.cut)
    return Edit(
        start=section.offset,
        end=end,
        pieces=(
            *(piece for filtered in space.compaction.containers for piece in filtered.pieces),
            ZeroBytes(size=space.free - section.offset - size),
            NewBytes(content=rows),
            ZeroBytes(size=rest),
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """All containers of a section, back to back at its start.

    Attributes:
        addresses: the containers' new addresses by their old ones.
        size: bytes that the section has afterwards.
    """

    section: Section
    containers: Sequence[FilteredContainer] = field(repr=False)
    addresses: Mapping[int, int] = field(repr=False)
    size: int


def compact_section(section: Section, containers: Sequence[FilteredContainer]) -> Compaction:
    """Place a section's containers back to back, and return their new addresses."""
    addresses, size = {}, 0
    for filtered in containers:
        # Keyed by address, because pointers and symbols have addresses.
        addresses[section.address_at(filtered.start)] = section.address + size
        size += filtered.size
    return Compaction(section=section, containers=containers, addresses=addresses, size=size)


def relocate_section(elf: Elf, compaction: Compaction) -> Iterator[Edit]:
    """Update all pointers into a section.

    Raises:
        NotShrinkableError: a pointer leads into the middle of a container, or no pointer leads to a
            container that moves.
        BinaryFormatError: the relocations or symbol tables are damaged.
    """
    reached = set()
    for pointer in read_pointers(elf, Dynamic(elf), values=compaction.section.addresses):
        new = _new_address(elf, compaction, pointer.value, "a pointer")
        reached.add(pointer.value)
        yield from _pointer_edits(elf, pointer.address, pointer.record, pointer.value, new)
    # Without a relocation, code may compute the address relative to rip or pc: nothing to update.
    for old, new in compaction.addresses.items():
        # A container that doesn't move may be reached in any way.
        if old != new and old not in reached:
            raise NotShrinkableError(f"{elf.window.source}: no pointer leads to container {old:#x}")
    for table in elf.sections():
        if table.type in _SYMBOL_TABLES:
            yield from _symbol_edits(elf, compaction, table)


def _new_address(elf: Elf, compaction: Compaction, address: int, name: str) -> int:
    if address not in compaction.addresses:
        raise NotShrinkableError(f"{elf.window.source}: {name} leads into a container")
    return compaction.addresses[address]


def _pointer_edits(
    elf: Elf, address: int, record: int | None, old: int, new: int
) -> Iterator[Edit]:
    # RELR has no record: its pointer is only in place.
    if record is not None:
        yield overwrite(record + _ADDEND_AT, _U64.pack(new))
    copy = elf.at_address(address, _U64.size, "pointer")
    # With a RELA record the addend counts and the bytes in place are ignored, but most linkers
    # write the same address there.
    if copy.u64(0, "pointer") == old:
        yield overwrite(copy.start, _U64.pack(new))


def _symbol_edits(elf: Elf, compaction: Compaction, table: Section) -> Iterator[Edit]:
    content = elf.content(table)
    for number, row in enumerate(content.records(SYMBOL, "symbols")):
        _, _, _, section_index, value, _ = row
        if section_index == compaction.section.index and value in compaction.section.addresses:
            # Other libraries read exported symbols; a local symbol is only for debuggers.
            if table.type == SectionType.DYNAMIC_SYMBOLS:
                _new_address(elf, compaction, value, "an exported symbol")
            # A local symbol into the middle of a container keeps its old value.
            new = compaction.addresses.get(value, value)
            offset = content.start + number * SYMBOL.size + _VALUE_AT
            yield overwrite(offset, _U64.pack(new))


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderTable:
    """New place of the program headers: an offset in the new file, and an address."""

    offset: int
    address: int


class ProgramHeader(NamedTuple):
    """A program header: a tuple of the gABI's fields, in its order."""

    type: int
    flags: int
    offset: int
    address: int
    physical: int
    file_size: int
    memory_size: int
    alignment: int

    def placed(self, *, offset: int, address: int, size: int) -> ProgramHeader:
        """Return the header of the same segment in another place."""
        return self._replace(
            offset=offset, address=address, physical=address, file_size=size, memory_size=size
        )

    def pack(self) -> bytes:
        """Return the bytes of the header in the table."""
        return PROGRAM_HEADER.pack(*self)


def shift_offset(offset: int, cuts: Sequence[range]) -> int:
    """Return the offset in the new file of an offset in the old one."""
    # No part that is kept begins inside of a cut.
    return offset - sum(len(cut) for cut in cuts if cut.stop <= offset)


def read_program_headers(elf: Elf) -> list[ProgramHeader]:
    """Return the rows of the table of program headers, in its order.

    Raises:
        BinaryFormatError: the file ends within the table.
    """
    start = elf.header.segments_offset
    size = elf.header.segment_count * PROGRAM_HEADER.size
    table = elf.window.part(start, size, "program headers")
    # Read here, not by `Elf`, because p_paddr must be kept too.
    return list(map(ProgramHeader._make, table.records(PROGRAM_HEADER, "program headers")))


def build_program_headers(
    elf: Elf, cuts: Sequence[range], *, page: int, table: HeaderTable
) -> bytes:
    """Return the new table of program headers, which will be placed at ``table``."""
    old = read_program_headers(elf)
    new = [part for row in old for part in _split_segment(row, cuts, page)]
    size = len(new) * PROGRAM_HEADER.size
    return b"".join(_update_table_header(row, table, size).pack() for row in new)


def _split_segment(row: ProgramHeader, cuts: Sequence[range], page: int) -> Iterator[ProgramHeader]:
    end = row.offset + row.file_size
    start = row.offset
    if row.type == SegmentType.LOAD:
        for cut in cuts:
            # Cuts are sorted, so each one splits what the last one left of the segment.
            if row.offset <= cut.start < end:
                yield _segment_part(row, start, cut.start - start, cuts, page)
                start = cut.stop
    rest = _segment_part(row, start, end - start, cuts, page)
    # A cut may reach to the segment's end, and leave nothing behind it.
    if rest.memory_size or start == row.offset:
        yield rest


def _segment_part(
    row: ProgramHeader, start: int, size: int, cuts: Sequence[range], page: int
) -> ProgramHeader:
    """Return the part of a segment that begins with the old file's byte at ``start``."""
    skipped = start - row.offset
    is_last = start + size == row.offset + row.file_size
    offset = shift_offset(start, cuts)
    alignment = row.alignment
    if row.type == SegmentType.LOAD and (row.address + skipped - offset) % max(alignment, 1):
        # glibc before 2.35 refuses a segment that isn't aligned in the file as it is in memory.
        alignment = page
    return row._replace(
        offset=offset,
        address=row.address + skipped,
        # p_paddr means nothing for libraries; it may have any value, so it may overflow.
        physical=(row.physical + skipped) & _LAST_ADDRESS,
        file_size=size,
        # Only the last part has the segment's .bss after its bytes.
        memory_size=row.memory_size - skipped if is_last else size,
        alignment=alignment,
    )


def _update_table_header(row: ProgramHeader, table: HeaderTable, size: int) -> ProgramHeader:
    """Return the header of the table itself with its new place; others unchanged."""
    # The dynamic linker computes a program's load address from PT_PHDR; libraries may lack it.
    if row.type != SegmentType.HEADERS:
        return row
    return row.placed(offset=table.offset, address=table.address, size=size)


def header_edits(
    elf: Elf, cuts: Sequence[range], *, count: int, table: HeaderTable, sizes: Mapping[int, int]
) -> Iterator[Edit]:
    """Update the ELF header and the section headers.

    Args:
        elf: the old file.
        cuts: the parts that the new file lacks.
        count: the new number of program headers.
        table: their new place.
        sizes: the new sizes of sections by their index.
    """
    start = elf.window.start
    yield overwrite(start + _SEGMENTS_OFFSET_AT, _U64.pack(table.offset))
    yield overwrite(start + _SEGMENT_COUNT_AT, _U16.pack(count))
    # The section headers lie after all cuts or before them, never inside: a cut never has bytes
    # of two sections.
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
