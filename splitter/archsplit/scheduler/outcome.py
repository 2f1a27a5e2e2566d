"""Records of a run and reports on it: its steps with their waits, starts and ends.

`GraphRunner` reports each event to a `RunLog`, which has the clock; its output is the `Outcome`.
The time of a ready step counts as a wait for memory or for a slot, by what the step lacked at the
last attempt to start it.

Reports are text: a DOT graph, a CSV table, a trace for Chrome's and Perfetto's viewers, and an
explanation in words, which gives the reason for the time of each start.
"""

from __future__ import annotations

import csv
import io
import json
import time
from dataclasses import dataclass
from itertools import count, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from archsplit.scheduler.pool import ALL_MEMORY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from archsplit.scheduler.executor import Placement, RunningTask
    from archsplit.scheduler.graph import Graph
    from archsplit.scheduler.plan import Estimates
    from archsplit.system.process import CompletedProcess

__pure__ = True

TABLE_HEADER = ("step", "seconds", "cpu seconds", "peak memory", "bytes read", "bytes written")
_MICROSECONDS = 1e6
_FARM = 2
"""The trace's process of all workers; 1 is this machine."""
_ROUNDING = 1e-6
"""Seconds; sums of floats differ by less."""
_SHORT_WAIT = 0.005
"""Shorter waits are not mentioned."""


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
        """Return True if the step ran on its own."""
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
            # The kernel knows the peak of only the largest child, the watchdog the sum of a step's
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


def format_graph_dot(graph: Graph, outcome: Outcome | None = None) -> str:
    """Return the graph as DOT text, with measured seconds, or guesses where there are none."""
    seconds = [step.weight for step in graph.steps]
    for done in outcome.finished if outcome is not None else ():
        seconds[done.position] = done.seconds
    critical = critical_chain(graph, seconds)
    return "\n".join(["digraph steps {", *_dot_lines(graph, seconds, critical), "}"]) + "\n"


def critical_chain(graph: Graph, seconds: Sequence[float]) -> tuple[int, ...]:
    """Return the positions of the longest chain of steps, first to last."""
    lengths = graph.critical_path(seconds)
    chain = []
    following = frozenset(range(len(graph.steps)))
    while following:
        # Of equals the first, so that the picture is the same each time.
        chain.append(min(following, key=lambda at: (-lengths[at], at)))
        following = graph.dependents[chain[-1]]
    return tuple(chain)


def _dot_lines(graph: Graph, seconds: Sequence[float], critical: tuple[int, ...]) -> Iterator[str]:
    yield '    rankdir="LR"; node [shape="box", fontname="sans-serif"];'
    for position, step in enumerate(graph.steps):
        label = f"{step.name}\\n{seconds[position]:.2f} s"
        bold = ', penwidth="3"' if position in critical else ""
        yield f'    n{position} [label="{_quoted(label)}"{bold}];'
    links = set(pairwise(critical))
    for position, earlier in enumerate(graph.dependencies):
        for each in sorted(earlier):
            bold = ' [penwidth="3"]' if (each, position) in links else ""
            yield f"    n{each} -> n{position}{bold};"


def _quoted(text: str) -> str:
    return text.replace('"', '\\"')


def format_steps_table(
    graph: Graph, outcome: Outcome, *, size_of: Callable[[Path], int] | None = None
) -> str:
    """Return CSV: a header, and a row for each finished step in the graph's order.

    Args:
        size_of: returns the bytes of a file, 0 for a missing one; None for the file system. A row
            counts the files that its step declares.
    """
    size = size_of or _file_size
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(TABLE_HEADER)
    for done in outcome.finished:
        step = graph.steps[done.position]
        read, written = _sum(step.reads, size), _sum(step.writes, size)
        seconds, cpu = f"{done.seconds:.3f}", f"{done.cpu_seconds:.3f}"
        writer.writerow((done.name, seconds, cpu, done.peak_memory, read, written))
    return text.getvalue()


def _sum(paths: Iterable[Path], size_of: Callable[[Path], int]) -> int:
    return sum(map(size_of, paths))


def _file_size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def format_chrome_trace(outcome: Outcome) -> str:
    """Return the run as trace JSON: a row for each slot, a bar for each step.

    The format: "Trace Event Format", complete events ("X") and thread names ("M").
    """
    slots = sorted({done.slot for done in outcome.finished})
    names = [
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": slot, "args": {"name": f"slot {slot}"}}
        for slot in slots
    ]
    bars = [_bar(done) for done in outcome.finished]
    places = list(_farm_events(outcome))
    document = {"traceEvents": [*names, *bars, *places], "displayTimeUnit": "ms"}
    return json.dumps(document, indent=1) + "\n"


