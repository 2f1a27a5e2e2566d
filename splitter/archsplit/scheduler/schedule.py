"""Order of a run: the steps that start next, their cores and memory; starts nothing itself.

`Schedule` holds the ready steps, the most urgent first, and knows what a failure leaves to do.
`MemoryAdmission` lets a small step pass a big one that waits for memory only if the big one
needn't wait longer for it (backfill). `CoreAllocator` gives idle cores to long steps. `Estimates`
has the expected seconds and memory of steps: from the history, from similar steps, from guesses.
"""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from archsplit.scheduler.executor import RunningTask
    from archsplit.scheduler.graph import Graph, Step
    from archsplit.scheduler.pool import Pool

__pure__ = True

DEFAULT_MEMORY = 256 << 20
"""Bytes for a step without history and guess: enough for most; the watchdog measures the others."""
_LEAST_SHARE = 0.05
"""Share of a run after which its end is estimated from its speed."""
_LONG_SECONDS = 1.0
"""Seconds from which several cores gain: measured with ptxas.

0.75 s on one core are 0.95 s on 13 cores, with 2.0 s of CPU; 1.25 s become shorter.
"""
_THREADS = 3
"""Threads for each idle core: the parts of a step are of unequal size."""


class StepEstimate(NamedTuple):
    """Measurements of a step in earlier builds.

    Attributes:
        seconds: on one core.
        memory: bytes at the peak.
        sizes: bytes of the outputs; empty if unknown.
    """

    seconds: float
    memory: int
    sizes: tuple[int, ...] = ()


