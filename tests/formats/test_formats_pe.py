"""Headers of Windows libraries, as the format's specification lays them out."""

from __future__ import annotations

import struct

import pytest

from archsplit.formats.libraries import is_signed_pe
from archsplit.formats.reader import Window


@pytest.mark.parametrize(
    ("optional", "is_signed"),
    [
        (b"", False),
        # An unknown kind of header, and one that ends before the directories.
        (struct.pack("<H", 0x107) + bytes(200), False),
        (struct.pack("<H", 0x20B) + bytes(100), False),
        (struct.pack("<H", 0x20B).ljust(112 + 36, b"\0") + struct.pack("<I", 8), True),
        (struct.pack("<H", 0x10B).ljust(96 + 36, b"\0") + struct.pack("<I", 8), True),
        (struct.pack("<H", 0x10B).ljust(96 + 40, b"\0"), False),
    ],
)
def test_both_kinds_of_headers_are_read(optional: bytes, *, is_signed: bool) -> None:
    head = b"MZ".ljust(60, b"\0") + struct.pack("<I", 64)
    coff = b"PE\0\0" + struct.pack("<HHIIIHH", 0x8664, 0, 0, 0, 0, len(optional), 0)
    assert is_signed_pe(Window(head + coff + optional, source="x.dll")) is is_signed
