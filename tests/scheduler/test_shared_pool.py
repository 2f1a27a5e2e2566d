from __future__ import annotations

import fcntl
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pool_samples import MB, budget

from archsplit.scheduler import shared_pool
from archsplit.scheduler.pool import ALL_MEMORY, Denied, PoolEntry, PoolRequest, WaitReason
from archsplit.scheduler.shared_pool import SharedPool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from archsplit.scheduler.pool import Grant

    Member = Callable[..., SharedPool]


@pytest.fixture
def member(tmp_path: Path) -> Iterator[Member]:
    """A member of the pool, as if in a process of its own: it opens all files itself."""
    pools: list[SharedPool] = []

    def make(slots: int = 2, *, limit: int | None = None) -> SharedPool:
        pools.append(SharedPool(tmp_path / "pool", slots, budget(tmp_path, limit=limit)))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


def granted(answer: Grant | Denied) -> Grant:
    assert not isinstance(answer, Denied)
    return answer


def why(answer: Grant | Denied) -> WaitReason:
    assert isinstance(answer, Denied)
    assert answer.retry is not None
    assert 0 < answer.retry <= 0.1
    return answer.reason


def test_members_share_the_slots(member: Member) -> None:
    one, other = member(), member()
    first, second = granted(one.acquire(PoolRequest(0))), granted(other.acquire(PoolRequest(0)))
    assert why(one.acquire(PoolRequest(0))) is WaitReason.SLOT
    second.release()
    third = granted(one.acquire(PoolRequest(0)))
    assert why(other.acquire(PoolRequest(0))) is WaitReason.SLOT
    first.release()
    third.release()
    granted(other.acquire(PoolRequest(0)))


def test_idle_slots_are_neither_held_nor_waited_for(member: Member) -> None:
    one, other = member(3), member(3)
    assert (one.idle_slots(), other.idle_slots()) == (3, 3)
    first, _ = granted(one.acquire(PoolRequest(0))), granted(other.acquire(PoolRequest(0)))
    assert (one.idle_slots(), other.idle_slots()) == (1, 1)
    granted(other.acquire(PoolRequest(0)))
    assert why(one.acquire(PoolRequest(0))) is WaitReason.SLOT
    first.release()
    # Only the one that waits may have it.
    assert (one.idle_slots(), other.idle_slots()) == (1, 0)


