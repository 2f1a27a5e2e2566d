"""Six compiles whose largest steps need 3 GB each, on a machine with 8 GB."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nvcc_bench.builds import FAT, FIRST, LEARNED, builds
from nvcc_bench.goals import Goal
from nvcc_bench.limits import memory_group
from nvcc_bench.sources import HUNGRY, write

if TYPE_CHECKING:
    from nvcc_bench.commands import Build
    from nvcc_bench.limits import Group
    from nvcc_bench.runs import Bench, Row

LIMIT = 8 << 30
_JOBS = 16
_TARGET = "90"
_WANTED = {f"make -j, {name}" for name in (FAT, FIRST, LEARNED)}


def memory(bench: Bench) -> tuple[list[Row], list[Goal]]:
    """Build with nvcc and with archsplit, both with ``make -j16``, in 8 GB of memory.

    The limit is a control group's, and archsplit isn't told of it. Where no group can be made, all
    processes of a build are killed as soon as they have more than that together, and archsplit gets
    the limit as an option.
    """
    sources = write(HUNGRY, bench.folder / "memory" / "src")
    bench = replace(bench, tools=replace(bench.tools, jobs=_JOBS, sccache=None))
    with memory_group(LIMIT) as group:
        options = "" if group else f"--memory {LIMIT}"
        every = builds(sources, tools=bench.tools, targets=(_TARGET,), options=options)
        limited = [_limited(bench, build, group) for build in every if build.name in _WANTED]
    return [row for row, _ in limited], [_goal(row, kills) for row, kills in limited]


def _limited(bench: Bench, build: Build, group: Group | None) -> tuple[Row, int]:
    """Run a build; how many of its processes were killed for want of memory."""
    if group is None:
        row = bench.once("memory", build, ceiling=LIMIT)
        return row, int(row.peak > LIMIT)
    before = group.kills()
    row = bench.once("memory", build, group=group)
    return row, group.kills() - before


def _goal(row: Row, kills: int) -> Goal:
    if not row.ours:
        survived = not kills and not row.trouble
        return Goal(what=f"memory: {row.build} gets through", value=survived, limit=0)
    what = f"memory: {row.build}: processes killed, or a failed build"
    return Goal(what=what, value=kills + bool(row.trouble), limit=0)
