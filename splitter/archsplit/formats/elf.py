"""ELF files of 64 bits, little-endian: header, segments, sections, notes, addresses.

In: a `Window` of a file; out: records with the numbers of the gABI. The header and the segments are
checked at once; section headers, names and contents are read on demand, so that a file of any size
costs only the pages that are used. Every read is checked against the bounds of the file. Source of
the layouts: System V gABI, chapters 4 and 5.
"""

from __future__ import annotations

import bisect
import enum
from dataclasses import dataclass
from struct import Struct
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple

from archsplit.formats.reader import StringTable, align_up

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from archsplit.formats.reader import Window

__pure__ = True

# Elf64_Ehdr, Elf64_Phdr, Elf64_Shdr and Elf64_Nhdr, fields in the gABI's order.
_HEADER = Struct("<IBBBxB7xHHIQQQIHHHHHH")
PROGRAM_HEADER = Struct("<IIQQQQQQ")
_SECTION = Struct("<IIQQQQIIQQ")
_NOTE = Struct("<III")
_PN_XNUM = 0xFFFF  # more segments than the header's field can count
_SHN_XINDEX = 0xFFFF  # the index does not fit into the header
ELF_MAGIC = b"\x7fELF"
"""First bytes of every ELF file."""

_IDENTITY = (
    ("magic", int.from_bytes(ELF_MAGIC, "little")),
    ("class", 2),
    ("byte order", 1),
    ("version", 1),
)


class FileType(enum.IntEnum):
    """Kinds of ELF files: e_type."""

    OBJECT = 1
    EXECUTABLE = 2
    LIBRARY = 3


class Machine(enum.IntEnum):
    """Machines: e_machine."""

    X86_64 = 62
    AARCH64 = 183
    CUDA = 190


ElfMachine = Literal["x86_64", "aarch64"]
"""A host machine with CUDA, named as in platform tags and by ``uname``."""

MACHINE_NAMES: Mapping[int, ElfMachine] = MappingProxyType(
    {Machine.X86_64: "x86_64", Machine.AARCH64: "aarch64"}
)


class SegmentType(enum.IntEnum):
    """Kinds of segments: p_type."""

    LOAD = 1
    DYNAMIC = 2
    NOTE = 4
    HEADERS = 6


class SectionType(enum.IntEnum):
    """Kinds of sections: sh_type."""

    SYMBOLS = 2
    STRINGS = 3
    RELA = 4
    DYNAMIC = 6
    NOTE = 7
    NOBITS = 8
    DYNAMIC_SYMBOLS = 11


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """ELF header; ``type`` and ``machine`` may be outside of the enums here."""

    type: int
    machine: int
    abi_version: int
    flags: int
    segments_offset: int
    segment_size: int
    segment_count: int
    sections_offset: int
    section_size: int
    section_count: int
    names_index: int


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


