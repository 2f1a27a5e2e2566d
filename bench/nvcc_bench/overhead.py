"""Measure the overhead of archsplit for a compile that it can't speed up."""

from __future__ import annotations

import contextlib
import os
import statistics
from dataclasses import replace
from typing import TYPE_CHECKING

from nvcc_bench.commands import Build, Compile, ours
from nvcc_bench.goals import Goal
from nvcc_bench.sources import HEADERS, TINY, write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from nvcc_bench.commands import Tools
    from nvcc_bench.runs import Bench, Row

_TARGET = "90"


def overhead(bench: Bench, *, pairs: int) -> tuple[list[Row], list[Goal]]:
    """Return the medians of many runs, and of the differences of neighbours, in milliseconds.

    The goal is for the machine as it is. On one core no step can run beside another, and what
    archsplit adds can't hide.
    """
    (source,) = write(TINY, bench.folder / "overhead" / "src")
    rows, found = [], []
    for where, cores in (("", os.sched_getaffinity(0)), (", on one core", {0})):
        with _on(cores):
            runs = [_pair(bench, _builds(source, bench.tools, where), at) for at in range(pairs)]
        rows += [_median([pair[is_ours] for pair in runs]) for is_ours in (False, True)]
        if not where:
            differences = [1000 * (pair[True].wall - pair[False].wall) for pair in runs]
            what = f"overhead: milliseconds over nvcc, median of {pairs} pairs"
            found.append(Goal(what=what, value=statistics.median(differences), limit=60.0))
    return rows, found


def _builds(source: Path, tools: Tools, where: str) -> list[Build]:
    flags = (f"-I{HEADERS}", f"-arch=sm_{_TARGET}", "-c", str(source), "-o", "tiny.o")
    theirs = Compile(argv=(*tools.nvcc, *flags), outputs=("tiny.o",))
    mine = Compile(argv=(*tools.archsplit, *flags), outputs=("tiny.o",), env=ours(tools))
    return [
        Build(name=f"nvcc{where}", compiles=(theirs,)),
        Build(name=f"archsplit{where}", compiles=(mine,), ours=True),
    ]


def _pair(bench: Bench, builds: list[Build], at: int) -> dict[bool, Row]:
    """Run both, each of them first in half of the pairs."""
    if at == 0:
        for build in builds:
            bench.once("overhead", build, round_=-1)  # not counted: it fills caches
    order = builds if at % 2 else builds[::-1]
    return {build.ours: bench.once("overhead", build, round_=at) for build in order}


def _median(rows: list[Row]) -> Row:
    walls, cpus = (
        statistics.median(getattr(row, what) for row in rows) for what in ("wall", "cpu")
    )
    return replace(max(rows, key=lambda row: bool(row.trouble)), wall=walls, cpu=cpus)


@contextlib.contextmanager
def _on(cores: set[int]) -> Iterator[None]:
    """Run children only on these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores & before or before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
