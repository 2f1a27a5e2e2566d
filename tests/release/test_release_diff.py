"""Differing bytes of two wheels, and ``archsplit diff --bytes``."""

from __future__ import annotations

import io
import json
import shutil
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from archsplit.cli.main import main
from archsplit.system.units import BLOCK
from archsplit.wheels.diff import JOINED_BELOW, MAX_RANGES, ByteRanges, compare_streams
from changed_wheels import only, rewrite

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def between(left: bytes, right: bytes) -> ByteRanges | None:
    return compare_streams(io.BytesIO(left), io.BytesIO(right))


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_what_is_in_no_range_is_the_same(left: bytes, right: bytes) -> None:
    found = between(left, right)
    if found is None:
        assert left == right
        return
    assert left != right
    assert found.sizes == (len(left), len(right))
    covered = {index for first, after in found.ranges for index in range(first, after)}
    for index in range(max(len(left), len(right))):
        if left[index : index + 1] != right[index : index + 1]:
            assert index in covered
    for first, after in found.ranges:
        assert left[first : first + 1] != right[first : first + 1]
        assert left[after - 1 : after] != right[after - 1 : after]


def test_ranges_are_told_with_their_ends() -> None:
    left, right = bytearray(BLOCK + 100), bytearray(BLOCK + 100)
    right[7] = right[1000] = 1
    right[1000 + JOINED_BELOW] = 2  # so near that it is the same range
    right[BLOCK - 1] = right[BLOCK] = 3  # over the end of what is read at once
    assert str(between(bytes(left), bytes(right))) == (
        "from byte 7 on: 00 00 00 00 00 00 00 00 against 01 00 00 00 00 00 00 00;"
        f" bytes 7, 1000-{1000 + JOINED_BELOW}, {BLOCK - 1}-{BLOCK}"
    )


def test_many_ranges_are_counted_and_too_many_are_not() -> None:
    step = 4 * JOINED_BELOW
    size = (MAX_RANGES + 10) * step
    some, many = bytearray(size), bytearray(size)
    for number in range(6):
        some[number * step] = 1
    for number in range(MAX_RANGES + 5):
        many[number * step] = 1
    assert str(between(bytes(size), bytes(some))).endswith(
        "bytes 0, 64, 128, 192 and 2 more ranges"
    )
    found = between(bytes(size), bytes(many))
    assert found is not None
    assert not found.is_complete
    assert str(found).endswith("more than 1000 ranges of bytes, the first 0, 64, 128, 192")


def test_an_end_is_a_difference() -> None:
    assert str(between(b"abc", b"abcdef")) == (
        "from byte 3 on: the end against 64 65 66; bytes 3-5; 3 against 6 bytes long"
    )
    assert between(b"", b"") is None


def test_the_same_wheels(split: Path, packs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "--bytes", str(split), str(packs)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert all(line.endswith(": the same bytes") for line in lines)
    wheel = only(split, "toy-2*")
    assert main(["diff", "--bytes", str(wheel), str(packs / wheel.name)]) == 0


def test_members_and_bytes_that_differ(
    split: Path, packs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel = only(packs, "toy-2*")
    rewrite(wheel, lambda name, old: old + b"A = 1\n" if name == "toy/__init__.py" else old)
    gone = only(packs, "toy_cc80*")
    shutil.move(gone, packs / "toy_other-2.0-py3-none-any.whl")
    assert main(["diff", "--bytes", str(split), str(packs)]) == 9
    out = capsys.readouterr().out
    first = "toy/__init__.py: from byte 0 on: the end against 41 20 3d 20 31 0a; bytes 0-5;"
    assert f"{wheel.name}: {first} 0 against 6 bytes long" in out
    assert f"{gone.name}: only in {split}" in out
    assert f"toy_other-2.0-py3-none-any.whl: only in {packs}" in out


def test_as_json(split: Path, packs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "--bytes", "--json", str(split), str(packs)]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["schema"] == 1
    assert all(lines == [] for lines in content["differences"].values())


def test_what_is_no_wheel(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "--bytes", str(tmp_path / "a.whl"), str(tmp_path / "b.whl")]) == 14
    assert "no such file: " in capsys.readouterr().err
