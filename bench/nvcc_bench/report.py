"""Tables that a person reads, and the same as JSON."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nvcc_bench.goals import Goal
    from nvcc_bench.runs import Row

_SCHEMA = 1


def text(rows: Sequence[Row], goals: Sequence[Goal]) -> str:
    """Return a table for each case, then the goals."""
    lines = [f"{cores()} cores, {platform.machine()}, Linux {platform.release()}"]
    for case in dict.fromkeys(row.case for row in rows):
        lines += _table([row for row in rows if row.case == case])
    lines += ["", "| goal | found | at most | |", "|---|---:|---:|---|"]
    for goal in goals:
        verdict = "met" if goal.met else "missed"
        lines.append(f"| {goal.what} | {goal.value:.3g} | {goal.limit:g} | {verdict} |")
    return "\n".join((*lines, ""))


def as_json(rows: Sequence[Row], goals: Sequence[Goal]) -> str:
    """Return the same for programs."""
    document = {
        "schema": _SCHEMA,
        "cores": cores(),
        "rows": [{**asdict(row), "folder": str(row.folder)} for row in rows],
        "goals": [{**asdict(goal), "met": goal.met} for goal in goals],
    }
    return json.dumps(document, indent=1) + "\n"


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def _table(rows: Sequence[Row]) -> Iterator[str]:
    peers = [row.wall for row in rows if not row.ours and not row.trouble]
    best = min(peers, default=0.0)
    yield from ("", f"### {rows[0].case}", "")
    yield "| build | wall s | against best peer | CPU s | peak MB | |"
    yield "|---|---:|---:|---:|---:|---|"
    for row in rows:
        ratio = f"{row.wall / best:.2f}" if best and not row.trouble else ""
        figures = f"{row.wall:.2f} | {ratio} | {row.cpu:.2f} | {row.peak / 1e6:.0f}"
        yield f"| {row.build} | {figures} | {row.trouble} |"
