"""The times of one step on a farm, by two clocks.

In: the ends of stages here, and the stages that a worker reports by its own clock. Out: a
`Placement`, by the clock of this machine alone. Clocks of machines differ, but the last stage of a
worker ends when the reply comes.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from archsplit.scheduler.executor import Placement, Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__pure__ = True


class StepClock:
    """The stages of a step so far.

    Args:
        now: returns seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._began = self._last = now()
        self._worker, self._worker_began = "", 0.0
        self._stages: list[Stage] = []

    def end_stage(self, name: str) -> None:
        """Add a stage from the end of the last one until now."""
        begin, self._last = self._last, self._now()
        self._add(name, begin, self._last)

    def end_remote(self, worker: str, stages: Iterable[tuple[str, float, float]]) -> None:
        """Add the stages on a worker, and before them the wait for it.

        Args:
            worker: its name.
            stages: names, begins and ends by the clock of the worker, in the order of time.
        """
        sent, self._last, self._worker = self._last, self._now(), worker
        # Servers may leave out any of the times.
        known = [(name, begin, end) for name, begin, end in stages if 0 < begin <= end]
        shift = self._last - max((end for _, _, end in known), default=0.0)
        first = min((begin for _, begin, _ in known), default=0.0)
        # A server that has joined the step with a running one began before it was asked.
        self._worker_began = first
        self._add("queue", sent, max(first + shift, sent))
        for name, begin, end in known:
            self._add(name, max(begin + shift, sent), max(end + shift, sent), is_on_worker=True)

    def placement(self) -> Placement:
        """Return the stages so far."""
        return Placement(worker=self._worker, stages=tuple(self._stages), began=self._worker_began)

    def _add(self, name: str, begin: float, end: float, *, is_on_worker: bool = False) -> None:
        stage = Stage(
            name=name, begin=begin - self._began, seconds=end - begin, is_on_worker=is_on_worker
        )
        self._stages.append(stage)
