from __future__ import annotations

import csv
import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from installer.records import RecordEntry, parse_record_file

from archsplit.errors import WheelError
from archsplit.wheels.record import (
    ALGORITHMS,
    MAX_COMPONENT_BYTES,
    MAX_FOLDERS,
    MAX_NAME_BYTES,
    RecordRow,
    decode_record,
    duplicate_names,
    encode_record,
    member_fault,
)
from archsplit.wheels.writer import WheelMember

names = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc"], exclude_characters="\\"),
    min_size=1,
    max_size=30,
).filter(lambda name: member_fault(name) is None)
hashed = st.sampled_from(sorted(ALGORITHMS)).flatmap(
    lambda algorithm: st.builds(
        RecordRow,
        path=names,
        digest=st.binary(min_size=ALGORITHMS[algorithm], max_size=ALGORITHMS[algorithm]),
        size=st.integers(0, 1 << 62),
        algorithm=st.just(algorithm),
    )
)
entries = st.lists(hashed | st.builds(RecordRow, path=names), max_size=8)


@given(entries)
def test_record_reads_back(rows: list[RecordRow]) -> None:
    assert decode_record(encode_record(rows)) == tuple(rows)


@given(entries)
def test_installer_reads_the_same(rows: list[RecordRow]) -> None:
    lines = encode_record(rows).decode().split("\n")[:-1]
    for row, elements in zip(rows, parse_record_file(lines), strict=True):
        theirs = RecordEntry.from_elements(*elements)
        assert elements == (row.path, row.hash_text, "" if row.size is None else str(row.size))
        assert theirs.size == row.size
        assert (theirs.hash_ is None) == (row.digest is None)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    try:
        rows = decode_record(content)
    except WheelError:
        return
    assert decode_record(encode_record(rows)) == rows


def test_a_hash_is_url_safe_base64_without_padding() -> None:
    entry = RecordRow(path="a", digest=bytes([0xFB, 0xFF, 0xFF] * 10 + [0, 1]), size=3)
    assert entry.hash_text == "sha256=" + "-___" * 10 + "AAE"
    assert encode_record([entry]) == f"a,{entry.hash_text},3\n".encode()


SOUND = RecordRow(path="a", digest=bytes(32), size=1).hash_text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff,,\n", "not CSV in UTF-8"),
        (b'"a,,\n', "not CSV in UTF-8"),
        (b"a,b\n", "2 columns"),
        (b"a,,,\n", "4 columns"),
        (b"\n", "0 columns"),
        (b"a,,-1\n", "can't have '-1' bytes"),
        (b"a,,1_0\n", "can't have '1_0' bytes"),
        ("a,,٣\n".encode(), "can't have '٣' bytes"),
        (b"../a,,\n", "'..' component"),
        (b"/a,,\n", "absolute"),
        (f"a,{SOUND}=,1\n".encode(), "without padding"),
        (f"a,{SOUND[:-1]},1\n".encode(), "31 bytes of sha256"),
        (f"a,{SOUND[:-2]},1\n".encode(), "without padding"),
        (f"a,{SOUND[:-1]}B,1\n".encode(), "without padding"),
        (b"a,md5=1B2M2Y8AsgTpgAmY7PhCfg,0\n", "16 bytes of md5"),
        (b"a,nonsense,0\n", "without padding"),
        (f"a,{SOUND.replace('A', '+')},1\n".encode(), "URL-safe"),
    ],
)
def test_invalid_row_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(WheelError, match=re.escape(message)):
        decode_record(content)


def test_all_wrong_rows_are_listed() -> None:
    with pytest.raises(WheelError) as caught:
        decode_record(b"a,,\nb\n../c,,\nd,,x\n")
    assert re.findall(r"row (\d)", str(caught.value)) == ["2", "3", "4"]


def test_csv_reads_quoted_names() -> None:
    names = ["a,b", 'a"b', "a 'b'", "é", " a"]
    text = encode_record(RecordRow(path=name) for name in names).decode()
    assert [row[0] for row in csv.reader(io.StringIO(text))] == names


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("", "empty"),
        ("a//b", "empty"),
        ("a/", "empty"),
        ("./a", "'.'"),
        ("a/.", "'.'"),
        ("a/../b", "'..'"),
        ("..", "'..'"),
        ("/a", "absolute"),
        ("C:/a", "absolute"),
        ("C:a", "absolute"),
        ("a\\b", "backslash"),
        ("a\nb", "control"),
        ("a\0b", "control"),
        ("a\x7f", "control"),
        ("\udcff", "Unicode"),
        ("é" * 128, "too long"),
        ("/".join(["a" * 200] * 21), "too long"),
        ("a/" * (MAX_FOLDERS + 1) + "a", "in more than 256 folders"),
    ],
)
def test_invalid_member_names_are_refused(name: str, fault: str) -> None:
    assert fault in (member_fault(name) or "")
    with pytest.raises(WheelError, match="can't be a member"):
        WheelMember(name=name, content=b"")


@pytest.mark.parametrize(
    "name",
    [
        "a",
        "a/b.c",
        "...",
        "a/..b/.c",
        "é",
        "a b, c",
        "a" * MAX_COMPONENT_BYTES,
        ("a" * 199 + "/") * 17 + "a" * (MAX_NAME_BYTES - 3400),
        "a/" * MAX_FOLDERS + "a",
    ],
)
def test_valid_member_names_are_accepted(name: str) -> None:
    assert member_fault(name) is None


@pytest.mark.parametrize("mode", [0o600, 0o777, 0o100644])
def test_other_modes_are_refused(mode: int) -> None:
    with pytest.raises(WheelError, match="neither 644 nor 755"):
        WheelMember(name="a", content=b"", mode=mode)


def test_colliding_names_are_found() -> None:
    assert duplicate_names(["a/b", "c", "a/b/d", "c", "e/f"]) == [
        "c: occurs 2 times",
        "a/b: is a file, and a folder of others",
    ]
    assert duplicate_names(["a", "ab/c", "ab/d"]) == []
    assert duplicate_names(["a", "a-b", "a.b/c", "a/b"]) == ["a: is a file, and a folder of others"]
