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
from archsplit.wheels.diff import compare_streams
from changed_wheels import only, rewrite

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def between(left: bytes, right: bytes) -> str:
    return compare_streams(io.BytesIO(left), io.BytesIO(right))


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_bytes_before_the_first_difference_are_equal(left: bytes, right: bytes) -> None:
    found = between(left, right)
    assert bool(found) == (left != right)
    if found:
        at = int(found.split()[2])
        assert left[:at] == right[:at]
        assert left[at : at + 1] != right[at : at + 1]


def test_difference_after_the_first_block_has_its_place() -> None:
    left, right = bytearray(BLOCK + 100), bytearray(BLOCK + 100)
    right[BLOCK + 7] = 1
    assert between(bytes(left), bytes(right)) == (
        f"from byte {BLOCK + 7} on: 00 00 00 00 00 00 00 00 against 01 00 00 00 00 00 00 00"
    )


def test_end_of_a_stream_is_a_difference() -> None:
    assert between(b"abc", b"abcdef") == "from byte 3 on: the end against 64 65 66"
    assert between(b"", b"") == ""


def test_equal_wheels_are_reported_as_the_same(
    split: Path, packs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", "--bytes", str(split), str(packs)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert all(line.endswith(": the same bytes") for line in lines)
    wheel = only(split, "toy-2*")
    assert main(["diff", "--bytes", str(wheel), str(packs / wheel.name)]) == 0


def test_diff_lists_differing_bytes_and_unmatched_wheels(
    split: Path, packs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel = only(packs, "toy-2*")
    rewrite(wheel, lambda name, old: old + b"A = 1\n" if name == "toy/__init__.py" else old)
    gone = only(packs, "toy_cc80*")
    shutil.move(gone, packs / "toy_other-2.0-py3-none-any.whl")
    assert main(["diff", "--bytes", str(split), str(packs)]) == 9
    out = capsys.readouterr().out
    first = "toy/__init__.py: from byte 0 on: the end against 41 20 3d 20 31 0a;"
    assert f"{wheel.name}: {first} 0 against 6 bytes long" in out
    assert f"{gone.name}: only in {split}" in out
    assert f"toy_other-2.0-py3-none-any.whl: only in {packs}" in out


def test_diff_is_written_as_json(
    split: Path, packs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", "--bytes", "--json", str(split), str(packs)]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["schema"] == 1
    assert all(lines == [] for lines in content["differences"].values())


def test_diff_of_missing_wheels_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", "--bytes", str(tmp_path / "a.whl"), str(tmp_path / "b.whl")]) == 14
    assert "no such file: " in capsys.readouterr().err


def test_diff_without_a_pair_to_compare_is_an_error(
    split: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = ("--log", str(tmp_path / "log"))
    for words in ((split,), (split, split, split), (split, split, *log)):
        assert main(["diff", "--bytes", *map(str, words)]) == 2
        assert "--bytes needs two wheels or two folders" in capsys.readouterr().err
    left, right = tmp_path / "left", tmp_path / "right"
    left.mkdir()
    right.mkdir()
    assert main(["diff", "--bytes", str(left), str(right)]) == 14
    assert f"no wheel in {left} and {right}" in capsys.readouterr().err
    assert main(["diff", "--bytes", str(left), str(split)]) == 9
