"""Reports on a run: a DOT graph, a CSV table, a trace, an explanation in words.

Input are the graph and its `Outcome`; output is text. The trace is for Chrome's and Perfetto's
viewers. The explanation gives the reason for the time of each start.
"""

from __future__ import annotations

import csv
import io
import json
from itertools import count, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from archsplit.scheduler.executor import Placement
    from archsplit.scheduler.graph import Graph
    from archsplit.scheduler.outcome import FinishedStep, Outcome, StepStart

__pure__ = True

TABLE_HEADER = ("step", "seconds", "cpu seconds", "peak memory", "bytes read", "bytes written")

_MICROSECONDS = 1e6
_FARM = 2
"""The trace's process of all workers; 1 is this machine."""

_ROUNDING = 1e-6
"""Seconds; sums of floats differ by less."""

_SHORT_WAIT = 0.005
"""Shorter waits are not mentioned."""


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
    # Replies come late, but never early: the smallest difference is that of the clocks.
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
