"""What came of running a graph, and why each step started when it did; records."""

from __future__ import annotations

from dataclasses import dataclass

from archsplit.scheduler.pool import ALL_MEMORY


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedStep:
    """A step that ran to its end; times are seconds since the run began.

    Attributes:
        position: its place in the graph.
        slot: the number of the one that it ran on; no two steps had it at the same time.
        cores: on how many it was told to work, if they are idle.
        fault: what was wrong, for a message that begins with the step's name; "" for a success.
        peak_memory: bytes; 0 where the runner doesn't measure.
        attempts: 1, one more for each time that memory was short; 0 for a known result.
    """

    name: str
    position: int
    started: float
    ended: float
    slot: int
    cores: int
    returncode: int
    stdout: str
    stderr: str
    fault: str
    cpu_seconds: float
    peak_memory: int
    attempts: int

    @property
    def seconds(self) -> float:
        """Wall seconds of the last attempt."""
        return self.ended - self.started

    @property
    def output(self) -> str:
        """What it said on both streams."""
        return self.stdout + self.stderr


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStart:
    """Why a step started when it did; times are seconds since the run began.

    Attributes:
        ready: when the last file that it reads was there.
        after: the step that wrote that file; "" when it waited for none.
        waited_for_slot: seconds in which it was ready, and others had all the slots.
        waited_for_memory: seconds in which it was ready, and its memory would not have fitted.
        seconds: what it was expected to take on one core.
        memory: the bytes that were reserved for it.
        is_learned: whether earlier builds said so, or it was a guess.
        critical_path: expected seconds from its start to the end of the run.
        attempt: 1 for the first.
    """

    name: str
    position: int
    ready: float
    started: float
    after: str
    waited_for_slot: float
    waited_for_memory: float
    cores: int
    seconds: float
    memory: int
    is_learned: bool
    critical_path: float
    attempt: int

    @property
    def is_alone(self) -> bool:
        """Whether nothing else could run beside it."""
        return self.memory >= ALL_MEMORY


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Everything that ran.

    Attributes:
        finished: the steps that ran to their end, in the graph's order; those that were killed
            because an earlier one failed are not among them.
        failure: the first in the graph's order that failed, or None.
        starts: one for each start, in the order of time.
        seconds: wall seconds of the whole run.
    """

    finished: tuple[FinishedStep, ...]
    failure: FinishedStep | None
    starts: tuple[StepStart, ...]
    seconds: float
