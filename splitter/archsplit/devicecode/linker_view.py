"""Compare what the dynamic linker reads in an edited library with the original.

In: both files, and the new address of each container. Out: findings as text, none for a sound
library. The one idea: whether a library still loads is answered without running its code. Program
headers, dynamic table and the place of each section in memory must be the original's; relocations,
symbols and data may differ only in pointers to containers, which must have the new address.
Rules of the dynamic linker that the original breaks too are no finding.

Sources: System V gABI, chapter 5 ("Program Loading"); glibc, elf/dl-load.c.
"""

from __future__ import annotations

from itertools import pairwise
from struct import Struct
from typing import TYPE_CHECKING

from archsplit.devicecode.elf_shrink import PAGE_SIZES
from archsplit.errors import BinaryFormatError
from archsplit.formats.elf import PROGRAM_HEADER, SectionType, SegmentType
from archsplit.formats.elf_dynamic import SYMBOL, Dynamic, dynamic_entries, read_pointers
from archsplit.formats.fatbin import EXECUTABLE, RELOCATABLE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from archsplit.formats.elf import Elf, Section, Segment

_WORD = Struct("<Q")
_ADDEND_AT, _VALUE_AT = 16, 8  # r_addend in Elf64_Rela, st_value in Elf64_Sym
_ALLOCATED, _THREAD_LOCAL = 2, 0x400  # SHF_ALLOC, SHF_TLS
_SYMBOL_TABLES = {SectionType.SYMBOLS, SectionType.DYNAMIC_SYMBOLS}


def linker_findings(before: Elf, after: Elf) -> Iterator[str]:
    """Yield the differences that the dynamic linker would meet, apart from pointers.

    Raises:
        BinaryFormatError: a table of a file is damaged.
    """
    headers = (before.header, after.header)
    old, new = ((one.type, one.machine, one.abi_version, one.flags) for one in headers)
    if old != new:
        yield "the ELF header has another type, machine or flags"
    yield from sorted(_broken_rules(after) - _broken_rules(before))
    if _other_segments(before) != _other_segments(after):
        yield "program headers other than PT_LOAD and PT_PHDR differ"
    if list(dynamic_entries(before)) != list(dynamic_entries(after)):
        yield "the dynamic table differs"
    yield from _placement_findings(before, after)


def _loads(elf: Elf) -> list[Segment]:
    return [segment for segment in elf.segments if segment.type == SegmentType.LOAD]


def _broken_rules(elf: Elf) -> set[str]:
    """Return the rules for program headers that a file breaks."""
    broken = set()
    loads = _loads(elf)
    page = PAGE_SIZES.get(elf.header.machine, 1)
    for segment in loads:
        # glibc before 2.35 refuses the file otherwise.
        if (segment.address - segment.offset) % max(segment.alignment, page):
            broken.add("a PT_LOAD is aligned in memory in another way than in the file")
        if segment.file_size > segment.memory_size:
            broken.add("a PT_LOAD has more bytes in the file than in memory")
    for first, second in pairwise(loads):
        # The dynamic linker maps whole pages.
        if (first.address + first.memory_size - 1) // page >= second.address // page:
            broken.add("PT_LOADs are not ascending, or share a page")
    if not _is_table_mapped(elf):
        broken.add("the program headers are not mapped, or not at the address in PT_PHDR")
    for segment in elf.segments:
        if (
            segment.type not in {SegmentType.LOAD, SegmentType.HEADERS}
            and segment.file_size
            and _file_offset(elf, segment.address, segment.file_size) != segment.offset
        ):
            broken.add(f"segment {segment.type:#x} is not mapped from its place in the file")
    return broken


def _is_table_mapped(elf: Elf) -> bool:
    start = elf.header.segments_offset
    size = elf.header.segment_count * PROGRAM_HEADER.size
    is_mapped = any(
        load.offset <= start and start + size <= load.offset + load.file_size
        for load in _loads(elf)
    )
    return is_mapped and all(
        segment.offset == start
        and segment.file_size == size
        and _file_offset(elf, segment.address, size) == start
        for segment in elf.segments
        if segment.type == SegmentType.HEADERS
    )


def _file_offset(elf: Elf, address: int, size: int) -> int | None:
    """Return the file offset from which the dynamic linker maps bytes; None if it maps none."""
    try:
        return elf.at_address(address, size, "segment").start
    except BinaryFormatError:
        return None


def _other_segments(elf: Elf) -> list[tuple[int, ...]]:
    return [
        (one.type, one.flags, one.address, one.file_size, one.memory_size, one.alignment)
        for one in elf.segments
        if one.type not in {SegmentType.LOAD, SegmentType.HEADERS}
    ]


def _placement_findings(before: Elf, after: Elf) -> Iterator[str]:
    """Compare the place and the permissions of each section in memory."""
    for old, new in zip(before.sections(), after.sections(), strict=False):
        # The thread-local .tbss takes no addresses.
        if not old.flags & _ALLOCATED or old.flags & _THREAD_LOCAL or not new.size:
            continue
        if _memory_flags(before, old) != _memory_flags(after, new):
            yield f"section {old.name} is mapped in another way"
        elif new.type != SectionType.NOBITS and (
            _file_offset(before, old.address, old.size) == old.offset
            and _file_offset(after, new.address, new.size) != new.offset
        ):
            yield f"section {old.name} is mapped from another place in the file"


def _memory_flags(elf: Elf, section: Section) -> int | None:
    """Return the permissions of the segment that holds a whole section."""
    end = section.address + section.size
    return next(
        (
            load.flags
            for load in _loads(elf)
            if load.address <= section.address and end <= load.address + load.memory_size
        ),
        None,
    )


def planned_words(before: Elf, moves: Mapping[int, int]) -> dict[int, bytes]:
    """Return the new bytes of each pointer to a container, by file offset.

    Args:
        before: the original library.
        moves: the containers' new addresses by their old ones.

    Raises:
        BinaryFormatError: a table is damaged.
    """
    words: dict[int, bytes] = {}
    dynamic = Dynamic(before)
    for name in (EXECUTABLE, RELOCATABLE):
        section = before.section(name)
        if section is None:
            continue
        for pointer in read_pointers(before, dynamic, values=section.addresses):
            new = _WORD.pack(moves.get(pointer.value, pointer.value))
            if pointer.record is not None:
                words[pointer.record + _ADDEND_AT] = new
            # Beside a RELA record the bytes in place have the value, or zero.
            copy = before.at_address(pointer.address, _WORD.size, "pointer")
            if copy.u64(0, "pointer") == pointer.value:
                words[copy.start] = new
        for table in before.sections():
            if table.type in _SYMBOL_TABLES:
                words.update(_symbol_words(before, table, section, moves))
    return words


def _symbol_words(
    elf: Elf, table: Section, section: Section, moves: Mapping[int, int]
) -> Iterator[tuple[int, bytes]]:
    content = elf.content(table)
    for number, row in enumerate(content.records(SYMBOL, "symbols")):
        if row[3] == section.index and row[4] in moves:
            yield content.start + number * SYMBOL.size + _VALUE_AT, _WORD.pack(moves[row[4]])
