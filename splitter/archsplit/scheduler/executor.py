"""The seam between the scheduler and the machines that run steps.

An `Executor` starts a step and calls back at its end; it never blocks. The scheduler keeps the
graph, the order, the cache and the failure rule, so that all executors run the same steps.
`LocalExecutor` starts programs on this machine; others send steps to a build farm.

`RunningTask` joins a program with its grant. `MemoryWatchdog` measures all tasks and kills the
youngest before the kernel's OOM killer would choose one, perhaps of another program. A step that
was killed or failed because memory was short is not at fault: the scheduler runs it again.
"""

from __future__ import annotations

import threading
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Protocol

from archsplit.scheduler.pool import ALL_MEMORY
from archsplit.system.process import GRACE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from archsplit.scheduler.graph import Step
    from archsplit.scheduler.pool import Grant, Pool
    from archsplit.system.process import CompletedProcess, RunningProcess, Starter

    Ended = Callable[[CompletedProcess | BaseException], None]


_MEMORY_MESSAGES = (
    "out of memory",
    "bad_alloc",
    "cannot allocate memory",
    "memory exhausted",
    "memory allocation fail",
    "killed signal terminated program",
    "signal 9",
)
"""Messages of compilers and their drivers about too little memory, in lower case."""
_SIGKILL = 9
_KILLED_STATUSES = (-_SIGKILL, 128 + _SIGKILL)

_MOST_GROWTH = 2e9
"""Bytes a second by which a step can grow at most."""
_SHORTEST_INTERVAL, _LONGEST_INTERVAL = 0.01, 0.5
"""Seconds between two measurements."""
_FIRST_INTERVAL = 0.03
"""Seconds from a start to the first measurement."""
_KILL_SECONDS = 0.15
"""Seconds from a measurement until the memory of a killed step is free."""
_OTHERS_SECONDS = 0.3
"""Seconds that another process, which has the youngest step, has to kill it."""


class RunningStep(Protocol):
    """A step that has been started."""

    def kill(self, *, grace: float = GRACE_SECONDS) -> None:
        """End the step: its programs get SIGTERM, then SIGKILL after ``grace`` seconds."""
        ...

    def resident_memory(self) -> int:
        """Return the bytes that the step holds on this machine; 0 after its end."""
        ...


class Executor(Protocol):
    """Runs steps; its methods are called by one thread.

    Attributes:
        is_local: True if steps take this machine's memory, so that it has to be watched.
    """

    is_local: bool

    @property
    def moved(self) -> int:
        """Bytes that were sent to other machines and received from them up to now."""
        ...

    def start(self, step: Step, *, cores: int, ended: Ended) -> RunningStep:
        """Start a step and return at once.

        Args:
            step: its inputs exist, or were made by steps that this executor ran.
            cores: see `Step.command_for`.
            ended: called once, from any thread, with the exit or the exception of the step.

        Raises:
            ToolNotFoundError: the program can't be started.
            InterruptedByUserError: the executor was canceled from outside.
        """
        ...

    def find_fault(self, step: Step, done: CompletedProcess) -> str:
        """Return the fault of an ended step; "" for a success."""
        ...

    def kill_unawaited(self) -> None:
        """Kill what was started and is in no list of the caller's; see `Starter`."""
        ...

    def close(self) -> None:
        """Release threads and connections."""
        ...


class LocalExecutor:
    """Runs steps as child processes of this process."""

    is_local = True
    moved = 0

    def __init__(self, starter: Starter) -> None:
        self._starter = starter
        self._threads = DaemonThreads()
        self._running: dict[int, RunningProcess] = {}

    def start(self, step: Step, *, cores: int, ended: Ended) -> RunningStep:
        """See `Executor.start`."""
        running = self._starter.start(step.command_for(cores))
        self._running[id(running)] = running
        self._threads.call(partial(self._wait, running, ended))
        return running

    def find_fault(self, step: Step, done: CompletedProcess) -> str:
        """See `Executor.find_fault`."""
        if done.returncode != 0:
            return f"failed with exit status {done.returncode}"
        # A program may end with 0 after its disk was full; what it left would be linked.
        for path in step.writes:
            if not path.is_file() or path.stat().st_size == 0:
                return f"succeeded, but left no {path.name}"
        return ""

    def kill_unawaited(self) -> None:
        """See `Executor.kill_unawaited`."""
        self._starter.kill_unawaited()
        # Also a step that a signal kept out of the caller's list.
        for running in tuple(self._running.values()):
            running.kill(grace=0)

    def close(self) -> None:
        """See `Executor.close`."""
        self._threads.close()

    def _wait(self, running: RunningProcess, ended: Ended) -> None:
        done: CompletedProcess | BaseException
        try:
            done = running.wait()
        except BaseException as error:  # noqa: BLE001 - raised again by `GraphRunner`
            done = error
        del self._running[id(running)]
        ended(done)


