# ruff: noqa: INP001, T201 - a script, whose table goes to standard output
"""CPU time of planning a source.

    python bench/bench_plan.py [--sources N] [--headers cub] [--json FILE]

Plans a recipe with small sources for 8 targets, by `archsplit plan` with a store of its own. The
time is the sum over all processes: archsplit, nvcc's dry runs, the preprocessor. With ``--headers
cub`` each source includes CUB and Thrust, which are a thousand headers.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from program_usage import children_cpu

from archsplit.system.process import Command, SubprocessRunner, run_checked

_TARGETS = '["sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"]'
_RECIPE = f"""\
[project]
name = "many"
version = "1.0"
summary = "Kernels."
license = "Apache-2.0"
license-files = ["LICENSE"]

[source]
files = ["src/*.cu"]
include = ["include"]

[targets]
sass = {_TARGETS}
ptx = ["compute_120"]

[interface]
header = "include/api.h"
symbols = ["many_0"]
"""
_HEADER = """\
#pragma once
#define SHOWN extern "C" __attribute__((visibility("default")))
SHOWN int many_0(int *);
"""
_CUB = "#include <cub/device/device_radix_sort.cuh>\n#include <thrust/sort.h>\n"


class Row(NamedTuple):
    """CPU seconds of a plan, together and for each source."""

    seconds: float
    each: float


def write_recipe(folder: Path, count: int, includes: str) -> None:
    """Write a recipe with that many sources."""
    for name in ("src", "include", "python/many"):
        (folder / name).mkdir(parents=True)
    (folder / "recipe.toml").write_text(_RECIPE)
    (folder / "LICENSE").write_text("Free.\n")
    (folder / "python/many/__init__.py").touch()
    (folder / "include/api.h").write_text(_HEADER)
    for number in range(count):
        (folder / f"src/k{number:03}.cu").write_text(
            f'{includes}#include "api.h"\n'
            f"static __global__ void kernel(int *p) {{ p[threadIdx.x] = {number}; }}\n"
            f"SHOWN int many_{number}(int *p) {{ kernel<<<1, 32>>>(p); return 0; }}\n"
        )


def measure(folder: Path, count: int) -> Row:
    """Plan the recipe, and return the CPU time of all its processes."""
    before = children_cpu()
    command = Command(
        argv=(sys.executable, "-m", "archsplit", "plan", str(folder / "recipe"), "--json"),
        cwd=folder,
        env={**os.environ, "ARCHSPLIT_CACHE_DIR": str(folder / "cache")},
    )
    run_checked(SubprocessRunner(), command, what="archsplit plan")
    seconds = children_cpu() - before
    return Row(round(seconds, 2), round(seconds / count, 4))


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sources", type=int, default=500, metavar="N")
    parser.add_argument("--headers", choices=("few", "cub"), default="few")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, count = Path(name), arguments.sources
        write_recipe(folder / "recipe", count, _CUB if arguments.headers == "cub" else "")
        row = measure(folder, count)
    print(f"{row.seconds:.2f} CPU s for a plan of {count} sources, {row.each:.4f} each")
    if arguments.json:
        arguments.json.write_text(json.dumps(row._asdict()))


if __name__ == "__main__":
    main()
