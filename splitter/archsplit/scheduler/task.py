"""One step that runs: its program, what it holds, and what its end means."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from archsplit.scheduler.pool import ALL_MEMORY

if TYPE_CHECKING:
    from collections.abc import Callable

    from archsplit.scheduler.graph import Step
    from archsplit.scheduler.pool import Grant
    from archsplit.system.process import Completed, Running

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
        seen: the most bytes that were seen so far.
        reclaimed: whether it was killed to have its memory.
        unwanted: whether it was killed because an earlier step failed.
    """

    def __init__(
        self,
        position: int,
        running: Running,
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
        self.seen = 0
        self.reclaimed = False
        self.unwanted = False
        self._running = running
        self._resident, self._measured, self._growth = 0, started, 0.0

    @property
    def holds(self) -> int:
        """Bytes that others can have when it ends."""
        row = self.grant.row
        return max(row.reserved, row.resident)

    @property
    def is_alone(self) -> bool:
        """Whether nothing else could run beside it."""
        return self.memory >= ALL_MEMORY

    def report_to(
        self, ended: Callable[[tuple[RunningTask, Completed | BaseException]], None]
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
        resident = self._running.resident()
        self._growth = (resident - self._resident) / max(now - self._measured, 1e-3)
        self._resident, self._measured = resident, now
        self.seen = max(self.seen, resident)
        self.grant.hold(resident)

    def surprise(self, seconds: float) -> int:
        """Bytes by which it may grow in so many seconds, once it has more than was reserved."""
        return max(0, int(self._growth * seconds)) if self._resident > self.memory else 0

    def reclaim(self) -> None:
        """Kill it to have its memory; it will be started again."""
        self.reclaimed = True
        self._running.kill(grace=0)

    def stop(self) -> None:
        """Kill it for good."""
        self.unwanted = True
        self._running.kill()


def is_starved(done: Completed) -> bool:
    """Whether a program that failed did so for want of memory; if in doubt, yes."""
    if done.returncode in _KILLED:
        return True
    said = done.stderr.lower()
    return any(words in said for words in _STARVED)


def task_fault(step: Step, done: Completed) -> str:
    """What is wrong with how a step ended; "" when nothing is."""
    if done.returncode != 0:
        return f"failed with exit status {done.returncode}"
    for path in step.writes:
        if not path.is_file() or path.stat().st_size == 0:
            return f"succeeded, but left no {path.name}"
    return ""
