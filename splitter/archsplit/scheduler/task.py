"""Running steps, the meaning of their exit, and the watchdog of their memory.

`RunningTask` joins a program with its grant. `MemoryWatchdog` measures all tasks and kills the
youngest before the kernel's OOM killer would choose one, perhaps of another program. A step that
was killed or failed for want of memory is not at fault: the scheduler runs it again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from archsplit.scheduler.pool import ALL_MEMORY

if TYPE_CHECKING:
    from collections.abc import Collection

    from archsplit.scheduler.executor import RunningStep
    from archsplit.scheduler.pool import Grant, Pool
    from archsplit.system.process import CompletedProcess

_STARVED = (
    "out of memory",
    "bad_alloc",
    "cannot allocate memory",
    "memory exhausted",
    "memory allocation fail",
    "killed signal terminated program",
    "signal 9",
)
"""Messages of compilers and their drivers, in lower case, for want of memory."""
_SIGKILL = 9
_KILLED = (-_SIGKILL, 128 + _SIGKILL)

_GROWTH = 2e9
"""Bytes a second by which a step can grow at most."""
_SHORTEST, _LONGEST = 0.01, 0.5
"""Seconds between two measurements."""
_FIRST = 0.03
"""Seconds from a start to the first measurement."""
_REACTION = 0.15
"""Seconds from a measurement until the memory of a killed step is free."""
_OTHERS_SECONDS = 0.3
"""Seconds that another process, which has the youngest step, has to kill it."""


class RunningTask:
    """A step with its running program.

    Attributes:
        slot: number of the slot, among those of this process.
        cores: number of cores in the step's command.
        started: seconds since the start of the run.
        memory: reserved bytes.
        peak_memory: greatest measured bytes.
        killed_for_memory: True if the watchdog killed the step to free its memory.
        is_cancelled: True if the step was killed because an earlier step failed.
    """

    def __init__(
        self,
        position: int,
        running: RunningStep,
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
        """Bytes that the end of the step frees."""
        row = self.grant.entry
        return max(row.reserved, row.resident)

    @property
    def is_alone(self) -> bool:
        """Return True if the step runs alone."""
        return self.memory >= ALL_MEMORY

    def measure(self, now: float) -> None:
        """Measure the memory and publish it in the pool."""
        resident = self._running.resident_memory()
        # Two measurements in one clock tick must not divide by zero.
        self._growth = (resident - self._resident) / max(now - self._measured, 1e-3)
        self._resident, self._measured = resident, now
        self.peak_memory = max(self.peak_memory, resident)
        self.grant.update_resident(resident)

    def overshoot(self, seconds: float) -> int:
        """Return the bytes of growth to expect beyond the reservation; 0 within it."""
        # Growth within the reservation is no surprise: the pool has counted it already.
        return max(0, int(self._growth * seconds)) if self._resident > self.memory else 0

    def kill_for_memory(self) -> None:
        """Kill the program to free its memory; the step will be started again."""
        self.killed_for_memory = True
        # Memory is short now, and the outputs of a killed step are made again anyway.
        self._running.kill(grace=0)

    def cancel(self) -> None:
        """Kill the program; the step will not be started again."""
        self.is_cancelled = True
        self._running.kill()


def is_out_of_memory(done: CompletedProcess) -> bool:
    """Return True if a program failed for want of memory; in doubt, too."""
    # The kernel's OOM killer sends SIGKILL; shells and drivers report it as 128 + 9.
    if done.returncode in _KILLED:
        return True
    said = done.stderr.lower()
    return any(words in said for words in _STARVED)


class MemoryWatchdog:
    """Watchdog that kills the youngest steps when memory is nearly used up.

    The oldest step is spared, so that the run always advances.

    Attributes:
        next_check: time of the next measurement.
    """

    def __init__(self, pool: Pool) -> None:
        self.next_check = _LONGEST
        self._pool = pool
        self._pressed_since: float | None = None

    def check_soon(self, now: float) -> None:
        """Measure soon, because a step has started."""
        self.next_check = min(self.next_check, now + _FIRST)

    def check(self, now: float, active: Collection[RunningTask]) -> None:
        """Measure every step, and kill some if memory is nearly used up."""
        for one in active:
            one.measure(now)
        room = self._pool.free_memory()
        if not self._is_pressed(room, active):
            self._pressed_since = None
        else:
            self._pressed_since = now if self._pressed_since is None else self._pressed_since
            self._relieve(room, active, patient=now - self._pressed_since <= _OTHERS_SECONDS)
        # Measuring costs a read of /proc for each process, so it waits as long as memory lasts.
        until_full = max(room, 0) / (_GROWTH * max(len(active), 1))
        self.next_check = now + min(max(until_full / 2, _SHORTEST), _LONGEST)

    def _is_pressed(self, room: int, active: Collection[RunningTask]) -> bool:
        """Return True if memory could be used up before a kill would free some."""
        # What was killed a moment ago frees its memory soon: one kill at a time is enough.
        leaving = sum(one.peak_memory for one in active if one.killed_for_memory)
        surprises = sum(one.overshoot(_REACTION) for one in active if not one.killed_for_memory)
        return room + leaving <= surprises

    def _relieve(self, room: int, active: Collection[RunningTask], *, patient: bool) -> None:
        """Kill own steps, the youngest first, if they are the youngest of all processes."""
        by_age = sorted(active, key=lambda one: one.grant.entry.started)
        ours = {one.grant.entry.started for one in by_age}
        theirs = [row.started for row in self._pool.entries() if row.started not in ours]
        # The oldest step of all processes is spared.
        first = 0 if theirs and min(theirs) < min(ours) else 1
        for one in reversed(by_age[first:]):
            # The process with the youngest step gets some time to kill it: it loses the least work.
            someone_younger = patient and one.grant.entry.started < max(theirs, default=0)
            if someone_younger or not self._is_pressed(room, active):
                return
            if not one.killed_for_memory:
                one.kill_for_memory()
