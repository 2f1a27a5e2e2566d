# ruff: noqa: INP001, T201 - a script, whose table goes to standard output
"""Compare the speed of archsplit's compiler wrapper with nvcc, sccache and ccache.

    python bench/bench_nvcc.py [--only CASE …] [--repeat N] [--jobs N] [--json FILE] [--quick]

Cases: `thrust` and `gemm` are one file each, `mix` is 24 files, `split` a library per target from
the Thrust file, `overhead` a compile that can't get faster, `memory` six compiles with steps of 3
GB on a machine with 8 GB. All builds of a case run in turn, and the one with the shortest wall time
counts. The goals come last, as ratios; the exit status is 0 if all were met.
"""

from __future__ import annotations

import argparse
import contextlib
import shlex
import shutil
import signal
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nvcc_bench import goals, report, sources
from nvcc_bench.builds import FIRST, LEARNED, builds, library_builds
from nvcc_bench.commands import Tools
from nvcc_bench.critical import critical_path
from nvcc_bench.memory import memory
from nvcc_bench.overhead import overhead
from nvcc_bench.runs import Bench, Row

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from nvcc_bench.goals import Goal

_TARGETS = ("75", "80", "86", "89", "90", "100", "120")
_CASES = ("overhead", "thrust", "gemm", "split", "mix", "memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Extent of a benchmark run."""

    targets: tuple[str, ...]
    mix: Mapping[str, tuple[str, ...]]
    pairs: int


_FULL = Size(targets=_TARGETS, mix=sources.MIX, pairs=15)
_QUICK = Size(targets=("80", "90"), mix=sources.QUICK_MIX, pairs=7)


def main() -> int:
    """Run what was asked for, print the tables, and say whether the goals were met."""
    arguments = _arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that nothing is left running
    tools = Tools(
        nvcc=tuple(arguments.nvcc),
        archsplit=tuple(arguments.archsplit),
        archsplit_build=tuple(arguments.archsplit_build),
        sccache=arguments.sccache or shutil.which("sccache"),
        jobs=arguments.jobs,
    )
    size = _QUICK if arguments.quick else _FULL
    rows: list[Row] = []
    found: list[Goal] = []
    with tempfile.TemporaryDirectory(prefix="bench-nvcc-") as name:
        bench = Bench(folder=arguments.dir or Path(name), tools=tools, repeat=arguments.repeat)
        with contextlib.suppress(KeyboardInterrupt):  # the cases that are done are worth a table
            for case in arguments.only:
                new_rows, new_goals = _run(case, bench, size, arguments.builds)
                rows += new_rows
                found += new_goals
    print(report.text(rows, found))
    if arguments.json:
        arguments.json.write_text(report.as_json(rows, found))
    complete = {row.case for row in rows} == set(arguments.only)
    return 0 if complete and all(goal.met for goal in found) else 1


def _run(case: str, bench: Bench, size: Size, wanted: str) -> tuple[list[Row], list[Goal]]:
    if case == "overhead":
        return overhead(bench, pairs=size.pairs)
    if case == "memory":
        return memory(bench)
    if case == "split":
        recipe = sources.write_recipe(bench.folder / case / "recipe", size.targets)
        some = library_builds(recipe, tools=bench.tools, targets=size.targets)
    else:
        files = {"thrust": sources.THRUST, "gemm": sources.GEMM, "mix": size.mix}[case]
        paths = sources.write(files, bench.folder / case / "src")
        some = builds(paths, tools=bench.tools, targets=size.targets)
    rows = bench.run(case, [build for build in some if wanted in build.name])
    return rows, list(_goals(case, rows))


def _goals(case: str, rows: list[Row]) -> Iterator[Goal]:
    if case == "split":
        return goals.split(rows)
    if case == "mix":
        good = {row.build: row.folder for row in rows if not row.trouble}
        drawn, measured = (good.get(f"make -j, {name}") for name in (FIRST, LEARNED))
        path = critical_path(measured, drawn) if measured and drawn else 0.0
        return goals.many_files(rows, critical_path=path, cores=report.cores())
    return goals.single_file(rows, 0.90 if case == "thrust" else 1.0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    for name, default in (
        ("nvcc", "nvcc"),
        ("archsplit", "archsplit-nvcc"),
        ("archsplit-build", "archsplit build"),
    ):
        parser.add_argument(
            f"--{name}", type=shlex.split, default=shlex.split(default), metavar="COMMAND"
        )
    parser.add_argument("--sccache", metavar="PROGRAM", help="default: the one on the PATH")
    parser.add_argument("--only", nargs="+", choices=_CASES, default=_CASES, metavar="CASE")
    parser.add_argument(
        "--builds", default="", metavar="WORD", help="only those with it in the name"
    )
    parser.add_argument("--repeat", type=int, default=1, help="rounds (default: 1)")
    parser.add_argument("--jobs", type=int, default=report.cores(), help="default: the cores")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the same there")
    parser.add_argument("--quick", action="store_true", help="two targets, seven files")
    parser.add_argument(
        "--dir", type=_folder, help="an empty folder to work in; what was made stays there"
    )
    return parser.parse_args()


def _folder(text: str) -> Path:
    return Path(text).resolve()


if __name__ == "__main__":
    raise SystemExit(main())
