from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from pool_samples import MB, budget

from archsplit.scheduler.pool import (
    ALL_MEMORY,
    Denied,
    LocalPool,
    PoolEntry,
    PoolRequest,
    WaitReason,
)
from archsplit.scheduler.pool_choice import TokenPool, find_pool, runtime_folder
from archsplit.scheduler.shared_pool import SharedPool

if TYPE_CHECKING:
    from pathlib import Path


def row(reserved: int, resident: int = 0) -> PoolEntry:
    return PoolEntry(reserved * MB, resident * MB, 1)


def test_step_fits_beside_the_others_expected_memory(tmp_path: Path) -> None:
    # 1000 are available, and 62 of them are kept back.
    machine = budget(tmp_path, available=1000)
    assert machine.shortage(500 * MB, [row(400)]) == 0
    assert machine.shortage(600 * MB, [row(400)]) == 62 * MB + MB // 2
    # What the other has already is no longer among the 1000.
    assert machine.shortage(600 * MB, [row(400, resident=300)]) == 0
    # One that has got more than it said takes nothing away.
    assert machine.shortage(900 * MB, [row(400, resident=700)]) == 0


def test_memory_limit_of_the_user_counts(tmp_path: Path) -> None:
    machine = budget(tmp_path, available=100_000, limit=1000)
    assert machine.total == 1000 * MB
    assert machine.shortage(500 * MB, [row(500)]) == 0
    assert machine.shortage(501 * MB, [row(500)]) == 1 * MB
    assert machine.shortage(500 * MB, [row(100, resident=600)]) == 100 * MB
    assert machine.free_memory([row(1, resident=900)]) == 100 * MB
    assert machine.free_memory([row(1, resident=1100)]) < 0


def test_step_without_others_always_fits(tmp_path: Path) -> None:
    assert budget(tmp_path, available=1, limit=1).shortage(ALL_MEMORY, []) == 0


def test_pool_limits_slots_and_memory_of_one_process(tmp_path: Path) -> None:
    pool = LocalPool(3, budget(tmp_path, available=10_000, limit=1000))
    first = pool.acquire(PoolRequest(400 * MB))
    assert not isinstance(first, Denied)
    refused = pool.acquire(PoolRequest(700 * MB))
    assert isinstance(refused, Denied)
    assert (refused.reason, refused.short) == (WaitReason.MEMORY, 100 * MB)
    assert refused.retry is not None
    second, third = pool.acquire(PoolRequest(100 * MB)), pool.acquire(PoolRequest(0))
    assert not isinstance(second, Denied)
    assert not isinstance(third, Denied)
    assert pool.idle_slots() == 0
    assert pool.acquire(PoolRequest(0)) == Denied(WaitReason.SLOT, None)
    third.release()
    assert pool.idle_slots() == 1
    first.update_resident(950 * MB)
    assert first.entry.resident == 950 * MB
    assert pool.free_memory() == 50 * MB
    assert sorted(each.reserved for each in pool.entries()) == [100 * MB, 400 * MB]
    first.release()
    second.release()
    assert pool.entries() == []
    assert not isinstance(pool.acquire(PoolRequest(ALL_MEMORY)), Denied)
    assert isinstance(pool.acquire(PoolRequest(1)), Denied)
    pool.close()
    assert pool.entries() == []


@pytest.mark.parametrize("kind", ["local", "shared"])
def test_a_pool_has_a_slot(tmp_path: Path, kind: str) -> None:
    machine = budget(tmp_path)
    with pytest.raises(ValueError, match="at least one slot"):
        LocalPool(0, machine) if kind == "local" else SharedPool(tmp_path / "p", 0, machine)


def test_without_make_the_users_slots_are_shared(tmp_path: Path) -> None:
    found = find_pool({}, jobs=3, memory=None, folder=tmp_path / "a" / "b")
    assert isinstance(found.pool, SharedPool)
    assert (found.pool.slots, found.notes) == (3, ())
    found.pool.close()


def test_unshareable_pool_is_local(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = find_pool({}, jobs=None, memory=1 << 30, folder=tmp_path / "file" / "pool")
    assert isinstance(found.pool, LocalPool)
    assert found.pool.slots == len(os.sched_getaffinity(0))
    (note,) = found.notes
    assert note.startswith("not shared with other processes: ")
    assert "Not a directory" in note
    found.pool.close()


def test_under_make_its_tokens_are_the_slots(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    flags = f" -j5 --jobserver-auth=fifo:{tmp_path / 'fifo'}"
    for jobs, slots in ((None, 5), (2, 2)):
        found = find_pool({"MAKEFLAGS": flags}, jobs=jobs, memory=None, folder=tmp_path / "pool")
        assert isinstance(found.pool, TokenPool)
        assert (found.pool.slots, found.notes) == (slots, ())
        found.pool.close()


def test_unusable_jobserver_is_a_note(tmp_path: Path) -> None:
    flags = "-j5 --jobserver-auth=-2,-2"
    found = find_pool({"MAKEFLAGS": flags}, jobs=2, memory=None, folder=tmp_path / "pool")
    assert isinstance(found.pool, SharedPool)
    assert found.notes == ("make's jobserver -2,-2 can't be used: make has switched it off",)
    found.pool.close()


def test_processes_of_a_user_meet_in_one_folder() -> None:
    assert str(runtime_folder({"XDG_RUNTIME_DIR": "/run/user/7"})) == "/run/user/7/archsplit"
    assert str(runtime_folder({})) == f"/tmp/archsplit-{os.getuid()}"
