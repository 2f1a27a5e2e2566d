"""Records of a run and reports on it: its steps with their starts and ends.

`GraphRunner` reports each event to a `RunLog`, which has the clock; its output is the `Outcome`.
Reports are text: a DOT graph, a CSV table, and a trace for Chrome's and Perfetto's viewers.
"""

from __future__ import annotations

import io
import json
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from archsplit.scheduler.executor import RunningTask
    from archsplit.scheduler.graph import Graph
    from archsplit.system.process import CompletedProcess

__pure__ = True

TABLE_HEADER = ("step", "seconds", "cpu seconds", "peak memory", "bytes read", "bytes written")
_MICROSECONDS = 1e6


class FinishedStep(NamedTuple):
    """A step that ran to its end; times are seconds since the start of the run.

    Attributes:
        position: index of the step in the graph.
        slot: number of the step's slot; no two steps had it at the same time.
        cores: number of cores in the step's command.
        fault: the reason of a failure, for a message that begins with the step's name; "" for a
            success.
        peak_memory: bytes; 0 if the runner doesn't measure.
        attempts: 1, plus one for each restart because memory was short; 0 for a cached result.
        worker_seconds: seconds on another machine, without waits and transfers; 0 for a result that
            a farm had; None for a step of this machine.
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
    worker_seconds: float | None = None
    failed_part: int = 0

    @property
    def seconds(self) -> float:
        """Wall seconds of the last attempt."""
        return self.ended - self.started

    @property
    def output(self) -> str:
        """Standard output and standard error."""
        return self.stdout + self.stderr


class Outcome(NamedTuple):
    """The result of a run.

    Attributes:
        finished: the steps that ran to their end, in the graph's order, without those that were
            killed because an earlier step failed.
        failure: the first failed step in the graph's order, or None.
        seconds: wall seconds of the whole run.
    """

    finished: tuple[FinishedStep, ...]
    failure: FinishedStep | None
    seconds: float


class RunLog:
    """The records of one run, and its clock."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._attempts = [0] * len(graph.steps)
        self._finished: dict[int, FinishedStep] = {}
        self._began = time.monotonic()

    def now(self) -> float:
        """Return the seconds since the run began."""
        return time.monotonic() - self._began

    def attempts(self, position: int) -> int:
        """Return the number of a step's starts."""
        return self._attempts[position]

    def add_start(self, position: int) -> None:
        """Count a start of a step."""
        self._attempts[position] += 1

    def add_finished(
        self, task: RunningTask, done: CompletedProcess, fault: str, *, is_remote: bool = False
    ) -> None:
        """Add the final end of a step."""
        position = task.position
        self._finished[position] = FinishedStep(
            name=self._graph.steps[position].name,
            position=position,
            started=task.started,
            ended=self.now(),
            slot=task.slot,
            cores=task.cores,
            returncode=done.returncode,
            stdout=done.stdout,
            stderr=done.stderr,
            fault=fault,
            cpu_seconds=done.cpu_seconds,
            # The kernel knows the peak of only the largest child, the watchdog the sum of a step's
            # processes.
            peak_memory=max(done.peak_memory, task.peak_memory),
            attempts=self._attempts[position],
            worker_seconds=done.seconds if is_remote else None,
            failed_part=done.failed_part,
        )

    def add_cached(self, position: int, done: CompletedProcess) -> None:
        """Add a step whose result came from the cache."""
        now = self.now()
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
            seconds=self.now(),
        )


def format_graph_dot(graph: Graph, outcome: Outcome | None = None) -> str:
    """Return the graph as DOT text, with measured seconds, or guesses."""
    seconds = [step.weight for step in graph.steps]
    for done in outcome.finished if outcome is not None else ():
        seconds[done.position] = done.seconds
    return "\n".join(["digraph steps {", *_dot_lines(graph, seconds), "}"]) + "\n"


def _dot_lines(graph: Graph, seconds: Sequence[float]) -> Iterator[str]:
    yield '    rankdir="LR"; node [shape="box", fontname="sans-serif"];'
    for position, step in enumerate(graph.steps):
        name = step.name.replace("\\", "\\\\").replace('"', '\\"')
        yield f'    n{position} [label="{name}\\n{seconds[position]:.2f} s"];'
    for position, earlier in enumerate(graph.dependencies):
        yield from (f"    n{each} -> n{position};" for each in sorted(earlier))


def format_steps_table(
    graph: Graph, outcome: Outcome, *, size_of: Callable[[Path], int] | None = None
) -> str:
    """Return CSV: a header, and a row for each finished step in the graph's order.

    Args:
        size_of: returns the bytes of a file, 0 for a missing one; None for the file system. A row
            counts the files that its step declares.
    """
    import csv  # noqa: PLC0415 - few calls write a table

    size = size_of or file_size
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(TABLE_HEADER)
    for done in outcome.finished:
        step = graph.steps[done.position]
        read, written = sum(map(size, step.reads)), sum(map(size, step.writes))
        seconds, cpu = f"{done.seconds:.3f}", f"{done.cpu_seconds:.3f}"
        writer.writerow((done.name, seconds, cpu, done.peak_memory, read, written))
    return text.getvalue()


def file_size(path: Path) -> int:
    """Return the bytes of a file; 0 for a missing one."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


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
    document = {"traceEvents": [*names, *bars], "displayTimeUnit": "ms"}
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
