"""What each step took, as CSV."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from archsplit.scheduler.graph import Graph
    from archsplit.scheduler.outcome import Outcome

HEADER = ("step", "seconds", "cpu seconds", "peak memory", "bytes read", "bytes written")


def steps_table(
    graph: Graph, outcome: Outcome, *, size_of: Callable[[Path], int] | None = None
) -> str:
    """A header and a row for each step that ran to its end, in the graph's order.

    Args:
        size_of: tells a file's bytes, 0 where there is none; asks the file system when None. The
            files that a row counts are those that the step declares.
    """
    size = size_of or _file_size
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADER)
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