def _bar(done: FinishedStep) -> dict[str, object]:
    return {
        "ph": "X",
        "name": done.name,
        "cat": "failed" if done.fault else "step",
        "pid": 1,
        "tid": done.slot,
        "ts": round(done.started * _MICROSECONDS),
        "dur": round(done.seconds * _MICROSECONDS),
        "args": {
            "cpu seconds": round(done.cpu_seconds, 3),
            "peak memory": done.peak_memory,
            "cores": done.cores,
            "attempts": done.attempts,
            "exit status": done.returncode,
        },
    }


def _farm_events(outcome: Outcome) -> Iterator[dict[str, object]]:
    """Yield the stages of each step, and a row for each worker's slot."""
    placed = [(done, done.placement) for done in outcome.finished if done.placement is not None]
    ran = []
    # Replies come late, but never early: the smallest difference is the clocks' own.
    shifts: dict[str, float] = {}
    for done, placement in placed:
        for stage in placement.stages:
            yield _stage_bar(stage.name, done.started + stage.begin, stage.seconds, 1, done.slot)
        if there := [stage for stage in placement.stages if stage.is_on_worker]:
            ran.append((placement.began, done, placement, there))
            shift = done.started + there[0].begin - placement.began
            shifts[placement.worker] = min(shift, shifts.get(placement.worker, shift))
    ends: dict[tuple[str, int], float] = {}
    rows: dict[tuple[str, int], int] = {}
    for _, done, placement, there in sorted(ran, key=itemgetter(0)):
        begin = placement.began + shifts[placement.worker]
        end = begin + there[-1].begin + there[-1].seconds - there[0].begin
        # A farm has no numbers of slots: the first row that is free has as many as ran at a time.
        slots = ((placement.worker, slot) for slot in count())
        row = next(each for each in slots if ends.get(each, begin) <= begin + _ROUNDING)
        ends[row] = end
        if row not in rows:
            rows[row] = len(rows)
            title = {"name": f"{row[0]} slot {row[1]}"}
            tid = rows[row]
            yield {"ph": "M", "name": "thread_name", "pid": _FARM, "tid": tid, "args": title}
        yield _stage_bar(done.name, begin, end - begin, _FARM, rows[row])
        for stage in there:
            start = begin + stage.begin - there[0].begin
            yield _stage_bar(stage.name, start, stage.seconds, _FARM, rows[row])


def _stage_bar(name: str, began: float, seconds: float, pid: int, tid: int) -> dict[str, object]:
    return {
        "ph": "X",
        "name": name,
        "cat": "farm",
        "pid": pid,
        "tid": tid,
        "ts": round(began * _MICROSECONDS),
        "dur": round(seconds * _MICROSECONDS),
    }


def explain_run(outcome: Outcome) -> str:
    """Return the reasons for each start in words, in the order of time."""
    took = {done.position: done.seconds for done in outcome.finished}
    places = {done.position: done.placement for done in outcome.finished}
    lines: list[str] = []
    for start in outcome.starts:
        lines += _lines(start, took)
        if (placement := places.get(start.position)) is not None:
            lines.append(f"            {_placement_text(placement)}")
    return "\n".join([*lines, f"{outcome.seconds:8.2f} s  end"]) + "\n"


def _lines(start: StepStart, took: dict[int, float]) -> Iterator[str]:
    again = f" (attempt {start.attempt})" if start.attempt > 1 else ""
    reasons = ", ".join(_reasons(start)) or "waited for nothing"
    yield f"{start.started:8.2f} s  {start.name}{again}: {reasons}"
    source = "learned" if start.is_learned else "guessed"
    cores = f" on {start.cores} cores" if start.cores > 1 else ""
    actual = f", took {took[start.position]:.2f} s" if start.position in took else ""
    yield (
        f"            {source} {start.seconds:.2f} s on one core and "
        f"{_memory_text(start)}{actual}{cores};"
        f" critical path {start.critical_path:.2f} s"
    )


def _placement_text(placement: Placement) -> str:
    where = f"on {placement.worker}" if placement.worker else "the farm had the result"
    stages = (f"{stage.name} {stage.seconds:.2f} s" for stage in placement.stages)
    return f"{where}: {', '.join(stages)}"


def _reasons(start: StepStart) -> Iterator[str]:
    if start.after:
        yield f"waited for {start.after} until {start.ready:.2f} s"
    if start.waited_for_memory >= _SHORT_WAIT:
        yield f"{start.waited_for_memory:.2f} s for memory"
    if start.waited_for_slot >= _SHORT_WAIT:
        yield f"{start.waited_for_slot:.2f} s for a slot"


def _memory_text(start: StepStart) -> str:
    return "all memory" if start.is_alone else f"{start.memory / 1e6:.0f} MB"
