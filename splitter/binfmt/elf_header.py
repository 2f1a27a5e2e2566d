"""The header of an ELF file of 64 bits, little-endian (System V gABI, chapter 4)."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from splitter.binfmt.cursor import Window

_HEADER = Struct("<IBBBxB7xHHIQQQIHHHHHH")
_IDENTITY = (("magic", 0x464C457F), ("class", 2), ("byte order", 1), ("version", 1))


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
