"""Say in words why each step started when it did; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archsplit.scheduler.outcome import Outcome, StepStart

__pure__ = True

_SHORT_WAIT = 0.005
"""Seconds that are not worth a word."""


def explain_run(outcome: Outcome) -> str:
    """A paragraph of a line or two for each start, in the order of time."""
    took = {done.position: done.seconds for done in outcome.finished}
    lines = [line for start in outcome.starts for line in _lines(start, took)]
    return "\n".join([*lines, f"{outcome.seconds:8.2f} s  end"]) + "\n"


def _lines(start: StepStart, took: dict[int, float]) -> Iterator[str]:
    again = f" (attempt {start.attempt})" if start.attempt > 1 else ""
    reasons = ", ".join(_reasons(start)) or "waited for nothing"
    yield f"{start.started:8.2f} s  {start.name}{again}: {reasons}"
    source = "learned" if start.learned else "guessed"
    cores = f" on {start.cores} cores" if start.cores > 1 else ""
    actual = f", took {took[start.position]:.2f} s" if start.position in took else ""
    yield (
        f"            {source} {start.seconds:.2f} s on one core and "
        f"{_memory_text(start)}{actual}{cores};"
        f" critical path {start.critical_path:.2f} s"
    )


def _reasons(start: StepStart) -> Iterator[str]:
    if start.after:
        yield f"waited for {start.after} until {start.ready:.2f} s"
    if start.waited_for_memory >= _SHORT_WAIT:
        yield f"{start.waited_for_memory:.2f} s for memory"
    if start.waited_for_slot >= _SHORT_WAIT:
        yield f"{start.waited_for_slot:.2f} s for a slot"


def _memory_text(start: StepStart) -> str:
    return "all memory" if start.is_alone else f"{start.memory / 1e6:.0f} MB"
