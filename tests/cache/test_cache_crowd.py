"""Many processes, some of them killed; entries that were damaged: nothing wrong comes out."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from compile_crowd import Crowd
from compile_crowd import damage as damage_store
from fill_store import entry

from archsplit.cache.cache import Cache
from archsplit.cache.config import Settings
from archsplit.cache.local import LocalStore, verify_store

if TYPE_CHECKING:
    from archsplit.nvcc.toolkit import Toolkit

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
        found = cache.find(entry(number).components)
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
    assert verify_store(store).damaged == ()
    assert len(list(store.all_keys())) == count + 1
    check(folder, count)
    damaged = damage(folder)
    check(folder, count)
    # What was looked at is gone; the manifest wasn't.
    assert len(verify_store(store).damaged) <= 1
    assert len(list(store.all_keys())) == count + 1 - damaged
    fill(folder, processes=2, count=count)
    assert verify_store(store).damaged == ()
    assert len(list(store.all_keys())) == count + 1


def test_few_processes_share_one_cache(tmp_path: Path) -> None:
    crowd(tmp_path, processes=8, count=40)


@pytest.mark.stress
def test_many_processes_share_one_cache(tmp_path: Path) -> None:
    crowd(tmp_path, processes=50, count=400)


def objects(crowd: Crowd) -> dict[int, bytes]:
    found = crowd.compiled(crowd.store.parent / "k.o", cache="on")
    return {number: made for number, (made, _) in found.items()}


def compile_crowd(folder: Path, nvcc: Path, *, processes: int, sources: int) -> None:
    """Whatever was killed or damaged, a build from the store is a fresh one."""
    crowd = Crowd(folder=folder / "src", store=folder / "store", nvcc=nvcc, sources=sources)
    crowd.lay_out()
    crowd.fill(processes, outputs=folder / "out", seed=processes)
    fresh = crowd.compiled(folder / "fresh.o", cache="off")
    expected = {number: made for number, (made, _) in fresh.items()}
    for path in (folder / "out").glob("*.o"):
        # A killed process may have left a part of one, as nvcc would.
        if path.stat().st_size:
            assert path.read_bytes() == expected[int(path.stem.partition("-")[2])]
    store = LocalStore(folder / "store", warn=pytest.fail)
    assert verify_store(store).damaged == ()
    assert objects(crowd) == expected
    # All of it is in the store now.
    known = crowd.compiled(folder / "k.o", cache="on")
    assert all("archsplit: cache hit" in said for _, said in known.values())
    assert damage_store(folder / "store", seed=processes)
    assert objects(crowd) == expected
    verify_store(store)
    assert objects(crowd) == expected
    assert verify_store(store).damaged == ()


@pytest.mark.nvcc
def test_few_compilations_share_one_cache(tmp_path: Path, small_toolkit: Toolkit) -> None:
    compile_crowd(tmp_path, small_toolkit.nvcc, processes=6, sources=2)


@pytest.mark.stress
@pytest.mark.nvcc
def test_many_compilations_share_one_cache(tmp_path: Path, small_toolkit: Toolkit) -> None:
    compile_crowd(tmp_path, small_toolkit.nvcc, processes=50, sources=8)
