"""Give long steps the cores that would stand idle."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from archsplit.scheduler.estimates import Estimates
    from archsplit.scheduler.graph import Graph
    from archsplit.scheduler.plan import Schedule
    from archsplit.scheduler.pool import Pool
    from archsplit.scheduler.task import RunningTask

_LONG_SECONDS = 1.0
"""A ptxas of 0.75 s takes 0.95 s on 13 cores, and 2.0 s of CPU; one of 1.25 s gains."""
_THREADS = 3
"""For each core, while there are too few steps, because the parts of a step are of unequal size."""


class CoreAllocator:
    """Decides on how many cores each step should work.

    Args:
        wanted: False for one core each, always.
    """

    def __init__(
        self, graph: Graph, forecast: Estimates, schedule: Schedule, pool: Pool, *, wanted: bool
    ) -> None:
        self._graph = graph
        self._forecast = forecast
        self._schedule = schedule
        self._pool = pool
        self._wanted = wanted

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
        soon = self._schedule.soon(ends, by=by)
        ready = [each for each in self._schedule.ready if each != position]
        # What comes soon takes the place of what ends.
        spread_now = [each for each, one in active.items() if one.cores > 1]
        spread_soon = [each for each in spread_now if each not in ending]
        spread_soon += filter(self._can_spread, soon)
        return allocate_cores(
            seconds,
            slots=self._pool.slots,
            idle=self._pool.idle(),
            waiting=len(ready) + max(0, len(soon) - len(ending)),
            wide=sum(map(self._can_spread, ready)) + max(len(spread_now), len(spread_soon)),
        )

    def _can_spread(self, position: int) -> bool:
        return self._wanted and bool(self._graph.steps[position].wide)


def allocate_cores(seconds: float, *, slots: int, idle: int, waiting: int, wide: int) -> int:
    """On how many cores a step should work, so that none stands idle.

    What it uses beyond its own slot is not taken from anybody: there are more threads than cores
    then, and the kernel shares the cores out better than a guess could. That a core stood idle is
    what it needs, for several threads have more to do in all than one.

    Args:
        seconds: what it takes on one core.
        slots: how many steps can run at a time.
        idle: slots that nothing runs on, the one that the step gets included.
        waiting: how many other steps can start, now or soon.
        wide: how many steps will work on several cores beside it.
    """
    if not is_long(seconds) or idle - 1 <= waiting:
        return 1
    return min(slots, -(-_THREADS * slots // (1 + wide)))


def is_long(seconds: float) -> bool:
    """Whether a step that takes so long on one core is worth several."""
    return seconds >= _LONG_SECONDS


def seconds_on(cores: int, seconds: float) -> float:
    """What a step should take when it works on several cores that it has to share."""
    return seconds / max(1.0, cores / _THREADS)
