"""Keep account of what each ready step waits for; pure."""

from __future__ import annotations

from typing import NamedTuple

__pure__ = True


class WaitRecord(NamedTuple):
    """Since when a step was ready, after which other, and how many seconds it waited for what."""

    ready: float
    after: str
    slot: float
    memory: float


class WaitLog:
    """Seconds per step and reason, from looks at the line of those that wait."""

    def __init__(self) -> None:
        self._waited: dict[int, WaitRecord] = {}
        self._looked: dict[int, float] = {}
        self._short: frozenset[int] = frozenset()

    def ready(self, position: int, *, now: float, after: str) -> None:
        """A step has become ready, by the end of another or at the beginning."""
        self._waited[position] = WaitRecord(now, after, 0.0, 0.0)
        self._looked[position] = now

    def look(self, *, now: float, short: frozenset[int]) -> None:
        """Count the time since the last look, and say which of the waiting lack memory now."""
        for position, since in self._looked.items():
            self._add(position, now - since)
        self._looked = dict.fromkeys(self._looked, now)
        self._short = short

    def started(self, position: int, *, now: float) -> WaitRecord:
        """A step starts; the account is closed."""
        self._add(position, now - self._looked.pop(position))
        return self._waited.pop(position)

    def _add(self, position: int, seconds: float) -> None:
        waited = self._waited[position]
        if position in self._short:
            self._waited[position] = waited._replace(memory=waited.memory + seconds)
        else:
            self._waited[position] = waited._replace(slot=waited.slot + seconds)