class Estimates:
    """Seconds and memory of each step; the memory improves while steps run.

    Args:
        known: estimates of earlier builds, by the steps' keys.
        size_of: returns the bytes of a file that a step reads; called when the step is ready.

    Attributes:
        seconds: expected seconds of each step on one core.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        known: Mapping[str, StepEstimate],
        *,
        size_of: Callable[[Path], int] | None = None,
    ) -> None:
        self._steps = steps
        self._size_of = size_of
        self._by_size: dict[int, int] = {}
        self._known = [known.get(step.key) if step.key else None for step in steps]
        self._of_kind: dict[int, list[int]] = {}
        self._observed: dict[int, int] = {}
        self.seconds = tuple(
            step.weight if measured is None else measured.seconds
            for step, measured in zip(steps, self._known, strict=True)
        )

    def is_measured(self, position: int) -> bool:
        """Return True if the estimate was measured in earlier builds, and is not a guess."""
        return self._known[position] is not None

    def ready_seconds(self, position: int) -> float:
        """Return the expected seconds of a step whose inputs are there."""
        step = self._steps[position]
        if self._size_of is None or not step.seconds_per_byte or self.is_measured(position):
            return self.seconds[position]
        return step.seconds_per_byte * sum(map(self._size_of, step.reads))

    def memory(self, position: int) -> int:
        """Return the bytes that a step needs at its peak."""
        return max(self._observed.get(position, 0), self._expected_memory(position))

    def observe(self, position: int, memory: int) -> None:
        """Record the measured peak of a step; 0 if it was not measured.

        A step that was killed may have been about to take more.
        """
        if memory == 0:
            return
        self._observed[position] = max(self._observed.get(position, 0), _with_margin(memory))
        # A measured estimate of another step says nothing about its kind.
        if self._known[position] is None:
            self._of_kind.setdefault(self._steps[position].memory, []).append(memory)

    def _expected_memory(self, position: int) -> int:
        measured, guess = self._known[position], self._steps[position].memory
        if measured is not None:
            return _with_margin(measured.memory)
        if self._size_of is not None and self._steps[position].memory_per_byte:
            if position not in self._by_size:
                self._by_size[position] = self._memory_by_size(self._steps[position], self._size_of)
            return _with_margin(self._by_size[position])
        seen = self._of_kind.get(guess, [])
        # The smallest steps end first, so a guess loses its weight step by step.
        faded = (guess or DEFAULT_MEMORY) // (1 + len(seen))
        return max(faded, _with_margin(max(seen, default=0)))

    @staticmethod
    def _memory_by_size(step: Step, size_of: Callable[[Path], int]) -> int:
        return step.memory + round(step.memory_per_byte * sum(map(size_of, step.reads)))


def _with_margin(memory: int) -> int:
    return memory + memory // 10


def minutes_left(elapsed: float, *, done: float, total: float) -> int:
    """Return the minutes to the end of a run at its speed up to now.

    Args:
        elapsed: seconds since the run began.
        done: expected seconds of the steps that have ended.
        total: the same of all steps.

    Returns:
        0 while too little is done to tell, and in the last minute.
    """
    # The first steps say little: some of them wait for workers that start.
    if done < _LEAST_SHARE * total or not done:
        return 0
    return int(elapsed * (total - done) / done / 60)


class Schedule:
    """The state of one run: ready, running and failed steps.

    Args:
        ranks: see `Graph.ranks`; the greatest starts first, and of equals the first in the graph.
        keep_going: True if a failure stops only the steps that need the failed one.

    Attributes:
        ready: positions of steps that may start, the most urgent first.
        running: positions of steps that were started and have not ended.
    """

    def __init__(self, graph: Graph, ranks: Sequence[float], *, keep_going: bool = False) -> None:
        self._keep_going = keep_going
        self.ready: list[int] = []
        self.running: set[int] = set()
        self._graph = graph
        self._ranks = ranks
        self._missing = [len(earlier) for earlier in graph.dependencies]
        self._failed: set[int] = set()
        self._wanted = frozenset(range(len(graph.steps)))
        for position, count in enumerate(self._missing):
            if count == 0:
                self._add(position)

    @property
    def is_finished(self) -> bool:
        """Return True if no step runs or is ready."""
        return not self.ready and not self.running

    @property
    def first_failed(self) -> int | None:
        """Return the first failed step in the graph's order, or None."""
        return min(self._failed, default=None)

    def start(self, position: int) -> None:
        """Move a ready step to the running ones."""
        self.ready.remove(position)
        self.running.add(position)

    def requeue(self, position: int) -> None:
        """Move a running step back to the ready ones."""
        self.running.remove(position)
        self._add(position)

    def succeed(self, position: int) -> tuple[int, ...]:
        """Mark a running step as successful.

        Returns:
            The steps that became ready by that.
        """
        self.running.remove(position)
        released = []
        for later in self._graph.dependents[position]:
            self._missing[later] -= 1
            # After a failure some steps are no longer wanted, though their inputs are complete.
            if self._missing[later] == 0 and later in self._wanted:
                self._add(later)
                released.append(later)
        return tuple(released)

    def fail(self, position: int) -> frozenset[int]:
        """Mark a running step as failed: only earlier steps in the graph's order go on.

        So the failure that is reported in the end is the first that a serial run would have met.
        A schedule that keeps going goes on with all steps that need no failed one.

        Returns:
            The running steps whose results are no longer needed.
        """
        self.running.remove(position)
        self._failed.add(position)
        # Steps behind a failed one can never run, wherever they stand in the graph.
        hopeless = _closure(self._failed, self._graph.dependents.__getitem__)
        end = len(self._graph.steps) if self._keep_going else min(self._failed)
        earlier = set(range(end)) - hopeless
        self._wanted = _closure(earlier, self._graph.dependencies.__getitem__)
        self.ready = [each for each in self.ready if each in self._wanted]
        return frozenset(self.running - self._wanted)

    def discard(self, position: int) -> None:
        """Remove a canceled step that has ended."""
        self.running.remove(position)

    def ready_by(self, ends: Mapping[int, float], *, by: float) -> tuple[int, ...]:
        """Return the steps that will become ready before a time.

        Args:
            ends: expected end of each running step.
            by: the time.
        """
        ending = [position for position in self.running if ends[position] <= by]
        missing: dict[int, int] = {}
        for position in ending:
            for later in self._graph.dependents[position]:
                missing[later] = missing.get(later, self._missing[later]) - 1
        return tuple(later for later, count in missing.items() if count == 0)

    def _add(self, position: int) -> None:
        bisect.insort(self.ready, position, key=lambda at: (-self._ranks[at], at))


def _closure(start: Iterable[int], following: Callable[[int], Iterable[int]]) -> frozenset[int]:
    found = set(start)
    left = list(found)
    while left:
        new = set(following(left.pop())) - found
        found |= new
        left += new
    return frozenset(found)


class ExpectedUse(NamedTuple):
    """Expected end of a running step, and the bytes that its end frees."""

    end: float
    memory: int


