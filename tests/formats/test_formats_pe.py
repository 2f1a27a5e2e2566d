"""Headers of Windows libraries, as the format's specification lays them out."""

from __future__ import annotations

import struct

import pytest

from archsplit.errors import BinaryFormatError
from archsplit.formats.libraries import is_signed_pe, read_pe_sections
from archsplit.formats.reader import Window


@pytest.mark.parametrize(
    ("optional", "is_signed"),
    [
        (b"", False),
        # An unknown kind of header, and one that ends before the directories.
        (struct.pack("<H", 0x107) + bytes(200), False),
        (struct.pack("<H", 0x20B) + bytes(100), False),
        (struct.pack("<H", 0x20B).ljust(112 + 36, b"\0") + struct.pack("<I", 8), True),
        (struct.pack("<H", 0x20B).ljust(112 + 36, b"\0") + b"\0\0\0", False),
        (struct.pack("<H", 0x10B).ljust(96 + 36, b"\0") + struct.pack("<I", 8), True),
        (struct.pack("<H", 0x10B).ljust(96 + 40, b"\0"), False),
    ],
)
def test_both_kinds_of_headers_are_read(optional: bytes, *, is_signed: bool) -> None:
    head = b"MZ".ljust(60, b"\0") + struct.pack("<I", 64)
    coff = b"PE\0\0" + struct.pack("<HHIIIHH", 0x8664, 0, 0, 0, 0, len(optional), 0)
    assert is_signed_pe(Window(head + coff + optional, source="x.dll")) is is_signed


def library(*sections: bytes, signature: bytes = b"PE\0\0", content: bytes = b"") -> Window:
    head = b"MZ".ljust(60, b"\0") + struct.pack("<I", 64)
    coff = signature + struct.pack("<HHIIIHH", 0x8664, len(sections), 0, 0, 0, 4, 0) + b"head"
    return Window(head + coff + b"".join(sections) + content, source="x.dll")


def section(name: bytes, at: int, *, memory: int, file: int, flags: int = 0) -> bytes:
    return name.ljust(8, b"\0") + struct.pack("<6I2HI", memory, 0, file, at, 0, 0, 0, 0, flags)


def test_content_of_a_section_ends_with_its_memory_or_its_file() -> None:
    # Padded in the file, and longer in memory.
    at = 64 + 24 + 4 + 2 * 40
    rows = (
        section(b".text", at, memory=3, file=8, flags=0x20),
        section(b".data", at + 8, memory=100, file=8, flags=0x40),
    )
    text, data = read_pe_sections(library(*rows, content=b"codeCODEdataDATA"))
    assert (text.name, text.is_code, text.content.to_bytes()) == (".text", True, b"cod")
    assert (data.name, data.is_code, data.content.to_bytes()) == (".data", False, b"dataDATA")


@pytest.mark.parametrize("signature", [b"PE\0\1", b"OE\0\0", b"QE\0\0"])
def test_other_signature_is_refused_with_its_place(signature: bytes) -> None:
    with pytest.raises(BinaryFormatError, match=r"PE signature at offset 0x40: .* expected 0x4550"):
        list(read_pe_sections(library(signature=signature)))


def test_sections_larger_than_the_file_overlap() -> None:
    size = len(library(bytes(40), bytes(40)).to_bytes())
    whole = section(b"a", 0, memory=size, file=size)
    assert len(list(read_pe_sections(library(whole, section(b"b", 0, memory=0, file=9))))) == 2
    with pytest.raises(BinaryFormatError, match="more than the file, expected no overlaps"):
        list(read_pe_sections(library(whole, section(b"b", 0, memory=1, file=9))))
