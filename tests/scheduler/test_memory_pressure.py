"""The scheduler against the real OOM killer, in a cgroup with a limit, on a small scale."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

MB = 1 << 20
LIMIT = 800 * MB
SIZE = 300
COUNT = 8
V1 = Path("/sys/fs/cgroup/memory")
V2 = Path("/sys/fs/cgroup")


def limited(folder: Path) -> Path:
    """A new cgroup with a limit of 800 MB, and no swap where that can be said."""
    folder.mkdir()
    try:
        if (folder / "memory.limit_in_bytes").exists():
            (folder / "memory.limit_in_bytes").write_text(str(LIMIT))
        else:
            (folder / "memory.max").write_text(str(LIMIT))
            if (folder / "memory.swap.max").exists():
                (folder / "memory.swap.max").write_text("0")
    except OSError:
        folder.rmdir()
        raise
    return folder


@pytest.fixture
def group() -> Iterator[Path]:
    parent = V1 if (V1 / "memory.limit_in_bytes").exists() else V2
    try:
        folder = limited(parent / f"archsplit-test-{os.getpid()}")
    except OSError as error:
        pytest.skip(f"no cgroup with a memory limit can be made under {parent}: {error.strerror}")
    yield folder
    while (folder / "cgroup.procs").read_text():
        # The kernel is still taking its processes apart.
        time.sleep(0.05)
    folder.rmdir()


def outcome(group: Path, how: str, *, guess: int) -> list[object]:
    script = Path(__file__).with_name("memory_pressure.py")
    argv = [sys.executable, str(script), str(group), how, str(SIZE), str(guess), str(COUNT)]
    done = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=120)
    rows: list[object] = json.loads(done.stdout)
    return rows


def kills(group: Path) -> int:
    name = "memory.oom_control" if group.is_relative_to(V1) else "memory.events"
    words = (group / name).read_text().split()
    return int(words[words.index("oom_kill") + 1])


def test_steps_started_at_once_are_killed_for_memory(group: Path) -> None:
    codes = outcome(group, "at once", guess=0)
    assert -9 in codes
    assert kills(group) > 0


@pytest.mark.parametrize(
    "guess", [0, 10], ids=["nothing is known", "the guess is thirty times too small"]
)
def test_scheduler_finishes_all_steps_without_needless_kills(group: Path, guess: int) -> None:
    rows = outcome(group, "scheduled", guess=guess)
    assert len(rows) == COUNT
    for row in rows:
        assert isinstance(row, list)
        returncode, _, peak = row
        assert returncode == 0
        assert peak > SIZE * MB
    # Where the guess is that wrong, a busy machine may be quicker than the watch, once.
    assert kills(group) <= (0 if guess == 0 else 1)
