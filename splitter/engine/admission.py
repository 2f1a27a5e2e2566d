"""Who may go first when memory is short, and who gets cores that would stand idle; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

_LONG_SECONDS = 1.0
"""A ptxas of 0.75 s takes 0.95 s on 13 cores, and 2.0 s of CPU; one of 1.25 s gains."""
_THREADS = 2
"""For each core, while there are too few steps: one thread is never ready to go on."""


class Expected(NamedTuple):
    """A running step: when it is expected to end, and the bytes that are free then."""

    end: float
    memory: int


class Line:
    """Steps that wait for memory; one may pass another only if that needn't wait longer for it.

    Without this a step that needs much would wait until those that need little are all done.
    """

    def __init__(self, *, now: float, running: Iterable[Expected]) -> None:
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


def cores_for(seconds: float, *, slots: int, idle: int, waiting: int, wide: int) -> int:
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
