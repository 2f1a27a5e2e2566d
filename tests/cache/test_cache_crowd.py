"""Many processes, some of them killed; entries that were damaged: nothing wrong comes out."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fill_store import entry

from splitter.cache.cache import Cache
from splitter.cache.checking import check_store
from splitter.cache.settings import Settings
from splitter.cache.store import Kind, LocalStore

SCRIPT = Path(__file__).with_name("fill_store.py")


def fill(folder: Path, *, processes: int, count: int) -> None:
    """Fill a store from many processes at once, of which a tenth is killed at random."""
    rng = random.Random(4)
    started = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(folder), str(seed), str(count)],
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed in range(processes)
    ]
    doomed = started[: max(1, processes // 10)]
    for process in doomed:
        time.sleep(rng.uniform(0.02, 0.2))
        process.kill()
    for process in started:
        said = process.communicate()[1]
        assert process in doomed or process.returncode == 0, said


def check(folder: Path, count: int) -> None:
    """Whatever is found is what a fresh run would make."""
    said: list[str] = []
    cache = Cache(Settings(folder=folder), warn=said.append)
    for number in range(count):
        found = cache.find(entry(number).parts)
        assert found is None or found.entry == entry(number)


def damage(folder: Path) -> int:
    """Cut every third entry, and flip a bit in every fourth."""
    rng = random.Random(5)
    paths = sorted((folder / "ac").rglob("?" * 64))
    chosen = [path for number, path in enumerate(paths) if number % 3 == 0 or number % 4 == 0]
    for number, path in enumerate(chosen):
        blob = bytearray(path.read_bytes())
        if number % 2:
            del blob[rng.randrange(len(blob)) :]
        else:
            blob[rng.randrange(len(blob))] ^= 1 << rng.randrange(8)
        path.write_bytes(blob)
    return len(chosen)


def crowd(folder: Path, *, processes: int, count: int) -> None:
    fill(folder, processes=processes, count=count)
    store = LocalStore(folder, warn=pytest.fail)
    assert check_store(store).damaged == ()
    assert len(list(store.keys(Kind.ACTION))) == count + 1
    check(folder, count)
    damaged = damage(folder)
    check(folder, count)
    # What was looked at is gone; the manifest wasn't.
    assert len(check_store(store).damaged) <= 1
    assert len(list(store.keys(Kind.ACTION))) == count + 1 - damaged
    fill(folder, processes=2, count=count)
    assert check_store(store).damaged == ()
    assert len(list(store.keys(Kind.ACTION))) == count + 1


def test_a_small_crowd(tmp_path: Path) -> None:
    crowd(tmp_path, processes=8, count=40)


@pytest.mark.stress
def test_a_crowd(tmp_path: Path) -> None:
    crowd(tmp_path, processes=50, count=400)
