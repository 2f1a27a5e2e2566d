"""The stub of a library: its name, and the entry by which the library needs it.

ld.so runs the constructor of a needed library before the library's own ones, which register device
code: so the stub's loader comes in time. Each library has a stub with a name of its own, because a
constructor runs once per name.

`add_stub` edits the library in place. No byte that has an address moves but the table of names,
which is copied to the end of the file, in a segment of its own, and grows there::

    file   | ELF header | .dynstr | .text | .dynamic | .data | sections | headers (dynamic) names |
                 `- e_phoff ----------------------------------------->  `------- LOAD -------'

The segment's address is behind all others, and equal to its offset within a page. So nothing is
padded, and the cost doesn't depend on the size of the library. The old tables stay where they are.

Linkers leave spare entries in the dynamic section, so it mostly grows where it is, and stays in
RELRO. Only a section without enough of them moves too: then it is writable for good, and the symbol
_DYNAMIC has its old address.

Sources: System V gABI, chapter 5 ("Program Header", "Dynamic Section"); for what the dynamic linker
takes and refuses, glibc, elf/dl-load.c.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from struct import Struct
from typing import TYPE_CHECKING

from archsplit.devicecode.elf_shrink import PAGE_SIZES, ProgramHeader, read_program_headers
from archsplit.errors import VerifyError
from archsplit.formats.elf import PROGRAM_HEADER, Elf, SectionType, SegmentType
from archsplit.formats.elf_dynamic import Dynamic, Tag, dynamic_entries
from archsplit.formats.reader import align_up, open_file
from archsplit.release.loader import STUB_LIBRARY
from archsplit.system.fs import output_errors

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import BinaryIO

_KEY = 16
_ENTRY, _U64, _U16 = Struct("<QQ"), Struct("<Q"), Struct("<H")
# Offsets of e_phoff and e_phnum in the ELF header; a section header has 64 bytes, with sh_addr,
# sh_offset and sh_size one after the other.
_SEGMENTS_OFFSET_AT, _SEGMENT_COUNT_AT = 32, 56
_ROW_SIZE, _PLACE_AT, _PLACE = 64, 16, Struct("<QQQ")
_READ, _READ_WRITE = 4, 6
_ALIGNMENT = 16
_ADDRESS_END = 1 << 63


def stub_name(core: str, library: str) -> str:
    """Return the name of a library's stub, unique across libraries and builds.

    ld.so shares libraries by name across a whole process.

    Args:
        core: see `archsplit.split.find.core_key`.
    """
    # Of the build too: two versions of a package may be loaded in one process.
    key = hashlib.sha256(f"{core} {library}".encode()).hexdigest()[:_KEY]
    return STUB_LIBRARY.replace("0" * _KEY, key)


def rename_stub(template: bytes, name: str) -> bytes:
    """Return a stub with another name of the same length, in code and SONAME."""
    # The name has a placeholder of the same length, so no offset in the file moves.
    return template.replace(STUB_LIBRARY.encode(), name.encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class Stub:
    """A stub of a library.

    Attributes:
        name: its SONAME.
        folder: its folder, relative to the library's.
    """

    name: str
    folder: str


def add_stub(library: Path, stub: Stub) -> None:
    """Make a library need a stub; the library is changed in place.

    Raises:
        BinaryFormatError: the library is damaged, or has no dynamic section.
        OutputError: the library can't be written.
        VerifyError: the written library is not the expected one.
    """
    elf = Elf(open_file(library))
    old = Dynamic(elf)
    # What is an RPATH stays one: it counts before LD_LIBRARY_PATH, and for libraries below. A
    # library without either gets one too: with a RUNPATH, ld.so would no longer search the RPATHs
    # of those above it for what it needs.
    tag, path = (Tag.RPATH, old.rpath) if old.runpath is None else (Tag.RUNPATH, old.runpath)
    path = ":".join(filter(None, (path, f"$ORIGIN/{stub.folder}")))
    tables = _plan_tables(elf, old, stub.name, {tag: path})
    with output_errors(library), library.open("r+b") as file:
        tables.write(file)
    # The plan proves nothing; only the file counts.
    new = Dynamic(Elf(open_file(library)))
    found = (new.needed, new.soname, new.runpath if tag is Tag.RUNPATH else new.rpath)
    expected = ((stub.name, *old.needed), old.soname, path)
    if found != expected:
        raise VerifyError(f"{library.name} has {found} after its stub was added, not {expected}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """A place in the file and in memory."""

    address: int
    offset: int
    size: int

    def part(self, start: int, size: int) -> _Place:
        """Return a part of the place."""
        return _Place(address=self.address + start, offset=self.offset + start, size=size)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tables:
    """Tables in a new segment, and the bytes that lead to them.

    Attributes:
        offset: the end of the library, where they begin.
        content: the tables.
        overwritten: new bytes of the library, by their offset.
    """

    offset: int
    content: bytes = field(repr=False)
    overwritten: dict[int, bytes] = field(repr=False)

    def write(self, file: BinaryIO) -> None:
        """Write the tables, and then what leads to them."""
        for offset, content in {self.offset: self.content, **self.overwritten}.items():
            file.seek(offset)
            file.write(content)


def _plan_tables(elf: Elf, old: Dynamic, needed: str, texts: dict[Tag, str]) -> _Tables:
    """Plan tables with one more needed library, and with other texts of some entries."""
    names = bytearray(old.table(Tag.STRTAB, Tag.STRSZ, "dynamic names").data)
    first = (Tag.NEEDED, _add_name(names, needed))
    values = {int(tag): _add_name(names, text) for tag, text in texts.items()}
    rows = list(dynamic_entries(elf))
    if not rows:
        raise elf.window.fault(0, "dynamic section", "none", "one")
    absent = [tag for tag in values if tag not in dict(rows)]
    # One header more for the segment; one entry more for the library, and one that ends them.
    headers_size = (elf.header.segment_count + 1) * PROGRAM_HEADER.size
    dynamic_size = (1 + len(rows) + len(absent) + 1) * _ENTRY.size
    spare = _dynamic_place(elf)
    moved_size = 0 if dynamic_size <= spare.size else dynamic_size
    place = _free_place(elf, headers_size + moved_size + len(names))
    headers = place.part(0, headers_size)
    dynamic = place.part(headers_size, moved_size) if moved_size else spare
    strings = place.part(headers_size + moved_size, len(names))
    values |= {Tag.STRTAB: strings.address, Tag.STRSZ: strings.size}
    entries = [first, *((tag, values.get(tag, value)) for tag, value in rows)]
    entries += [(tag, values[tag]) for tag in absent]
    content = b"".join(_ENTRY.pack(*entry) for entry in (*entries, (0, 0)))
    heads = b"".join(_program_headers(elf, place, headers, dynamic))
    return _Tables(
        offset=place.offset,
        content=heads + (content if moved_size else b"") + names,
        overwritten={
            **({} if moved_size else {spare.offset: content}),
            _SEGMENTS_OFFSET_AT: _U64.pack(headers.offset),
            _SEGMENT_COUNT_AT: _U16.pack(elf.header.segment_count + 1),
            **dict(_section_places(elf, old, dynamic, strings)),
        },
    )


def _dynamic_place(elf: Elf) -> _Place:
    """Return the place of the dynamic section, with its spare entries."""
    segment = next(one for one in elf.segments if one.type == SegmentType.DYNAMIC)
    return _Place(address=segment.address, offset=segment.offset, size=segment.file_size)


def _add_name(names: bytearray, name: str) -> int:
    """Add a name to a table; return its offset there."""
    offset = len(names)
    names += name.encode("utf-8", "surrogateescape") + b"\0"
    return offset


def _free_place(elf: Elf, size: int) -> _Place:
    """Return the place for a new segment: behind the file, and behind all addresses.

    Raises:
        BinaryFormatError: the file has no segments, too large addresses, or is for another machine.
    """
    page = PAGE_SIZES.get(elf.header.machine, 0)
    ends = (one.address + one.memory_size for one in elf.segments if one.type == SegmentType.LOAD)
    end = max(ends, default=_ADDRESS_END)
    if not page or end + size + 2 * page > _ADDRESS_END:
        raise elf.window.fault(0, "segments", f"{end:#x} as their end", "addresses to add one")
    offset = align_up(len(elf.window), _ALIGNMENT)
    # The dynamic linker maps whole pages: offset and address must agree within a page.
    address = align_up(end, page) + offset % page
    return _Place(address=address, offset=offset, size=size)


def _program_headers(elf: Elf, segment: _Place, table: _Place, dynamic: _Place) -> Iterator[bytes]:
    moved: dict[int, _Place] = {SegmentType.DYNAMIC: dynamic, SegmentType.HEADERS: table}
    for row in read_program_headers(elf):
        place = moved.get(row.type)
        if place is None:
            yield row.pack()
        else:
            yield row.placed(offset=place.offset, address=place.address, size=place.size).pack()
    # Last: the dynamic linker takes segments in the order of their addresses. It relocates entries
    # of the dynamic section, so a segment with that section is writable.
    is_writable = segment.offset <= dynamic.offset < segment.offset + segment.size
    yield ProgramHeader(
        type=SegmentType.LOAD,
        flags=_READ_WRITE if is_writable else _READ,
        offset=segment.offset,
        address=segment.address,
        physical=segment.address,
        file_size=segment.size,
        memory_size=segment.size,
        alignment=PAGE_SIZES[elf.header.machine],
    ).pack()


def _section_places(
    elf: Elf, old: Dynamic, dynamic: _Place, strings: _Place
) -> Iterator[tuple[int, bytes]]:
    """Yield the new places of the two sections, by the offset in their headers."""
    # By address: the names are for people, and a linker script may choose others. By type, because
    # an empty section, or .tbss, has the address of its neighbor.
    moved: dict[tuple[int, int | None], _Place]
    moved = {(SectionType.STRINGS, old.values.get(Tag.STRTAB)): strings}
    for segment in elf.segments:
        if segment.type == SegmentType.DYNAMIC:
            moved[SectionType.DYNAMIC, segment.address] = dynamic
    for section in elf.sections():
        place = moved.get((section.type, section.address))
        if place is not None:
            at = elf.header.sections_offset + section.index * _ROW_SIZE + _PLACE_AT
            yield at, _PLACE.pack(place.address, place.offset, place.size)