class Section(NamedTuple):
    """A section header; ``offset`` counts from the start of the file.

    A tuple, because static libraries have a hundred thousand.
    """

    index: int  # type: ignore[assignment] # never searched
    name: str
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int

    @property
    def addresses(self) -> range:
        """Addresses of the section's bytes."""
        return range(self.address, self.address + self.size)

    def address_at(self, offset: int) -> int:
        """Return the address of the byte at an offset of the file."""
        return self.address + offset - self.offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A note: the owner, who defines the types, then the type and the bytes."""

    owner: str
    type: int
    content: Window


class Elf:
    """An ELF file: header and segments are checked at once, the rest on demand.

    Attributes:
        window: the whole file.
        header: the ELF header.
        segments: the program headers in their order; every PT_LOAD's bytes are in the file.
    """

    __slots__ = ("_loads", "_sections", "header", "segments", "window")

    def __init__(self, window: Window) -> None:
        """Read the headers.

        Raises:
            BinaryFormatError: the file is not a little-endian ELF file of 64 bits, or is truncated.
        """
        self.window = window
        self.header = read_header(window)
        self.segments = tuple(_read_segments(window, self.header))
        # The gABI demands ascending addresses, but not every tool that adds a segment keeps to it.
        self._loads = sorted(
            (segment for segment in self.segments if segment.type == SegmentType.LOAD),
            key=_address,
        )
        self._sections = _SectionTable(window, self.header)

    @property
    def section_count(self) -> int:
        """Number of sections; 0 after the section headers were stripped."""
        return len(self._sections)

    def sections(self) -> Iterator[Section]:
        """Return all sections in the order of their headers.

        Raises:
            BinaryFormatError: a name lies outside the table of names.
        """
        return iter(self._sections)

    def sections_end(self) -> int:
        """Return the end of the last section's bytes, from the start of the window; 0 for none."""
        return self._sections.end()

    def section(self, name: str) -> Section | None:
        """Return the first section of this name, or None; raises as `sections` does."""
        # By name, because the sections with device code have no type of their own.
        return self._sections.find(name)

    def section_at(self, index: int) -> Section:
        """Return the section with this index.

        Raises:
            BinaryFormatError: the index is too high.
        """
        return self._sections.at(index)

    def content(self, section: Section) -> Window:
        """Return the bytes of a section in the file; nothing for NOBITS.

        Raises:
            BinaryFormatError: the section reaches beyond the end of the file.
        """
        # The offset of a NOBITS section (.bss) may be beyond the end of the file.
        size = 0 if section.type == SectionType.NOBITS else section.size
        return self.window.at(section.offset, size, f"section {section.name!r}")

    def from_address(self, address: int, what: str) -> Window:
        """Return the mapped bytes from ``address`` to the end of their segment.

        Raises:
            BinaryFormatError: no PT_LOAD maps that address from the file.
        """
        # The last segment that begins at or before the address.
        after = bisect.bisect_right(self._loads, address, key=_address)
        load = self._loads[after - 1] if after else None
        # What is mapped after `file_size` are zeros (.bss), which the file doesn't have.
        if load is None or address > load.address + load.file_size:
            found = f"address {address:#x}"
            raise self.window.fault(0, what, found, "one that a PT_LOAD maps from the file")
        ahead = address - load.address
        return self.window.at(load.offset + ahead, load.file_size - ahead, what)

    def at_address(self, address: int, size: int, what: str) -> Window:
        """Return the ``size`` bytes that a loader maps at ``address``.

        Raises:
            BinaryFormatError: no PT_LOAD maps all of them from the file.
        """
        return self.from_address(address, what).part(0, size, what)


def read_notes(elf: Elf) -> Iterator[Note]:
    """Return all notes: of the PT_NOTE segments, or of sections in an object.

    Raises:
        BinaryFormatError: a note is truncated, or the notes have more bytes than the file.
    """
    remaining = len(elf.window)
    for area, alignment in _note_areas(elf):
        # Overlapping segments could make a small file yield notes without end.
        remaining -= len(area)
        if remaining < 0:
            raise area.fault(0, "notes", "more bytes than the file has", "no overlaps")
        yield from _split_notes(area, 8 if alignment == 8 else 4)  # noqa: PLR2004 - gABI: 4 or 8


def _address(segment: Segment) -> int:
    return segment.address


def read_header(window: Window) -> Header:
    """Read the header of an ELF file.

    Raises:
        BinaryFormatError: the file is not ELF, not of 64 bits, or not little-endian.
    """
    row = window.unpack(_HEADER, 0, "ELF header")
    # The table has only the first four fields of the record, and `zip` stops after them.
    for found, (what, expected) in zip(row, _IDENTITY, strict=False):
        if found != expected:
            raise window.fault(0, f"ELF {what}", f"{found:#x}", f"{expected:#x}")
    return Header(
        abi_version=row[4],
        type=row[5],
        machine=row[6],
        segments_offset=row[9],
        sections_offset=row[10],
        flags=row[11],
        segment_size=row[13],
        segment_count=row[14],
        section_size=row[15],
        section_count=row[16],
        names_index=row[17],
    )


def _read_segments(window: Window, header: Header) -> Iterator[Segment]:
    """Return the program headers in their order.

    Raises:
        BinaryFormatError: a header, or the bytes of a PT_LOAD, are beyond the end of the file.
    """
    # The count would then be in the first section header (PN_XNUM). No library has as many
    # segments.
    if header.segment_count == _PN_XNUM:
        raise window.fault(56, "number of segments", "65535 or more", "fewer")
    # An object has no segments, and the size field is 0.
    if header.segment_count:
        _require_size(window, 54, "program header", header.segment_size, PROGRAM_HEADER)
    size = header.segment_count * PROGRAM_HEADER.size
    table = window.part(header.segments_offset, size, "program headers")
    for row in table.records(PROGRAM_HEADER, "program headers"):
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


