from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from archsplit.errors import InputError
from archsplit.formats.reader import open_file

if TYPE_CHECKING:
    from pathlib import Path


def test_gives_the_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    window = open_file(path)
    assert (window.to_bytes(), window.source, window.start) == (b"content", str(path), 0)


def test_an_empty_file_is_an_empty_window(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert len(open_file(tmp_path / "empty")) == 0


def test_a_huge_file_costs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    assert open_file(path).part((1 << 40) - 4, 4, "end").to_bytes() == bytes(4)


def test_a_part_outlives_the_window(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    part = open_file(path).part(3, 4, "tail")
    path.unlink()
    assert part.to_bytes() == b"tent"


def test_irregular_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, why in (("", "not a regular"), ("pipe", "not a regular"), ("none", "No such file")):
        with pytest.raises(InputError, match=why):
            open_file(tmp_path / path)
