"""Which steps of a graph may start, and what a failure leaves to do; pure.

Who may go first when memory is short; pure.

Give long steps the cores that would stand idle.
"""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from archsplit.scheduler.estimates import Estimates
    from archsplit.scheduler.graph import Graph
    from archsplit.scheduler.pool import Pool
    from archsplit.scheduler.task import RunningTask

__pure__ = True


class Schedule:
    """The state of one run: what is ready, what runs, what failed.

    Args:
        urgency: for each step its rank, see `Graph.ranks`; the greatest goes first, and of equals
            the first in the graph.

    Attributes:
        ready: positions of what may start, the most urgent first.
        running: positions of what was started and hasn't ended.
    """

    def __init__(self, graph: Graph, urgency: Sequence[float]) -> None:
        self.ready: list[int] = []
        self.running: set[int] = set()
        self._graph = graph
        self._urgency = urgency
        self._missing = [len(earlier) for earlier in graph.dependencies]
        self._failed: set[int] = set()
        self._wanted = frozenset(range(len(graph.steps)))
        for position, count in enumerate(self._missing):
            if count == 0:
                self._add(position)

    @property
    def is_finished(self) -> bool:
        """Whether nothing runs, and nothing will."""
        return not self.ready and not self.running

    @property
    def first_failed(self) -> int | None:
        """The first in the graph's order of the steps that failed."""
        return min(self._failed, default=None)

    def start(self, position: int) -> None:
        """A step that was ready runs now."""
        self.ready.remove(position)
        self.running.add(position)

    def requeue(self, position: int) -> None:
        """A step that ran has to run once more."""
        self.running.remove(position)
        self._add(position)

    def succeed(self, position: int) -> tuple[int, ...]:
        """A step has ended well.

        Returns:
            What became ready by that.
        """
        self.running.remove(position)
        released = []
        for later in self._graph.dependents[position]:
            self._missing[later] -= 1
            if self._missing[later] == 0 and later in self._wanted:
                self._add(later)
                released.append(later)
        return tuple(released)

    def fail(self, position: int) -> frozenset[int]:
        """A step has failed: what comes before it in the graph's order goes on, and no more.

        So the failure that is reported in the end is the one that running one step after the other
        would have met first.

        Returns:
            What runs and is of no use any more.
        """
        self.running.remove(position)
        self._failed.add(position)
        hopeless = _closure(self._failed, self._graph.dependents.__getitem__)
        earlier = set(range(min(self._failed))) - hopeless
        self._wanted = _closure(earlier, self._graph.dependencies.__getitem__)
        self.ready = [each for each in self.ready if each in self._wanted]
        return frozenset(self.running - self._wanted)

    def discard(self, position: int) -> None:
        """A step that was of no use any more has ended."""
        self.running.remove(position)

    def ready_by(self, ends: Mapping[int, float], *, by: float) -> tuple[int, ...]:
        """Which steps will become ready until then.

        Args:
            ends: when each running step is expected to end.
            by: until when.
        """
        ending = [position for position in self.running if ends[position] <= by]
        missing: dict[int, int] = {}
        for position in ending:
            for later in self._graph.dependents[position]:
                missing[later] = missing.get(later, self._missing[later]) - 1
        return tuple(later for later, count in missing.items() if count == 0)

    def _add(self, position: int) -> None:
        bisect.insort(self.ready, position, key=lambda at: (-self._urgency[at], at))


def _closure(start: Iterable[int], following: Callable[[int], Iterable[int]]) -> frozenset[int]:
    found = set(start)
    left = list(found)
    while left:
        new = set(following(left.pop())) - found
        found |= new
        left += new
    return frozenset(found)


class ExpectedUse(NamedTuple):
    """A running step: when it is expected to end, and the bytes that are free then."""

    end: float
    memory: int


