"""Costs of a cache that can't save anything: a hit and a first compile of a tiny file."""

from __future__ import annotations

import os
import shutil
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cache_bench.reuse import write
from cache_bench.table import Goal, Row
from cache_bench.tools import OURS, Took, measured

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from cache_bench.tools import Tool

_TINY = "#include <cstdio>\n__global__ void k(int *p) { *p = 1; }\n"
_FLAGS = ("-arch=sm_80",)
_HITS, _PAIRS = 21, 7
_HIT, _COLD, _OFF, _START = "tiny: hit", "tiny: cold", "tiny: cold, off", "tiny: Python's start"
_MOST_HIT, _MOST_COLD = 0.05, 1.05


def started(tool: Tool, folder: Path) -> Iterator[Row]:
    """Compile a tiny file when nothing of it is known, and when all of it is; medians."""
    folder.mkdir(parents=True)
    # Who asks for explanations has the whole way to a hit taken.
    plain = replace(tool, environment={**tool.environment, "ARCHSPLIT_NVCC_OPTIONS": ""})

    def cold(**variables: str) -> Took:
        at = len(os.listdir(folder.parent))  # noqa: PTH208 - their number is wanted
        place = folder.parent / f"{tool.name}-{at}"
        place.mkdir()
        write(place, f"{_TINY}__global__ void n{at}_{len(variables)}() {{}}\n")
        return plain.compile(place, *_FLAGS, **variables)

    cold()  # The tools are known then, as in all but the first compile of a build.
    pairs = [(cold(), cold(ARCHSPLIT_CACHE="off")) for _ in range(_PAIRS)]
    yield Row(case=_COLD, tool=tool.name, took=_median([first for first, _ in pairs]))
    if tool.name == OURS:
        yield Row(case=_OFF, tool=tool.name, took=_median([second for _, second in pairs]))
        python = _interpreter(tool.program)
        yield Row(case=_START, tool=tool.name, took=_median(_several(python, folder)))
    write(folder, _TINY)
    plain.compile(folder, *_FLAGS)
    hits = [plain.compile(folder, *_FLAGS) for _ in range(_HITS)]
    yield Row(case=_HIT, tool=tool.name, took=_median(hits))


def start_goals(rows: Sequence[Row]) -> Iterator[Goal]:
    """Yield what was promised of both."""
    took = {row.case: row.took for row in rows if row.tool == OURS}
    if _HIT in took and _START in took:
        above = took[_HIT].wall - took[_START].wall
        what = f"hit, a tiny file: at most {_MOST_HIT} s of wall above Python's start"
        yield Goal(what=what, met=above <= _MOST_HIT, found=f"{above:.3f} s")
    if _COLD in took and _OFF in took:
        share = took[_COLD].wall / took[_OFF].wall
        what = f"cold, a tiny file: at most {_MOST_COLD} of the wall without the cache"
        yield Goal(what=what, met=share <= _MOST_COLD, found=f"{share:.2f}")


def _interpreter(program: str) -> str:
    """Return the Python that the launcher is run by."""
    first = Path(shutil.which(program) or sys.executable).read_bytes().partition(b"\n")[0]
    return first[2:].split()[0].decode() if first.startswith(b"#!") else sys.executable


def _several(python: str, folder: Path) -> list[Took]:
    return [measured((python, "-I", "-S", "-c", "pass"), folder, os.environ) for _ in range(_HITS)]


def _median(runs: Sequence[Took]) -> Took:
    def middle(of: Callable[[Took], float]) -> float:
        return statistics.median(map(of, runs))

    return Took(middle(lambda run: run.wall), middle(lambda run: run.cpu), runs[-1].said)
