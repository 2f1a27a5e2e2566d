"""Steps that the watchdog kills before the OOM killer does, with a fake pool and programs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from scheduler_samples import MB

from archsplit.scheduler.executor import MemoryWatchdog, RunningTask
from archsplit.scheduler.pool import Denied, Grant, PoolEntry, PoolRequest

if TYPE_CHECKING:
    from archsplit.system.process import CompletedProcess


@dataclass
class FakePool:
    free: int = 10_000 * MB
    theirs: list[PoolEntry] = field(default_factory=list)
    grants: list[Grant] = field(default_factory=list)
    slots: int = 8

    def acquire(self, request: PoolRequest) -> Grant | Denied:
        raise NotImplementedError

    def idle_slots(self) -> int:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def free_memory(self) -> int:
        return self.free

    def entries(self) -> list[PoolEntry]:
        return [*self.theirs, *(grant.entry for grant in self.grants)]


@dataclass
class FakeProgram:
    memory: int = 0
    killed: bool = False

    def wait(self) -> CompletedProcess:
        raise NotImplementedError

    def kill(self, *, grace: float = 0.5) -> None:
        assert grace == 0
        self.killed = True

    def resident_memory(self) -> int:
        return self.memory


class Scene:
    """Steps that started one after the other, with 100 MB reserved for each."""

    def __init__(self, count: int, *, first: int = 1) -> None:
        self.pool = FakePool()
        self.watch = MemoryWatchdog(self.pool)
        self.programs = [FakeProgram() for _ in range(count)]
        self.active = []
        for number, program in enumerate(self.programs):
            grant = Grant(PoolEntry(100 * MB, 0, first + number), release=pytest.fail)
            self.pool.grants.append(grant)
            self.active.append(
                RunningTask(
                    number, program, grant, slot=number, cores=1, started=0.0, memory=100 * MB
                )
            )

    def look(self, now: float, *megabytes: int, room: int) -> list[int]:
        """Look, when the steps have that much; return which have been killed by now."""
        for program, size in zip(self.programs, megabytes, strict=True):
            program.memory = size * MB
        self.pool.free = room * MB
        self.watch.check(now, self.active)
        return [number for number, program in enumerate(self.programs) if program.killed]


def test_no_step_is_killed_while_memory_is_free() -> None:
    scene = Scene(3)
    assert scene.look(1.0, 90, 90, 90, room=5000) == []
    assert [grant.entry.resident for grant in scene.pool.grants] == [90 * MB] * 3
    assert [one.peak_memory for one in scene.active] == [90 * MB] * 3


def test_the_youngest_goes_first_and_as_many_as_it_takes() -> None:
    scene = Scene(4)
    # 50 MB are missing; 80 will be there when the youngest is gone.
    assert scene.look(1.0, 80, 80, 80, 80, room=-50) == [3]
    assert scene.look(2.0, 80, 80, 80, 80, room=-50) == [3]
    assert scene.look(3.0, 80, 80, 80, 80, room=-170) == [1, 2, 3]


def test_the_last_one_is_spared() -> None:
    scene = Scene(1)
    assert scene.look(1.0, 5000, room=-1000) == []


def test_oldest_step_of_all_processes_is_spared() -> None:
    scene = Scene(2, first=10)
    scene.pool.theirs = [PoolEntry(100 * MB, 0, 1)]
    assert scene.look(1.0, 80, 80, room=-500) == [0, 1]


def test_younger_step_of_another_process_is_killed_first() -> None:
    scene = Scene(2)
    scene.pool.theirs = [PoolEntry(100 * MB, 0, 99)]
    assert scene.look(1.0, 80, 80, room=-10) == []
    assert scene.look(1.2, 80, 80, room=-10) == []
    assert scene.look(1.4, 80, 80, room=-10) == [1]
    # Once there was room, patience begins anew.
    scene = Scene(2)
    scene.pool.theirs = [PoolEntry(100 * MB, 0, 99)]
    assert scene.look(1.0, 80, 80, room=-10) == []
    assert scene.look(1.2, 80, 80, room=10) == []
    assert scene.look(1.4, 80, 80, room=-10) == []


def test_step_beyond_its_reservation_is_seen_early() -> None:
    scene = Scene(2)
    assert scene.look(1.0, 50, 50, room=900) == []
    # 2 GB a second more than was reserved: 300 MB until anything can be done about it.
    assert scene.look(1.1, 50, 250, room=350) == []
    assert scene.look(1.2, 50, 450, room=250) == [1]


def test_step_of_predicted_growth_is_not_killed() -> None:
    scene = Scene(2)
    assert scene.look(1.0, 0, 0, room=120) == []
    assert scene.look(1.01, 99, 99, room=1) == []


@pytest.mark.parametrize(
    ("room", "seconds"), [(100_000, 0.5), (200, 0.0262), (0, 0.01), (-5, 0.01)]
)
def test_next_check_comes_sooner_with_less_room(room: int, seconds: float) -> None:
    scene = Scene(2)
    scene.look(1.0, 0, 0, room=room)
    assert scene.watch.next_check == pytest.approx(1.0 + seconds, abs=1e-3)
    scene.watch.check_soon(0.5)
    assert scene.watch.next_check <= 0.53
