from __future__ import annotations

from struct import Struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archsplit.errors import BinaryFormatError
from archsplit.formats.reader import StringTable, Window

TEN = Window(bytes(range(10)), source="ten", start=100)


def test_reads_little_endian_numbers() -> None:
    assert TEN.u32(1, "number") == 0x04030201
    assert TEN.u64(0, "number") == 0x0706050403020100
    assert TEN.unpack(Struct("<HB"), 8 - 1, "record") == (0x0807, 9)
    assert list(TEN.records(Struct("<HHB"), "records")) == [
        (0x0100, 0x0302, 4),
        (0x0605, 0x0807, 9),
    ]


def test_window_copies_no_bytes() -> None:
    data = bytearray(b"abc")
    window = Window(memoryview(data), source="shared").part(1, 2, "tail")
    data[2] = ord("z")
    assert window.to_bytes() == b"bz"


def test_parts_have_their_offset_in_the_file() -> None:
    part = TEN.part(4, 5, "outer").part(1, 2, "inner")
    assert (part.start, part.to_bytes(), len(part)) == (105, b"\5\6", 2)
    assert TEN.at(105, 2, "same").data == part.data


@given(st.integers(-5, 15), st.integers(-5, 15))
def test_a_part_is_inside_or_refused(offset: int, size: int) -> None:
    inside = offset >= 0 and size >= 0 and offset + size <= 10
    if inside:
        assert TEN.part(offset, size, "part").data == bytes(range(10))[offset : offset + size]
    else:
        with pytest.raises(BinaryFormatError):
            TEN.part(offset, size, "part")


def test_an_error_has_place_found_and_expected() -> None:
    with pytest.raises(BinaryFormatError) as caught:
        TEN.u64(4, "entry")
    place, expected = "ten: entry at offset 0x68", "a range in 0x64 to 0x6e"
    assert str(caught.value) == f"{place}: found 0x68 to 0x70, expected {expected}"


def test_refuses_half_a_record() -> None:
    with pytest.raises(BinaryFormatError, match="found 10 bytes, expected a multiple of 4"):
        TEN.records(Struct("<I"), "table")


def _strings(table: bytes, limit: int = 10_000) -> StringTable:
    return StringTable(Window(table, source="names"), limit=limit)


@pytest.mark.parametrize("size", [0, 1, 255, 256, 257, 5000])
def test_names_of_any_length_are_read(size: int) -> None:
    assert _strings(b"\0x" + b"n" * size + b"\0rest\0").text(2, "name") == "n" * size


def test_name_outside_utf8_survives() -> None:
    text = _strings(b"\xff\xfe\0").text(0, "name")
    assert text.encode("utf-8", "surrogateescape") == b"\xff\xfe"


@pytest.mark.parametrize("table", [b"", b"open", b"n" * 300])
def test_a_name_must_end(table: bytes) -> None:
    with pytest.raises(BinaryFormatError, match="no NUL byte"):
        _strings(table).text(0, "name")


def test_a_name_must_start_in_the_table() -> None:
    with pytest.raises(BinaryFormatError):
        _strings(b"name\0").text(6, "name")


def test_endlessly_repeated_names_are_refused() -> None:
    strings = _strings(b"n" * 100 + b"\0", limit=1000)
    assert sum(len(strings.text(0, "name")) for _ in range(10)) == 1000
    with pytest.raises(BinaryFormatError, match="repeat without end"):
        strings.text(0, "name")
