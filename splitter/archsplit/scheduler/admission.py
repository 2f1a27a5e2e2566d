"""Who may go first when memory is short; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

__pure__ = True


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

    def refuse(self, memory: int, *, short: int) -> None:
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

    def lets_pass(self, memory: int, *, seconds: float) -> bool:
        """Whether a less urgent step may ask for memory at all."""
        if self._refused is None:
            return True
        if memory >= self._refused:
            return False
        return self._now + seconds <= self._until or memory <= self._spare

    def passed(self, memory: int, *, seconds: float) -> None:
        """A step was let pass, and has started."""
        if self._refused is not None and self._now + seconds > self._until:
            self._spare -= memory