class MemoryAdmission:
    """Steps that wait for memory; one may pass another only if that needn't wait longer for it.

    Without this a step that needs much would wait until those that need little are all done.
    """

    def __init__(self, *, now: float, running: Iterable[ExpectedUse]) -> None:
        self._now = now
        self._running = sorted(running)
        self._refused: int | None = None
        self._until = 0.0
        self._spare = 0

    def hold_back(self, memory: int, *, short: int) -> None:
        """A step waits for ``memory`` bytes, of which so many are missing.

        The first one, which is the most urgent, has a claim on what becomes free.
        """
        if self._refused is not None:
            self._refused = min(self._refused, memory)
            return
        self._refused = memory
        # Where even all that we run isn't enough, it waits for others as well, who knows how long.
        self._until, free = float("inf"), 0
        for end, held in self._running:
            self._until = end
            free += held
            if free >= short:
                self._spare = free - short
                break

    def admits(self, memory: int, *, seconds: float) -> bool:
        """Whether a less urgent step may ask for memory at all."""
        if self._refused is None:
            return True
        if memory >= self._refused:
            return False
        return self._now + seconds <= self._until or memory <= self._spare

    def count_started(self, memory: int, *, seconds: float) -> None:
        """A step was let pass, and has started."""
        if self._refused is not None and self._now + seconds > self._until:
            self._spare -= memory


_LONG_SECONDS = 1.0
"""A ptxas of 0.75 s takes 0.95 s on 13 cores, and 2.0 s of CPU; one of 1.25 s gains."""
_THREADS = 3
"""For each core, while there are too few steps, because the parts of a step are of unequal size."""


class CoreAllocator:
    """Decides on how many cores each step should work.

    Args:
        enabled: False for one core each, always.
    """

    def __init__(
        self, graph: Graph, forecast: Estimates, schedule: Schedule, pool: Pool, *, enabled: bool
    ) -> None:
        self._graph = graph
        self._forecast = forecast
        self._schedule = schedule
        self._pool = pool
        self._enabled = enabled

    def cores(
        self,
        position: int,
        active: Mapping[int, RunningTask],
        ends: Mapping[int, float],
        now: float,
    ) -> int:
        """On how many cores a step that is ready should work: more than one if some are idle.

        Args:
            active: what runs.
            ends: when each running step is expected to end.
        """
        seconds = self._forecast.seconds[position]
        if not (self._can_spread(position) and is_long(seconds)):
            return 1
        by = now + seconds / 2
        ending = [each for each in active if ends[each] <= by]
        soon = self._schedule.ready_by(ends, by=by)
        ready = [each for each in self._schedule.ready if each != position]
        # What comes soon takes the place of what ends.
        spread_now = [each for each, one in active.items() if one.cores > 1]
        spread_soon = [each for each in spread_now if each not in ending]
        spread_soon += filter(self._can_spread, soon)
        return allocate_cores(
            seconds,
            slots=self._pool.slots,
            idle=self._pool.idle_slots(),
            waiting=len(ready) + max(0, len(soon) - len(ending)),
            parallel=sum(map(self._can_spread, ready)) + max(len(spread_now), len(spread_soon)),
        )

    def _can_spread(self, position: int) -> bool:
        return self._enabled and bool(self._graph.steps[position].parallel_flags)


def allocate_cores(seconds: float, *, slots: int, idle: int, waiting: int, parallel: int) -> int:
    """On how many cores a step should work, so that none stands idle.

    What it uses beyond its own slot is not taken from anybody: there are more threads than cores
    then, and the kernel shares the cores out better than a guess could. That a core stood idle is
    what it needs, for several threads have more to do in all than one.

    Args:
        seconds: what it takes on one core.
        slots: how many steps can run at a time.
        idle: slots that nothing runs on, the one that the step gets included.
        waiting: how many other steps can start, now or soon.
        parallel: how many steps will work on several cores beside it.
    """
    if not is_long(seconds) or idle - 1 <= waiting:
        return 1
    return min(slots, -(-_THREADS * slots // (1 + parallel)))


def is_long(seconds: float) -> bool:
    """Whether a step that takes so long on one core is worth several."""
    return seconds >= _LONG_SECONDS


def parallel_seconds(cores: int, seconds: float) -> float:
    """What a step should take when it works on several cores that it has to share."""
    return seconds / max(1.0, cores / _THREADS)
