"""One step that runs: its program, what it holds, and what its end means.

Look at the memory of what runs, and choose what to kill before the OOM killer does.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from archsplit.scheduler.pool import ALL_MEMORY

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from archsplit.scheduler.graph import Step
    from archsplit.scheduler.pool import Grant, Pool
    from archsplit.system.process import CompletedProcess, RunningProcess

_STARVED = (
    "out of memory",
    "bad_alloc",
    "cannot allocate memory",
    "memory exhausted",
    "memory allocation fail",
    "killed signal terminated program",
    "signal 9",
)
"""What compilers and their drivers say, in small letters, when they or a child got no memory."""
_SIGKILL = 9
_KILLED = (-_SIGKILL, 128 + _SIGKILL)


class RunningTask:
    """A started step.

    Attributes:
        slot: the number of the one that it runs on, among those of this process.
        cores: on how many it was told to work.
        started: seconds since the run began.
        memory: bytes that were reserved for it.
        peak_memory: the most bytes that were seen so far.
        killed_for_memory: whether it was killed to have its memory.
        is_cancelled: whether it was killed because an earlier step failed.
    """

    def __init__(
        self,
        position: int,
        running: RunningProcess,
        grant: Grant,
        *,
        slot: int,
        cores: int,
        started: float,
        memory: int,
    ) -> None:
        self.position = position
        self.grant = grant
        self.cores = cores
        self.slot = slot
        self.started = started
        self.memory = memory
        self.peak_memory = 0
        self.killed_for_memory = False
        self.is_cancelled = False
        self._running = running
        self._resident, self._measured, self._growth = 0, started, 0.0

    @property
    def held_memory(self) -> int:
        """Bytes that others can have when it ends."""
        row = self.grant.entry
        return max(row.reserved, row.resident)

    @property
    def is_alone(self) -> bool:
        """Whether nothing else could run beside it."""
        return self.memory >= ALL_MEMORY

    def wait_in_thread(
        self, ended: Callable[[tuple[RunningTask, CompletedProcess | BaseException]], None]
    ) -> None:
        """Wait for the end in a thread of its own, and hand over what came of it."""

        def wait() -> None:
            try:
                done = self._running.wait()
            except BaseException as error:  # noqa: BLE001 - raised again by who is told
                ended((self, error))
            else:
                ended((self, done))

        threading.Thread(target=wait, daemon=True).start()

    def measure(self, now: float) -> None:
        """See how much memory it has now, and tell the pool."""
        resident = self._running.resident_memory()
        self._growth = (resident - self._resident) / max(now - self._measured, 1e-3)
        self._resident, self._measured = resident, now
        self.peak_memory = max(self.peak_memory, resident)
        self.grant.update_resident(resident)

    def overshoot(self, seconds: float) -> int:
        """Bytes by which it may grow in so many seconds, once it has more than was reserved."""
        return max(0, int(self._growth * seconds)) if self._resident > self.memory else 0

    def kill_for_memory(self) -> None:
        """Kill it to have its memory; it will be started again."""
        self.killed_for_memory = True
        self._running.kill(grace=0)

    def cancel(self) -> None:
        """Kill it for good."""
        self.is_cancelled = True
        self._running.kill()


def is_out_of_memory(done: CompletedProcess) -> bool:
    """Whether a program that failed did so for want of memory; if in doubt, yes."""
    if done.returncode in _KILLED:
        return True
    said = done.stderr.lower()
    return any(words in said for words in _STARVED)


def task_fault(step: Step, done: CompletedProcess) -> str:
    """What is wrong with how a step ended; "" when nothing is."""
    if done.returncode != 0:
        return f"failed with exit status {done.returncode}"
    for path in step.writes:
        if not path.is_file() or path.stat().st_size == 0:
            return f"succeeded, but left no {path.name}"
    return ""


_GROWTH = 2e9
"""Bytes that a step may take in a second, if it does nothing else."""
_SHORTEST, _LONGEST = 0.01, 0.5
"""Seconds between two looks."""
_FIRST = 0.03
"""Seconds from a start to the first look."""
_REACTION = 0.15
"""Seconds from a look until the memory of what is killed then is free."""
_PATIENCE = 0.3
"""Seconds that the process of the youngest step has to kill it before we kill one of ours."""


class MemoryWatchdog:
    """Decides when to look, and kills the youngest step when memory is nearly used up.

    The oldest is spared, so something always gets done.

    Attributes:
        next_check: when to look again.
    """

    def __init__(self, pool: Pool) -> None:
        self.next_check = _LONGEST
        self._pool = pool
        self._pressed_since: float | None = None

    def check_soon(self, now: float) -> None:
        """A step has started: look soon how much it takes."""
        self.next_check = min(self.next_check, now + _FIRST)

    def check(self, now: float, active: Collection[RunningTask]) -> None:
        """Measure every step, and kill some if there is need."""
        for one in active:
            one.measure(now)
        room = self._pool.free_memory()
        if not self._is_pressed(room, active):
            self._pressed_since = None
        else:
            self._pressed_since = now if self._pressed_since is None else self._pressed_since
            self._relieve(room, active, patient=now - self._pressed_since <= _PATIENCE)
        until_full = max(room, 0) / (_GROWTH * max(len(active), 1))
        self.next_check = now + min(max(until_full / 2, _SHORTEST), _LONGEST)

    def _is_pressed(self, room: int, active: Collection[RunningTask]) -> bool:
        """Whether memory would be used up before something could be done about it."""
        leaving = sum(one.peak_memory for one in active if one.killed_for_memory)
        surprises = sum(one.overshoot(_REACTION) for one in active if not one.killed_for_memory)
        return room + leaving <= surprises

    def _relieve(self, room: int, active: Collection[RunningTask], *, patient: bool) -> None:
        """Kill our youngest steps until there is room, if they are the youngest of all."""
        by_age = sorted(active, key=lambda one: one.grant.entry.started)
        ours = {one.grant.entry.started for one in by_age}
        theirs = [row.started for row in self._pool.entries() if row.started not in ours]
        # The oldest of all is spared.
        first = 0 if theirs and min(theirs) < min(ours) else 1
        for one in reversed(by_age[first:]):
            someone_younger = patient and one.grant.entry.started < max(theirs, default=0)
            if someone_younger or not self._is_pressed(room, active):
                return
            if not one.killed_for_memory:
                one.kill_for_memory()
