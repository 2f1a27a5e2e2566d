"""Scratch files in memory and on the disk, and the space that is given back."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from archsplit.system.scratch import ScratchFiles, free_ranges

if TYPE_CHECKING:
    from pathlib import Path

SIZE = 1 << 20


def test_a_taken_path_leaves_no_descriptor_open(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    before = len(os.listdir("/proc/self/fd"))
    with ScratchFiles(tmp_path, memory=SIZE) as scratch:
        assert not scratch.create("a", SIZE).is_symlink()
        assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("memory", [SIZE, 0])
def test_a_file_has_a_path_for_every_reader(tmp_path: Path, memory: int) -> None:
    with ScratchFiles(tmp_path, memory=memory) as scratch:
        path = scratch.create("a", SIZE)
        path.write_bytes(b"a" * SIZE)
        assert path.is_symlink() == bool(memory)
        assert path.read_bytes() == b"a" * SIZE
        # Another process writes to it.
        subprocess.run(["dd", "if=/dev/zero", f"of={path}", "bs=1", "count=1"], check=True)
        assert path.stat().st_size == 1
        scratch.remove(path)
        assert not path.exists()
    assert list(tmp_path.iterdir()) == []


def test_the_memory_has_a_limit_and_is_given_back(tmp_path: Path) -> None:
    with ScratchFiles(tmp_path, memory=SIZE) as scratch:
        first = scratch.create("a", SIZE)
        second = scratch.create("b", 1)
        assert (first.is_symlink(), second.is_symlink()) == (True, False)
        scratch.remove(first)
        assert scratch.create("c", SIZE).is_symlink()
    assert not (tmp_path / "c").is_symlink()


def test_one_short_lived_file_at_a_time_exceeds_the_limit(tmp_path: Path) -> None:
    with ScratchFiles(tmp_path, memory=SIZE) as scratch:
        # Within the limit it counts like any other.
        counted = scratch.create_short_lived("a", SIZE)
        first = scratch.create_short_lived("b", 2 * SIZE)
        assert [one.is_symlink() for one in (counted, first)] == [True, True]
        assert not scratch.create("d", 1).is_symlink()
        with ThreadPoolExecutor(1) as other:
            waiting = other.submit(scratch.create_short_lived, "c", 2 * SIZE)
            assert not waiting.done()
            scratch.remove(first)
            assert waiting.result().is_symlink()
        assert not scratch.create("e", 1).is_symlink()
    assert not any(one.is_symlink() for one in tmp_path.iterdir())


@pytest.mark.parametrize("memory", [SIZE, 0])
def test_freed_ranges_take_no_space_and_leave_the_rest(tmp_path: Path, memory: int) -> None:
    with ScratchFiles(tmp_path, memory=memory) as scratch:
        path = scratch.create("a", SIZE)
        path.write_bytes(b"a" * SIZE)
        before = path.stat().st_blocks
        free_ranges(path, [(100, SIZE // 2), (SIZE - 10, 5)])
        content = path.read_bytes()
        assert content[:100] == b"a" * 100
        assert not content[100 : 100 + SIZE // 2].strip(b"\0")
        assert content[100 + SIZE // 2 : -10] == b"a" * (SIZE // 2 - 110)
        assert content[-10:] == b"\0" * 5 + b"a" * 5
        assert path.stat().st_blocks < before * 0.6
