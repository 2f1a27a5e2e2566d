"""A project of many small files, built by make: cold, and again when its objects are gone."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from cache_bench.table import Goal, Row
from cache_bench.tools import OURS, Took, measured

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from cache_bench.tools import Tool

_AGAIN = 3
_MAKEFILE = """\
OBJECTS = $(patsubst %.cu,%.o,$(wildcard *.cu))
all: $(OBJECTS)
%.o: %.cu
\t@$(COMPILE) -c $< -o $@ -arch=sm_80 -MD -MF $*.d -MT $@
"""
_SOURCE = """\
#include <cstdio>
#include "shared.h"
__global__ void fill_{0}(T *p) {{ p[threadIdx.x] = {0}; }}
void run_{0}(T *p) {{ fill_{0}<<<1, 32>>>(p); }}
"""
_COLD, _WARM = "make, cold", "make, warm"
_MOST_CPU, _MOST_WALL = 3.0, 0.15


def projects(tool: Tool, folder: Path, *, files: int, jobs: int) -> Iterator[Row]:
    """Build the project with nothing in the cache, and several times with everything in it."""
    folder.mkdir(parents=True)
    (folder / "Makefile").write_text(_MAKEFILE)
    (folder / "shared.h").write_text("#pragma once\ntypedef float T;\n")
    for number in range(files):
        (folder / f"k{number}.cu").write_text(_SOURCE.format(number))
    # Options of archsplit's own are for other cases.
    plain = replace(tool, environment={**tool.environment, "ARCHSPLIT_NVCC_OPTIONS": ""})
    # A cache compares the contents of files that have just changed, and reads no times.
    time.sleep(3)
    yield Row(case=f"{_COLD}, {files} files", tool=tool.name, took=_make(plain, folder, jobs))
    took = []
    for _ in range(_AGAIN):
        for path in folder.glob("*.o"):
            path.unlink()
        took.append(_make(plain, folder, jobs))
    yield Row(case=f"{_WARM}, {files} files", tool=tool.name, took=min(took))


def project_goals(rows: Sequence[Row]) -> Iterator[Goal]:
    """Yield what was promised of a warm build beside the peers'."""
    warm = {row.tool: row.took for row in rows if row.case.startswith(_WARM)}
    if OURS in warm and "ccache" in warm:
        share = warm[OURS].cpu / warm["ccache"].cpu
        what = f"warm make: at most {_MOST_CPU:g} x ccache's CPU seconds"
        yield Goal(what=what, met=share <= _MOST_CPU, found=f"{share:.2f}")
    if OURS in warm and "sccache" in warm:
        share = warm[OURS].wall / warm["sccache"].wall
        what = f"warm make: at most {_MOST_WALL} of sccache's wall"
        yield Goal(what=what, met=share <= _MOST_WALL, found=f"{share:.3f}")


def _make(tool: Tool, folder: Path, jobs: int) -> Took:
    argv = ("make", f"-j{jobs}", f"COMPILE={tool.program} {tool.nvcc}")
    return measured(argv, folder, {**os.environ, **tool.environment})
