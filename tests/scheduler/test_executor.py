"""Steps that something else than this machine's child processes runs."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from scheduler_samples import step

from archsplit.scheduler.executor import DaemonThreads
from archsplit.scheduler.graph import Graph, Step
from archsplit.scheduler.pool import (
    ALL_MEMORY,
    Denied,
    LocalPool,
    MixedPool,
    PoolEntry,
    PoolRequest,
    WaitReason,
)
from archsplit.scheduler.runner import RunOptions, run_graph
from archsplit.system.process import Command, CompletedProcess, SubprocessRunner
from archsplit.system.terminal import SilentProgress

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.scheduler.executor import Ended
    from archsplit.scheduler.outcome import Outcome
    from archsplit.scheduler.pool import Grant


class FakeStep:
    def kill(self, *, grace: float = 0.0) -> None:
        del grace

    def resident_memory(self) -> int:
        return 0


class FakeExecutor:
    """Ends each step as it starts; ``bad…`` steps fail with 137, as after a lack of memory."""

    is_local = False

    def __init__(self) -> None:
        self.started: list[str] = []
        self.is_closed = False
        self.moved = 0

    def start(self, step: Step, *, cores: int, ended: Ended) -> FakeStep:
        assert cores == 1
        self.started.append(step.name)
        self.moved += 1_500_000
        code = 137 if step.name.startswith("bad") else 0
        ended(CompletedProcess(returncode=code, stdout="", stderr="", seconds=2.5))
        return FakeStep()

    def find_fault(self, step: Step, done: CompletedProcess) -> str:
        return f"{step.name} ended with {done.returncode}" if done.returncode else ""

    def kill_unawaited(self) -> None:
        raise AssertionError("nothing is left")

    def close(self) -> None:
        self.is_closed = True


class CountingPool(LocalPool):
    """A pool that counts what it is asked."""

    asked = 0

    def acquire(self, request: PoolRequest) -> Grant | Denied:
        self.asked += 1
        return super().acquire(request)


def run(executor: FakeExecutor, pool: LocalPool, *steps: Step) -> Outcome:
    return run_graph(
        Graph(steps=steps),
        RunOptions(
            pool=pool, runner=SubprocessRunner(), progress=SilentProgress(), executor=executor
        ),
    )


def test_many_steps_take_no_threads_and_no_more_questions_than_events() -> None:
    executor, pool, threads = FakeExecutor(), CountingPool(300), set(threading.enumerate())
    chains = [
        step(f"{kind}{at}", f"{kind}{at}" * (kind > "a"), f"{chr(ord(kind) + 1)}{at}")
        for at in range(1000)
        for kind in "abc"
    ]
    outcome = run(executor, pool, *chains)
    assert len(outcome.finished) == len(executor.started) == 3000
    # Not a count: a server of an earlier test may end a thread meanwhile.
    assert set(threading.enumerate()) <= threads
    # Once for each step, and once more for each time that all slots were taken.
    assert pool.asked <= 3000 + 3000 / 300 + 3
    assert executor.is_closed
    assert {done.slot for done in outcome.finished} == set(range(300))
    first = outcome.finished[0]
    assert first.worker_seconds == 2.5


class Labels(SilentProgress):
    """A receiver of progress that keeps the labels of ended steps."""

    def __init__(self) -> None:
        self.labels: list[str] = []

    def finish_step(self, label: str, seconds: float) -> None:
        del seconds
        self.labels.append(label)


def test_progress_line_counts_running_remaining_and_moved_steps() -> None:
    progress = Labels()
    run_graph(
        Graph(steps=(step("one", "", "a"), step("two", "a", "b"), step("three", "b"))),
        RunOptions(
            pool=LocalPool(1), runner=SubprocessRunner(), progress=progress, executor=FakeExecutor()
        ),
    )
    # In a run of no time, no minute is left.
    assert progress.labels == [
        "one; 0 running, 2 remaining, 1.5 MB moved",
        "two; 0 running, 1 remaining, 3.0 MB moved",
        "three; 0 running, 0 remaining, 4.5 MB moved",
    ]


def test_a_failure_elsewhere_is_the_executors_to_explain_and_is_not_run_again() -> None:
    executor = FakeExecutor()
    outcome = run(executor, LocalPool(1), step("bad", "", "x"), step("after", "x"))
    assert executor.started == ["bad"]
    assert outcome.failure is not None
    assert outcome.failure.fault == "bad ended with 137"


def test_slots_elsewhere_have_no_memory_here() -> None:
    pool = LocalPool(1)
    grant = pool.acquire(PoolRequest(1 << 50))
    assert not isinstance(grant, Denied)
    grant.update_resident(5)
    assert (grant.entry.reserved, grant.entry.resident) == (1 << 50, 5)
    assert pool.acquire(PoolRequest(1)) == Denied(WaitReason.SLOT, None)
    assert (pool.idle_slots(), pool.free_memory()) == (0, ALL_MEMORY)
    grant.release()
    assert pool.idle_slots() == 1
    pool.close()
    with pytest.raises(ValueError, match="at least one slot"):
        LocalPool(0)


def test_a_thread_takes_one_call_after_the_other() -> None:
    threads, release, names = DaemonThreads(2), threading.Event(), []
    done = threading.Semaphore(0)

    def work() -> None:
        release.wait(30)
        names.append(threading.current_thread().name)
        done.release()

    for _ in range(6):
        threads.call(work)
    release.set()
    for _ in range(6):
        assert done.acquire(timeout=30)
    assert len(names) == 6
    assert len(set(names)) <= 2
    threads.close()


class FullPool(LocalPool):
    """A pool of a machine whose memory is used up by the step of another process."""

    def free_memory(self) -> int:
        return -1

    def entries(self) -> list[PoolEntry]:
        return [PoolEntry(1 << 40, 1 << 40, 1), *super().entries()]


def test_remote_step_is_not_killed_for_the_memory_of_this_machine(tmp_path: Path) -> None:
    step = Step(
        name="there",
        command=Command(argv=("/bin/sleep", "0.3"), cwd=tmp_path, env={}),
        reads=(),
        writes=(),
        is_remote=True,
    )
    outcome = run_graph(
        Graph(steps=(step,)),
        RunOptions(
            pool=MixedPool(FullPool(1), 1), runner=SubprocessRunner(), progress=SilentProgress()
        ),
    )
    assert [done.attempts for done in outcome.finished] == [1]


def test_remote_steps_take_no_slot_of_this_machine(tmp_path: Path) -> None:
    def shell(name: str, script: str, *, weight: float, is_remote: bool) -> Step:
        return Step(
            name=name,
            command=Command(argv=("/bin/sh", "-c", script), cwd=tmp_path, env={}),
            reads=(),
            writes=(),
            weight=weight,
            is_remote=is_remote,
        )

    # The longest start first: the second one finds no slot of the farm, and the last one has its
    # slot here nevertheless. Without it, the first one would wait forever.
    waiting = "while [ ! -e made ]; do sleep 0.01; done"
    steps = (
        shell("first there", waiting, weight=9.0, is_remote=True),
        shell("second there", "true", weight=8.0, is_remote=True),
        shell("here", "touch made", weight=1.0, is_remote=False),
    )
    outcome = run_graph(
        Graph(steps=steps),
        RunOptions(
            pool=MixedPool(LocalPool(1), 1), runner=SubprocessRunner(), progress=SilentProgress()
        ),
    )
    assert outcome.failure is None
    assert [done.name for done in sorted(outcome.finished, key=lambda one: one.ended)][-1] == (
        "second there"
    )
