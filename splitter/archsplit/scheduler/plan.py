"""Which steps of a graph may start, and what a failure leaves to do; pure."""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from archsplit.scheduler.graph import Graph

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
        self._missing = [len(earlier) for earlier in graph.waits_for]
        self._failed: set[int] = set()
        self._wanted = frozenset(range(len(graph.steps)))
        for position, count in enumerate(self._missing):
            if count == 0:
                self._add(position)

    @property
    def over(self) -> bool:
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

    def again(self, position: int) -> None:
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
        for later in self._graph.wakes[position]:
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
        hopeless = _closure(self._failed, self._graph.wakes.__getitem__)
        earlier = set(range(min(self._failed))) - hopeless
        self._wanted = _closure(earlier, self._graph.waits_for.__getitem__)
        self.ready = [each for each in self.ready if each in self._wanted]
        return frozenset(self.running - self._wanted)

    def drop(self, position: int) -> None:
        """A step that was of no use any more has ended."""
        self.running.remove(position)

    def soon(self, ends: Mapping[int, float], *, by: float) -> tuple[int, ...]:
        """Which steps will become ready until then.

        Args:
            ends: when each running step is expected to end.
            by: until when.
        """
        ending = [position for position in self.running if ends[position] <= by]
        missing: dict[int, int] = {}
        for position in ending:
            for later in self._graph.wakes[position]:
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
