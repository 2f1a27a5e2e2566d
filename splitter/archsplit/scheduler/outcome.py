"""Records of a run: its steps with their waits, starts and ends, and the log that makes them.

`GraphRunner` reports each event to a `RunLog`, which has the clock; its output is the `Outcome`.
The time of a ready step counts as a wait for memory or for a slot, by what the step lacked at the
last attempt to start it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from archsplit.scheduler.pool import ALL_MEMORY

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from archsplit.scheduler.estimates import Estimates
    from archsplit.scheduler.executor import Placement, RunningTask
    from archsplit.scheduler.graph import Graph
    from archsplit.system.process import CompletedProcess

__pure__ = True


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


class WaitRecord(NamedTuple):
    """Time at which a step became ready, and its seconds of waiting by reason."""

    ready: float
    after: str
    slot: float
    memory: float


class WaitLog:
    """Seconds of waiting per step and reason."""

    def __init__(self) -> None:
        self._ready: dict[int, tuple[float, str]] = {}
        self._memory: dict[int, float] = {}
        self._short: frozenset[int] = frozenset()
        self._updated = 0.0

    def add_ready(self, position: int, *, now: float, after: str) -> None:
        """Add a step that has become ready."""
        self._ready[position] = now, after

    def update(self, *, now: float, short: frozenset[int]) -> None:
        """Count the time since the last update, and set the steps that lack memory now."""
        # Only these: a loop over all that wait would make each event as dear as the graph is big.
        for position in self._short & self._ready.keys():
            self._count_memory(position, now)
        self._short, self._updated = short, now

    def close(self, position: int, *, now: float) -> WaitRecord:
        """Return the waits of a step that starts now."""
        if position in self._short:
            self._count_memory(position, now)
        ready, after = self._ready.pop(position)
        memory = self._memory.pop(position, 0.0)
        # Each second counts for one reason, so that the reasons add up to the whole wait.
        return WaitRecord(ready, after, max(0.0, now - ready - memory), memory)

    def _count_memory(self, position: int, now: float) -> None:
        since = max(self._updated, self._ready[position][0])
        self._memory[position] = self._memory.get(position, 0.0) + now - since


class RunLog:
    """The records of one run, and its clock.

    Args:
        urgency: each step's expected seconds from its start to the end of the run.
    """

    def __init__(self, graph: Graph, forecast: Estimates, urgency: Sequence[float]) -> None:
        self._graph = graph
        self._forecast = forecast
        self._urgency = urgency
        self._waits = WaitLog()
        self._attempts = [0] * len(graph.steps)
        self._starts: list[StepStart] = []
        self._finished: dict[int, FinishedStep] = {}
        self._began = time.monotonic()

    def now(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._began

    def attempts(self, position: int) -> int:
        """Return the number of a step's starts."""
        return self._attempts[position]

    def add_ready(self, positions: Iterable[int], *, after: str) -> None:
        """Add steps that became ready after another step; "" for none."""
        for position in positions:
            self._waits.add_ready(position, now=self.now(), after=after)

    def update_waits(self, short: Iterable[int]) -> None:
        """Set the ready steps that lack memory now; the others lack a slot."""
        self._waits.update(now=self.now(), short=frozenset(short))

    def add_start(self, active: RunningTask) -> None:
        """Add the start of a step."""
        position = active.position
        self._attempts[position] += 1
        waited = self._waits.close(position, now=active.started)
        start = StepStart(
            name=self._graph.steps[position].name,
            position=position,
            ready=waited.ready,
            started=active.started,
            after=waited.after,
            waited_for_slot=waited.slot,
            waited_for_memory=waited.memory,
            cores=active.cores,
            seconds=self._forecast.seconds[position],
            memory=active.memory,
            is_learned=self._forecast.is_learned(position),
            critical_path=self._urgency[position],
            attempt=self._attempts[position],
        )
        self._starts.append(start)

    def add_finished(
        self,
        active: RunningTask,
        done: CompletedProcess,
        fault: str,
        placement: Placement | None = None,
    ) -> None:
        """Add the final end of a step."""
        position = active.position
        self._finished[position] = FinishedStep(
            name=self._graph.steps[position].name,
            position=position,
            started=active.started,
            ended=self.now(),
            slot=active.slot,
            cores=active.cores,
            returncode=done.returncode,
            stdout=done.stdout,
            stderr=done.stderr,
            fault=fault,
            cpu_seconds=done.cpu_seconds,
            # The kernel knows the peak of the largest child alone, the watchdog the sum of a step's
            # processes.
            peak_memory=max(done.peak_memory, active.peak_memory),
            attempts=self._attempts[position],
            placement=placement,
            failed_part=done.failed_part,
        )

    def add_cached(self, position: int, done: CompletedProcess) -> None:
        """Add a step whose result came from the cache."""
        now = self.now()
        self._waits.close(position, now=now)
        self._finished[position] = FinishedStep(
            name=self._graph.steps[position].name,
            position=position,
            started=now,
            ended=now,
            slot=0,
            cores=1,
            returncode=0,
            stdout=done.stdout,
            stderr=done.stderr,
            fault="",
            cpu_seconds=0.0,
            peak_memory=0,
            # No attempt: summaries count programs that ran.
            attempts=0,
        )

    def outcome(self, first_failed: int | None) -> Outcome:
        """Return the outcome of the run so far."""
        return Outcome(
            finished=tuple(self._finished[position] for position in sorted(self._finished)),
            failure=None if first_failed is None else self._finished[first_failed],
            starts=tuple(self._starts),
            seconds=self.now(),
        )
