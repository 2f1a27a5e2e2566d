"""Records of a finished run: its steps, and the reasons for each start."""

from __future__ import annotations

from dataclasses import dataclass

from archsplit.scheduler.pool import ALL_MEMORY


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A part of a step's time on a farm.

    Attributes:
        begin: seconds since the start of the step.
        is_on_worker: False for the transfers and waits of this machine.
    """

    name: str
    begin: float
    seconds: float
    is_on_worker: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The place and the times of a step that another machine ran.

    Attributes:
        worker: its name; "" for a result that the farm had.
        stages: in the order of time.
        began: begin of the first stage on the worker, by the clock of the worker.
    """

    worker: str
    stages: tuple[Stage, ...]
    began: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedStep:
    """A step that ran to its end; times are seconds since the start of the run.

    Attributes:
        position: index of the step in the graph.
        slot: number of the step's slot; no two steps had it at the same time.
        cores: number of cores in the step's command.
        fault: the reason of a failure, for a message that begins with the step's name; "" for a
            success.
        peak_memory: bytes; 0 where the runner doesn't measure.
        attempts: 1, plus one for each restart for want of memory; 0 for a cached result.
        placement: None for a step of this machine.
        failed_part: see `CompletedProcess`.
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
    placement: Placement | None = None
    failed_part: int = 0

    @property
    def seconds(self) -> float:
        """Wall seconds of the last attempt."""
        return self.ended - self.started

    @property
    def output(self) -> str:
        """Standard output and standard error."""
        return self.stdout + self.stderr


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStart:
    """Reasons for the time of a step's start; times are seconds since the start of the run.

    Attributes:
        ready: time at which the last input existed.
        after: name of the step that wrote that input; "" for a step without dependencies.
        waited_for_slot: seconds in which the step was ready and no slot was free.
        waited_for_memory: seconds in which the step was ready and its memory did not fit.
        seconds: expected seconds on one core.
        memory: reserved bytes.
        is_learned: True if the estimates come from earlier builds, False for guesses.
        critical_path: expected seconds from the step's start to the end of the run.
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
        """Return True if the step ran alone."""
        return self.memory >= ALL_MEMORY


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a run.

    Attributes:
        finished: the steps that ran to their end, in the graph's order, without those that were
            killed because an earlier step failed.
        failure: the first failed step in the graph's order, or None.
        starts: one for each start, in the order of time.
        seconds: wall seconds of the whole run.
    """

    finished: tuple[FinishedStep, ...]
    failure: FinishedStep | None
    starts: tuple[StepStart, ...]
    seconds: float
