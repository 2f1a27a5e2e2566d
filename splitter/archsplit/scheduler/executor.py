"""The seam between the scheduler and the machines that run steps.

An `Executor` starts a step and calls back at its end; it never blocks. The scheduler keeps the
graph, the order, the cache and the failure rule, so that all executors run the same steps.
`LocalExecutor` starts programs on this machine; others send steps to a build farm.
"""

from __future__ import annotations

import threading
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Protocol

from archsplit.system.process import GRACE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from archsplit.scheduler.graph import Step
    from archsplit.scheduler.outcome import Placement
    from archsplit.system.process import CompletedProcess, RunningProcess, Starter

    Ended = Callable[[CompletedProcess | BaseException], None]


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

    def start(self, step: Step, *, cores: int, ended: Ended) -> RunningStep:
        """Start a step and return at once.

        Args:
            step: its inputs exist, or were made by steps that this executor ran.
            cores: see `Step.command_for`.
            ended: called once, from any thread, with the exit or the exception of the step.

        Raises:
            ToolNotFoundError: the program can't be started.
            InterruptedByUserError: the executor was cancelled from outside.
        """
        ...

    def find_fault(self, step: Step, done: CompletedProcess) -> str:
        """Return the fault of an ended step; "" for a success."""
        ...

    def find_placement(self, step: Step) -> Placement | None:
        """Return the place and the times of an ended step; None for this machine."""
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

    def find_placement(self, step: Step) -> Placement | None:
        """See `Executor.find_placement`."""
        del step
        return None

    def kill_unawaited(self) -> None:
        """See `Executor.kill_unawaited`."""
        self._starter.kill_unawaited()
        # Of a step that a signal kept out of the caller's list.
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