class DaemonThreads:
    """Threads that take one call after the other; a call starts one only if none is idle.

    Daemons, because an interrupted run must not wait for a program that ignores signals.

    Args:
        most: most threads at a time; later calls wait for one. None for no limit.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._idle = 0
        self._backlog = 0

    def call(self, function: Callable[[], None]) -> None:
        """Call a function, which raises nothing, in a thread."""
        with self._lock:
            if self._idle:
                self._idle -= 1
            elif self._most is None or self._threads < self._most:
                self._threads += 1
                threading.Thread(target=self._work, daemon=True).start()
            else:
                self._backlog += 1
        self._calls.put(function)

    def close(self) -> None:
        """Let each thread end after its calls."""
        with self._lock:
            for _ in range(self._threads):
                self._calls.put(None)

    def _work(self) -> None:
        while (function := self._calls.get()) is not None:
            function()
            with self._lock:
                if self._backlog:
                    self._backlog -= 1
                else:
                    self._idle += 1


class RunningTask:
    """A step with its running program.

    Attributes:
        slot: number of the slot in this process.
        cores: number of cores in the step's command.
        started: seconds since the start of the run.
        memory: reserved bytes.
        peak_memory: greatest measured bytes.
        killed_for_memory: True if the watchdog killed the step to free its memory.
        is_canceled: True if the step was killed because an earlier step failed.
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
        self.is_canceled = False
        self._running = running
        self._resident, self._measured, self._growth = 0, started, 0.0

    @property
    def held_memory(self) -> int:
        """Bytes that the end of the step frees."""
        return max(self.grant.entry.reserved, self.grant.entry.resident)

    @property
    def is_alone(self) -> bool:
        """Return True if the step runs on its own."""
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
        # Growth within the reservation is expected: the pool has counted it already.
        return max(0, int(self._growth * seconds)) if self._resident > self.memory else 0

    def kill_for_memory(self) -> None:
        """Kill the program to free its memory; the step will be started again."""
        self.killed_for_memory = True
        # Memory is short now, and the outputs of a killed step are made again anyway.
        self._running.kill(grace=0)

    def cancel(self) -> None:
        """Kill the program; the step will not be started again."""
        self.is_canceled = True
        self._running.kill()


def is_out_of_memory(done: CompletedProcess) -> bool:
    """Return True if a program failed because memory was short; also in doubt."""
    # The kernel's OOM killer sends SIGKILL; shells and drivers report it as 128 + 9.
    if done.returncode in _KILLED_STATUSES:
        return True
    messages = done.stderr.lower()
    return any(words in messages for words in _MEMORY_MESSAGES)


class MemoryWatchdog:
    """Watchdog that kills the youngest steps when memory is nearly used up.

    The oldest step is spared, so that the run always advances.

    Attributes:
        next_check: time of the next measurement.
    """

    def __init__(self, pool: Pool) -> None:
        self.next_check = _LONGEST_INTERVAL
        self._pool = pool
        self._pressed_since: float | None = None

    def check_soon(self, now: float) -> None:
        """Measure soon, because a step has started."""
        self.next_check = min(self.next_check, now + _FIRST_INTERVAL)

    def check(self, now: float, active: Collection[RunningTask]) -> None:
        """Measure the steps of this machine, and kill some if memory is nearly used up."""
        for one in active:
            one.measure(now)
        free = self._pool.free_memory()
        if not active or not self._is_pressed(free, active):
            self._pressed_since = None
        else:
            self._pressed_since = now if self._pressed_since is None else self._pressed_since
            self._relieve(free, active, patient=now - self._pressed_since <= _OTHERS_SECONDS)
        # Measuring costs a read of /proc for each process, so it waits as long as memory lasts.
        until_full = max(free, 0) / (_MOST_GROWTH * max(len(active), 1))
        self.next_check = now + min(max(until_full / 2, _SHORTEST_INTERVAL), _LONGEST_INTERVAL)

    def _is_pressed(self, free: int, active: Collection[RunningTask]) -> bool:
        """Return True if memory could be used up before a kill would free some."""
        # A step that was just killed frees its memory soon: one kill at a time is enough.
        leaving = sum(one.peak_memory for one in active if one.killed_for_memory)
        surprises = sum(one.overshoot(_KILL_SECONDS) for one in active if not one.killed_for_memory)
        return free + leaving <= surprises

    def _relieve(self, free: int, active: Collection[RunningTask], *, patient: bool) -> None:
        """Kill own steps, the youngest first, if they are the youngest of all processes."""
        by_age = sorted(active, key=lambda one: one.grant.entry.started)
        ours = {one.grant.entry.started for one in by_age}
        theirs = [row.started for row in self._pool.entries() if row.started not in ours]
        # The oldest step of all processes is spared.
        first = 0 if theirs and min(theirs) < min(ours) else 1
        for one in reversed(by_age[first:]):
            # The process with the youngest step gets some time to kill it: it loses the least work.
            someone_younger = patient and one.grant.entry.started < max(theirs, default=0)
            if someone_younger or not self._is_pressed(free, active):
                return
            if not one.killed_for_memory:
                one.kill_for_memory()