def test_long_waiting_member_runs_one_step(member: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    busy, small, third = member(2), member(2), member(2)
    held = [granted(busy.acquire(PoolRequest(0, urgency=9.0))) for _ in range(2)]
    assert why(small.acquire(PoolRequest(0))) is WaitReason.SLOT
    monkeypatch.setattr("archsplit.scheduler.shared_pool._LONGEST_WAIT_SECONDS", 0.0)
    first = granted(small.acquire(PoolRequest(100 * MB)))
    # One at a time, and others count its memory.
    assert why(small.acquire(PoolRequest(0))) is WaitReason.SLOT
    assert len(third.entries()) == 3
    monkeypatch.undo()
    first.release()
    # Each step of a small compilation would wait anew.
    second = granted(small.acquire(PoolRequest(0)))
    assert why(third.acquire(PoolRequest(0))) is WaitReason.SLOT
    # Only the end of an own step frees a slot.
    assert busy.acquire(PoolRequest(0)) == Denied(WaitReason.SLOT, None)
    for each in held:
        each.release()
    second.release()


def test_member_beyond_the_slots_still_waits_for_one(
    member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy, small = member(1), member(1)
    held = granted(busy.acquire(PoolRequest(0)))
    assert why(small.acquire(PoolRequest(0))) is WaitReason.SLOT
    monkeypatch.setattr("archsplit.scheduler.shared_pool._LONGEST_WAIT_SECONDS", 0.0)
    granted(small.acquire(PoolRequest(0)))
    # As many as there are slots, but not the one that the other has.
    assert why(small.acquire(PoolRequest(0))) is WaitReason.SLOT
    held.release()


def test_long_waiting_member_asks_more_rarely(
    member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy, waiting = member(1), member(1)
    held = granted(busy.acquire(PoolRequest(0)))
    answers = [waiting.acquire(PoolRequest(0))]
    monkeypatch.setattr("archsplit.scheduler.shared_pool._PATIENCE_SECONDS", 1e-9)
    answers.append(waiting.acquire(PoolRequest(0)))
    first, later = (each.retry or 0.0 for each in answers if isinstance(each, Denied))
    assert first < later <= 10 * first
    held.release()


def test_members_share_memory(member: Member) -> None:
    one, other = member(4, limit=1000), member(4, limit=1000)
    first = granted(one.acquire(PoolRequest(600 * MB)))
    refused = other.acquire(PoolRequest(500 * MB))
    assert isinstance(refused, Denied)
    assert (refused.reason, refused.short) == (WaitReason.MEMORY, 100 * MB)
    granted(other.acquire(PoolRequest(400 * MB)))
    first.update_resident(950 * MB)
    assert other.free_memory() == 50 * MB
    (row,) = (row for row in other.entries() if row.resident)
    assert (row.reserved, row.resident) == (600 * MB, 950 * MB)
    assert row.started == first.entry.started


def test_most_urgent_waiting_step_is_next(member: Member) -> None:
    holder, patient, urgent, newcomer = member(1), member(1), member(1), member(1)
    grant = granted(holder.acquire(PoolRequest(0)))
    assert why(patient.acquire(PoolRequest(0, urgency=1.0))) is WaitReason.SLOT
    assert why(urgent.acquire(PoolRequest(0, urgency=60.0))) is WaitReason.SLOT
    grant.release()
    assert why(patient.acquire(PoolRequest(0, urgency=1.0))) is WaitReason.TURN
    assert why(newcomer.acquire(PoolRequest(0, urgency=2.0))) is WaitReason.TURN
    grant = granted(urgent.acquire(PoolRequest(0, urgency=60.0)))
    assert why(patient.acquire(PoolRequest(0, urgency=1.0))) is WaitReason.SLOT
    # What one waits for may become more urgent.
    assert why(patient.acquire(PoolRequest(0, urgency=9.0))) is WaitReason.SLOT
    grant.release()
    assert why(newcomer.acquire(PoolRequest(0, urgency=2.0))) is WaitReason.TURN
    granted(patient.acquire(PoolRequest(0, urgency=9.0)))


def test_of_equally_urgent_ones_the_first_is_first(member: Member) -> None:
    holder, first, second = member(1), member(1), member(1)
    grant = granted(holder.acquire(PoolRequest(0)))
    assert why(first.acquire(PoolRequest(0))) is WaitReason.SLOT
    time.sleep(0.01)
    assert why(second.acquire(PoolRequest(0))) is WaitReason.SLOT
    grant.release()
    assert why(second.acquire(PoolRequest(0))) is WaitReason.TURN
    granted(first.acquire(PoolRequest(0)))


def test_stopped_process_blocks_no_other(member: Member) -> None:
    holder, stopped, other = member(1), member(1), member(1)
    grant = granted(holder.acquire(PoolRequest(0)))
    assert why(stopped.acquire(PoolRequest(0, urgency=99.0))) is WaitReason.SLOT
    grant.release()
    assert why(other.acquire(PoolRequest(0))) is WaitReason.TURN
    time.sleep(0.08)
    granted(other.acquire(PoolRequest(0)))


def test_killed_waiting_member_is_forgotten(member: Member, tmp_path: Path) -> None:
    pool = member(1)
    dead = tmp_path / "pool" / "waiting" / "00000000000000000001-1-1"
    dead.write_text("")
    granted(pool.acquire(PoolRequest(0)))
    assert not dead.exists()


def test_step_needing_all_memory_waits_and_blocks_new_steps(member: Member) -> None:
    one, other, third = member(4), member(4), member(4)
    first, second = granted(one.acquire(PoolRequest(1))), granted(one.acquire(PoolRequest(1)))
    assert why(other.acquire(PoolRequest(ALL_MEMORY))) is WaitReason.MEMORY
    # Though there are slots, no step starts any more.
    assert why(one.acquire(PoolRequest(1))) is WaitReason.MEMORY
    assert why(third.acquire(PoolRequest(1))) is WaitReason.MEMORY
    first.release()
    assert why(other.acquire(PoolRequest(ALL_MEMORY))) is WaitReason.MEMORY
    second.release()
    exclusive = granted(other.acquire(PoolRequest(ALL_MEMORY)))
    assert why(one.acquire(PoolRequest(1))) is WaitReason.MEMORY
    assert why(other.acquire(PoolRequest(1))) is WaitReason.MEMORY
    exclusive.release()
    granted(one.acquire(PoolRequest(1)))


def test_long_wait_for_memory_ends(member: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_pool, "_DRAIN_AFTER_SECONDS", 0.05)
    small, big = member(4, limit=1000), member(4, limit=1000)
    first, second = (
        granted(small.acquire(PoolRequest(400 * MB))),
        granted(small.acquire(PoolRequest(400 * MB))),
    )
    assert why(big.acquire(PoolRequest(900 * MB))) is WaitReason.MEMORY
    first.release()
    # For a while others may be quicker.
    first = granted(small.acquire(PoolRequest(400 * MB)))
    time.sleep(0.06)
    assert why(big.acquire(PoolRequest(900 * MB))) is WaitReason.MEMORY
    first.release()
    assert why(small.acquire(PoolRequest(400 * MB))) is WaitReason.MEMORY
    # The one that holds up the others may go on with what is small.
    granted(big.acquire(PoolRequest(50 * MB))).release()
    assert why(small.acquire(PoolRequest(400 * MB))) is WaitReason.MEMORY
    second.release()
    granted(big.acquire(PoolRequest(900 * MB)))
    granted(small.acquire(PoolRequest(50 * MB)))


def test_removed_folder_is_made_again(member: Member, tmp_path: Path) -> None:
    pool, other = member(2), member(2)
    granted(pool.acquire(PoolRequest(0)))
    granted(other.acquire(PoolRequest(0)))
    assert why(pool.acquire(PoolRequest(0))) is WaitReason.SLOT
    shutil.rmtree(tmp_path / "pool")
    assert why(pool.acquire(PoolRequest(0))) is WaitReason.TURN
    new = member(1)
    granted(new.acquire(PoolRequest(0)))


@pytest.mark.parametrize("mode", [0o755, 0o770])
def test_folder_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    (tmp_path / "pool").mkdir()
    (tmp_path / "pool").chmod(mode)
    with pytest.raises(PermissionError, match="not a private folder of this user"):
        SharedPool(tmp_path / "pool", 1, budget(tmp_path))


def test_a_link_to_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "pool").symlink_to(tmp_path / "real")
    with pytest.raises(PermissionError, match="not a private folder of this user"):
        SharedPool(tmp_path / "pool", 1, budget(tmp_path))


def test_slot_without_a_record_is_still_held(member: Member, tmp_path: Path) -> None:
    pool = member(3)
    granted(pool.acquire(PoolRequest(5))).release()
    with (tmp_path / "pool" / "slot-0").open("r+b") as file:
        file.truncate(0)
        fcntl.flock(file, fcntl.LOCK_EX)
        assert pool.entries() == [PoolEntry(0, 0, 0)]
        granted(pool.acquire(PoolRequest(0)))


def test_unrecorded_slot_is_still_held(member: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    pool, other = member(1), member(1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        granted(pool.acquire(PoolRequest(5)))
    assert why(other.acquire(PoolRequest(0))) is WaitReason.SLOT


def test_slot_without_contention_is_granted_at_once(member: Member) -> None:
    pool = member(16)
    seconds = []
    for _ in range(100):
        began = time.perf_counter()
        grant = granted(pool.acquire(PoolRequest(100 * MB)))
        grant.release()
        seconds.append(time.perf_counter() - began)
    assert statistics.median(seconds) < 0.02


MEMBER = Path(__file__).with_name("pool_member.py")


def start_member(folder: Path, slots: int, steps: int) -> subprocess.Popen[bytes]:
    argv = [sys.executable, str(MEMBER), str(folder), str(slots), str(steps)]
    return subprocess.Popen(argv)


def most_at_a_time(folder: Path) -> int:
    return max(map(int, (folder / "counts").read_text().split()))


def test_many_processes_never_run_more_than_there_are_slots(tmp_path: Path) -> None:
    members = [start_member(tmp_path, 2, 4) for _ in range(6)]
    assert [one.wait(timeout=120) for one in members] == [0] * 6
    assert len((tmp_path / "counts").read_text().split()) == 24
    assert most_at_a_time(tmp_path) == 2


def test_pool_recovers_from_killed_members(tmp_path: Path, member: Member) -> None:
    chance = random.Random(7)
    members = [start_member(tmp_path, 2, 2) for _ in range(20)]
    killed = chance.sample(members, 2)
    while len(list(tmp_path.glob("counts"))) == 0:
        time.sleep(0.01)
    for one in killed:
        time.sleep(0.1)
        one.send_signal(signal.SIGKILL)
    codes = [one.wait(timeout=120) for one in members]
    assert sorted(set(codes)) in ([-9, 0], [0])
    assert all(one.returncode == 0 for one in members if one not in killed)
    pool = member(2)
    granted(pool.acquire(PoolRequest(0)))
    granted(pool.acquire(PoolRequest(0)))
    assert list((tmp_path / "pool" / "waiting").iterdir()) == []
