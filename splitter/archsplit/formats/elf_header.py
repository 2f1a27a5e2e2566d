"""The header of an ELF file of 64 bits, little-endian, and those of its segments.

Source of the layouts: System V gABI, chapters 4 and 5.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from struct import Struct
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from archsplit.formats.reader import Window

__pure__ = True

_HEADER = Struct("<IBBBxB7xHHIQQQIHHHHHH")
_SEGMENT = Struct("<IIQQQQQQ")
_TOO_MANY = 0xFFFF  # PN_XNUM: there are more than fit into the number
ELF_MAGIC = b"\x7fELF"
"""What every ELF file begins with."""

_IDENTITY = (
    ("magic", int.from_bytes(ELF_MAGIC, "little")),
    ("class", 2),
    ("byte order", 1),
    ("version", 1),
)


class FileType(enum.IntEnum):
    """What an ELF file is: e_type."""

    OBJECT = 1
    EXECUTABLE = 2
    LIBRARY = 3


class Machine(enum.IntEnum):
    """Whose code it holds: e_machine."""

    X86_64 = 62
    AARCH64 = 183
    CUDA = 190


ElfMachine = Literal["x86_64", "aarch64"]
"""A host machine that has CUDA, as platform tags and ``uname`` name it."""

MACHINE_NAMES: Mapping[int, ElfMachine] = MappingProxyType(
    {Machine.X86_64: "x86_64", Machine.AARCH64: "aarch64"}
)


class SegmentType(enum.IntEnum):
    """What a segment is for: p_type."""

    LOAD = 1
    DYNAMIC = 2
    NOTE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The ELF header; ``type`` and ``machine`` can be numbers that the enums here don't have."""

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


def read_header(window: Window) -> Header:
    """Read the header of an ELF file.

    Raises:
        BinaryFormatError: it is not ELF, has not 64 bits or is not little-endian.
    """
    row = window.unpack(_HEADER, 0, "ELF header")
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


def read_segments(window: Window, header: Header) -> Iterator[Segment]:
    """The program headers, in their order.

    Raises:
        BinaryFormatError: they, or the bytes of a PT_LOAD, are not all in the file.
    """
    if header.segment_count == _TOO_MANY:
        raise window.fault(56, "number of segments", "65535 or more", "fewer")
    if header.segment_count:
        require_size(window, 54, "program header", header.segment_size, _SEGMENT)
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


def require_size(window: Window, at: int, what: str, found: int, layout: Struct) -> None:
    """Refuse a file whose header, at offset ``at``, says another size of ``what``.

    Raises:
        BinaryFormatError: the size is not that of ``layout``.
    """
    if found != layout.size:
        raise window.fault(at, f"size of a {what}", str(found), str(layout.size))