class MemoryAdmission:
    """Admission control for steps that need memory, with backfill.

    Without it a big step would wait until all small ones are done.
    """

    def __init__(self, *, now: float, running: Iterable[ExpectedUse]) -> None:
        self._now = now
        # Sorted at the first step that is held back: mostly memory is plentiful.
        self._running = running
        self._refused: int | None = None
        self._until = 0.0
        self._spare = 0

    def hold_back(self, memory: int, *, short: int) -> None:
        """Hold back a step that lacks memory.

        The first step held back, which is the most urgent, has a claim on what becomes free.
        """
        if self._refused is not None:
            self._refused = min(self._refused, memory)
            return
        # Only the first step that lacks memory, which is the most urgent, gets a claim.
        self._refused = memory
        # If the ends of all own steps free too little, the wait for others has no known end.
        self._until, free = float("inf"), 0
        for end, held in sorted(self._running):
            self._until = end
            free += held
            if free >= short:
                self._spare = free - short
                break

    def admits(self, memory: int, *, seconds: float) -> bool:
        """Return True if a less urgent step may pass those held back."""
        if self._refused is None:
            return True
        if memory >= self._refused:
            return False
        # A short step ends before the memory is needed; a small one takes what is left over then.
        return self._now + seconds <= self._until or memory <= self._spare

    def count_started(self, memory: int, *, seconds: float) -> None:
        """Count the memory of an admitted step that has started."""
        if self._refused is not None and self._now + seconds > self._until:
            # Only a step that outlasts the claim takes from what is left over.
            self._spare -= memory


class CoreAllocator:
    """Allocation of idle cores to steps.

    Args:
        enabled: False for always one core.
    """

    def __init__(
        self, graph: Graph, estimates: Estimates, schedule: Schedule, pool: Pool, *, enabled: bool
    ) -> None:
        self._graph = graph
        self._estimates = estimates
        self._schedule = schedule
        self._pool = pool
        self._enabled = enabled

    def is_candidate(self, position: int) -> bool:
        """Return True if a step is long, and can use several cores."""
        return self._can_run_parallel(position) and is_long(self._estimates.ready_seconds(position))

    def cores(
        self,
        position: int,
        active: Mapping[int, RunningTask],
        ends: Mapping[int, float],
        now: float,
    ) -> int:
        """Return the number of cores for a candidate that has its slot: several if some are idle.

        Args:
            position: the step, for which `is_candidate` is True.
            active: running steps.
            ends: expected end of each running step.
        """
        seconds = self._estimates.ready_seconds(position)
        # Cores that become idle in the second half of a step are of no use to it.
        by = now + seconds / 2
        ending = [each for each in active if ends[each] <= by]
        soon = self._schedule.ready_by(ends, by=by)
        ready = [each for each in self._schedule.ready if each != position]
        # Steps that become ready soon take the slots of those that end.
        parallel_now = [each for each, one in active.items() if one.cores > 1]
        parallel_soon = [each for each in parallel_now if each not in ending]
        parallel_soon += filter(self._can_run_parallel, soon)
        return allocate_cores(
            seconds,
            slots=self._pool.slots,
            # The step's own slot is one of them.
            idle=self._pool.idle_slots() + 1,
            waiting=len(ready) + max(0, len(soon) - len(ending)),
            parallel=sum(map(self._can_run_parallel, ready))
            + max(len(parallel_now), len(parallel_soon)),
        )

    def _can_run_parallel(self, position: int) -> bool:
        return self._enabled and bool(self._graph.steps[position].parallel_flags)


def allocate_cores(seconds: float, *, slots: int, idle: int, waiting: int, parallel: int) -> int:
    """Return the number of cores for a step, so that no core stands idle.

    Threads beyond the step's own slot take no slots: the kernel shares the cores among more threads
    than cores better than a guess could. Only idle cores justify them, because several threads use
    more CPU time in all than one.

    Args:
        seconds: expected seconds on one core.
        slots: most steps at a time.
        idle: free slots, including the step's own.
        waiting: number of other steps that can start, now or soon.
        parallel: number of other steps that will use several cores.
    """
    if not is_long(seconds) or idle - 1 <= waiting:
        return 1
    # Rounded up: one thread more costs less than an idle core.
    return min(slots, -(-_THREADS * slots // (1 + parallel)))


def is_long(seconds: float) -> bool:
    """Return True if a step of so many seconds gains from several cores."""
    return seconds >= _LONG_SECONDS


def parallel_seconds(cores: int, seconds: float) -> float:
    """Return the expected seconds of a step on several cores that it shares."""
    return seconds / max(1.0, cores / _THREADS)
