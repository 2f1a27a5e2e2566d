"""Cut whole pages out of an ELF file: what its own header and tables have to say afterwards.

Addresses never change; only file offsets do. The segment around a cut is split in two, and the
addresses in between belong to nobody.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING

from archsplit.devicecode.edits import Edit, overwrite
from archsplit.formats.elf_header import SegmentType

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from archsplit.formats.elf import Elf

SEGMENT = Struct("<IIQQQQQQ")
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
        return SEGMENT.pack(
            self.type,
            self.flags,
            self.offset,
            self.address,
            self.physical,
            self.file_size,
            self.memory_size,
            self.alignment,
        )


def shifted(offset: int, cuts: Sequence[Cut]) -> int:
    """Where in the new file the old one's byte at ``offset`` is."""
    return offset - sum(cut.end - cut.start for cut in cuts if cut.end <= offset)


def program_headers(elf: Elf, cuts: Sequence[Cut], *, page: int, table: HeaderTable) -> bytes:
    """The new table of program headers, which will be where ``table`` says."""
    start = elf.header.segments_offset
    size = elf.header.segment_count * SEGMENT.size
    rows = elf.window.part(start, size, "program headers").records(SEGMENT, "program headers")
    old = [ProgramHeader(**dict(zip(ProgramHeader.__slots__, row, strict=True))) for row in rows]
    new = [part for row in old for part in _parts(row, cuts, page)]
    count = len(new) * SEGMENT.size
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
    new = _U64.pack(shifted(sections, cuts) - start)
    yield overwrite(start + _SECTIONS_OFFSET_AT, new)
    for section in elf.sections():
        row = sections + section.index * _ROW_SIZE
        offset = shifted(section.offset, cuts)
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
    offset = shifted(start, cuts)
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
