"""Expected seconds and memory of steps: from the history, from similar steps, from guesses."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from archsplit.scheduler.graph import Step

__pure__ = True

DEFAULT_MEMORY = 256 << 20
"""Bytes for a step without history and guess: enough for most; the watchdog measures the others."""


_LEAST_SHARE = 0.05
"""Share of a run after which its speed says something about its end."""


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
        self._floor: dict[int, int] = {}
        self.seconds = tuple(
            step.weight if learned is None else learned.seconds
            for step, learned in zip(steps, self._known, strict=True)
        )

    def is_learned(self, position: int) -> bool:
        """Return True if the estimate comes from earlier builds, not from a guess."""
        return self._known[position] is not None

    def memory(self, position: int) -> int:
        """Return the bytes that a step needs at its peak."""
        return max(self._floor.get(position, 0), self._first(position))

    def observe(self, position: int, memory: int) -> None:
        """Record the measured peak of a step; 0 where it was not measured.

        A step that was killed may have been about to take more.
        """
        if memory == 0:
            return
        self._floor[position] = max(self._floor.get(position, 0), _with_margin(memory))
        # A learned estimate of another step says nothing about its kind.
        if self._known[position] is None:
            self._of_kind.setdefault(self._steps[position].memory, []).append(memory)

    def _first(self, position: int) -> int:
        learned, guess = self._known[position], self._steps[position].memory
        if learned is not None:
            return _with_margin(learned.memory)
        if self._size_of is not None and self._steps[position].memory_per_byte:
            if position not in self._by_size:
                self._by_size[position] = self._sized(self._steps[position], self._size_of)
            return _with_margin(self._by_size[position])
        seen = self._of_kind.get(guess, [])
        # The smallest steps end first, so a guess loses its weight step by step.
        faded = (guess or DEFAULT_MEMORY) // (1 + len(seen))
        return max(faded, _with_margin(max(seen, default=0)))

    @staticmethod
    def _sized(step: Step, size_of: Callable[[Path], int]) -> int:
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
