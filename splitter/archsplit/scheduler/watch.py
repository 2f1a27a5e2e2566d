"""Look at the memory of what runs, and choose what to kill before the OOM killer does."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from archsplit.scheduler.pool import Pool
    from archsplit.scheduler.task import RunningTask

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
        next_look: when to look again.
    """

    def __init__(self, pool: Pool) -> None:
        self.next_look = _LONGEST
        self._pool = pool
        self._pressed_since: float | None = None

    def hasten(self, now: float) -> None:
        """A step has started: look soon how much it takes."""
        self.next_look = min(self.next_look, now + _FIRST)

    def look(self, now: float, active: Collection[RunningTask]) -> None:
        """Measure every step, and kill some if there is need."""
        for one in active:
            one.measure(now)
        room = self._pool.room()
        if not self._is_pressed(room, active):
            self._pressed_since = None
        else:
            self._pressed_since = now if self._pressed_since is None else self._pressed_since
            self._relieve(room, active, patient=now - self._pressed_since <= _PATIENCE)
        until_full = max(room, 0) / (_GROWTH * max(len(active), 1))
        self.next_look = now + min(max(until_full / 2, _SHORTEST), _LONGEST)

    def _is_pressed(self, room: int, active: Collection[RunningTask]) -> bool:
        """Whether memory would be used up before something could be done about it."""
        leaving = sum(one.seen for one in active if one.reclaimed)
        surprises = sum(one.surprise(_REACTION) for one in active if not one.reclaimed)
        return room + leaving <= surprises

    def _relieve(self, room: int, active: Collection[RunningTask], *, patient: bool) -> None:
        """Kill our youngest steps until there is room, if they are the youngest of all."""
        by_age = sorted(active, key=lambda one: one.grant.row.started)
        ours = {one.grant.row.started for one in by_age}
        theirs = [row.started for row in self._pool.rows() if row.started not in ours]
        # The oldest of all is spared.
        first = 0 if theirs and min(theirs) < min(ours) else 1
        for one in reversed(by_age[first:]):
            someone_younger = patient and one.grant.row.started < max(theirs, default=0)
            if someone_younger or not self._is_pressed(room, active):
                return
            if not one.reclaimed:
                one.reclaim()