def _require_size(window: Window, at: int, what: str, found: int, layout: Struct) -> None:
    """Check that a size in a header equals the size of a record's layout.

    Args:
        window: the file.
        at: offset of the header's field.
        what: the record, for the message.
        found: the field's value.
        layout: the record.

    Raises:
        BinaryFormatError: the size is another one.
    """
    if found != layout.size:
        raise window.fault(at, f"size of a {what}", str(found), str(layout.size))


class _SectionTable:
    """Section headers, read on demand."""

    __slots__ = ("_all", "_names", "_rows", "_window")

    def __init__(self, window: Window, header: Header) -> None:
        """Find the headers and the table of their names.

        Raises:
            BinaryFormatError: they are beyond the end of the file.
        """
        self._window = window
        self._rows = _section_rows(window, header)
        self._names = _names_table(window, header, self._rows)
        self._all: tuple[Section, ...] | None = None

    def __len__(self) -> int:
        return len(self._rows) // _SECTION.size

    def __iter__(self) -> Iterator[Section]:
        # Kept: a static library has thousands of members, and each is asked several times.
        if self._all is None:
            # Sections may share names (tail merging), hence twice the file.
            names = StringTable(self._names, limit=2 * len(self._window))
            rows = enumerate(self._rows.records(_SECTION, "section headers"))
            self._all = tuple(self._section(index, row, names) for index, row in rows)
        return iter(self._all)

    def find(self, name: str) -> Section | None:
        """Return the first section of this name, or None; no other name is read."""
        text, names = name.encode() + b"\0", self._names.to_bytes()
        # A name may be the end of another one, so the text may stand in several places.
        places, at = set(), names.find(text)
        while at >= 0:
            places.add(at)
            at = names.find(text, at + 1)
        rows = enumerate(self._rows.records(_SECTION, "section headers"))
        index = next((index for index, row in rows if row[0] in places), None)
        return None if index is None else self.at(index)

    def end(self) -> int:
        """Return the end of the last section's bytes; no name is read."""
        rows = self._rows.records(_SECTION, "section headers")
        return max((row[4] + row[5] for row in rows if row[1] != SectionType.NOBITS), default=0)

    def at(self, index: int) -> Section:
        """Return the section with this index.

        Raises:
            BinaryFormatError: the index is too high.
        """
        row = self._rows.unpack(_SECTION, index * _SECTION.size, f"header of section {index}")
        return self._section(index, row, StringTable(self._names, limit=len(self._window)))

    def _section(self, index: int, row: tuple[int, ...], names: StringTable) -> Section:
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
    # The dynamic linker doesn't need section headers, so some tools remove them.
    if header.sections_offset == 0:
        return window.part(0, 0, "section headers")
    _require_size(window, 58, "section header", header.section_size, _SECTION)
    first = window.unpack(_SECTION, header.sections_offset, "first section header")
    # With too many sections for the header's field, the first one has the count.
    count = header.section_count or first[5]
    return window.part(header.sections_offset, count * _SECTION.size, "section headers")


def _names_table(window: Window, header: Header, rows: Window) -> Window:
    index = header.names_index
    # More than 65,279 sections: one function in each section (-ffunction-sections) gets there.
    if index == _SHN_XINDEX:
        index = rows.unpack(_SECTION, 0, "first section header")[6]
    if len(rows) == 0:
        return rows
    row = rows.unpack(_SECTION, index * _SECTION.size, "header of the section of names")
    return window.part(row[4], row[5], "section of names")


def _note_areas(elf: Elf) -> Iterator[tuple[Window, int]]:
    # Segments first, because they are what the dynamic linker and the loader read.
    if elf.segments:
        for segment in elf.segments:
            if segment.type == SegmentType.NOTE:
                window = elf.window.at(segment.offset, segment.file_size, "note segment")
                yield window, segment.alignment
    else:
        for section in elf.sections():
            if section.type == SectionType.NOTE:
                yield elf.content(section), section.alignment


def _split_notes(area: Window, alignment: int) -> Iterator[Note]:
    offset = 0
    while offset < len(area):
        owner_size, size, kind = area.unpack(_NOTE, offset, "note")
        owner = area.part(offset + _NOTE.size, owner_size, "owner of a note")
        # The owner is padded, and the padding isn't counted in its size; so is the content.
        start = align_up(offset + _NOTE.size + owner_size, alignment)
        yield Note(
            # The gABI counts the NUL in the owner's size.
            owner=owner.to_bytes().removesuffix(b"\0").decode("utf-8", "surrogateescape"),
            type=kind,
            content=area.part(start, size, "content of a note"),
        )
        offset = align_up(start + size, alignment)
