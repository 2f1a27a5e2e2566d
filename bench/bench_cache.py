# ruff: noqa: INP001, T201 - a script, whose table goes to standard output
"""Compare a second compile with the caches of archsplit, sccache and ccache, and with the goals.

    python bench/bench_cache.py --nvcc NVCC [--only CASE …] [--targets 80 90] [--json FILE]

Cases: `start` is a tiny file, for what a cache costs if it can't save anything; `make` is a project
of 200 small files, built cold and then again when its objects are gone; `templates` and `cub` are
one file each, compiled cold, again, after touch, in another folder that was unpacked in another
order, with a comment on top, and with one more target; `edits` change the object, and `STALE` marks
a cache that returns the old one; `recipe` is one more plugin of a list of targets. Seconds are wall
and CPU seconds, without sccache's server. Each tool starts with an empty store. The goals come
last, and a failed part counts as a missed goal; the exit status is 0 if all were met. Crowds and
remote stores are tests: `pytest -m stress tests/cache` and `pytest tests/cache`.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from cache_bench.edits import edited, own_toolkit
from cache_bench.goals import goals
from cache_bench.plugins import plugins
from cache_bench.project import project_goals, projects
from cache_bench.reuse import reused
from cache_bench.start import start_goals, started
from cache_bench.table import Goal, table
from cache_bench.tools import PartFailedError, tools

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cache_bench.table import Row
    from cache_bench.tools import Tool

_CASES = ("start", "make", "templates", "cub", "edits", "recipe")


def main() -> int:
    """Run what was asked for with all tools that there are; print what they took."""
    arguments = _arguments()
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores", flush=True)
    rows: list[Row] = []
    failed: list[Goal] = []
    with tempfile.TemporaryDirectory(prefix="bench-cache-") as name:
        try:
            for part, measured in _parts(arguments, Path(name)):
                failed += _collected(part, measured, rows)
        except KeyboardInterrupt:
            print("interrupted")
            failed.append(Goal(what="all parts run through", met=False, found="interrupted"))
    found = [*goals(rows), *start_goals(rows), *project_goals(rows), *failed]
    print(f"\nload {os.getloadavg()[0]:.1f}\n")
    print("\n".join([*table(rows), "", *map(_shown, found)]))
    if arguments.json:
        arguments.json.write_text(_as_json(rows, found))
    return 0 if all(goal.met for goal in found) else 1


def _collected(part: str, measured: Iterator[Row], rows: list[Row]) -> Iterator[Goal]:
    """Add a part's rows to the others; what was missed if it fails."""
    try:
        for row in measured:
            rows.append(row)
            print(row.text(), flush=True)
    except (PartFailedError, OSError) as error:
        print(f"{part}: {error}", flush=True)
        first = str(error).partition("\n")[0]
        yield Goal(what=f"{part} runs through", met=False, found=first)


def _parts(arguments: argparse.Namespace, folder: Path) -> Iterator[tuple[str, Iterator[Row]]]:
    """Return the measurements by name; a failed one doesn't stop the others."""
    nvcc = arguments.nvcc.absolute()
    peers = {"sccache": arguments.sccache, "ccache": arguments.ccache}
    sources = {"templates": "templates", "cub": "CUB"}
    with tools(nvcc, folder, **peers) as found:
        for case in arguments.only:
            for tool in found:
                place = folder / case / tool.name
                if case in sources:
                    rows = reused(tool, sources[case], place, arguments.targets)
                    yield f"{case} with {tool.name}", rows
                elif case == "start":
                    yield f"{case} with {tool.name}", started(tool, place)
                elif case == "make":
                    rows = projects(tool, place, files=arguments.files, jobs=arguments.jobs)
                    yield f"{case} with {tool.name}", rows
                elif case == "edits":
                    yield f"{case} with {tool.name}", _edits(tool, nvcc, place)
        if "recipe" in arguments.only:
            yield "recipe", plugins(found[0], folder / "recipe", [*arguments.targets, "120"])


def _edits(tool: Tool, nvcc: Path, place: Path) -> Iterator[Row]:
    place.mkdir(parents=True)
    yield from edited(tool.with_nvcc(own_toolkit(nvcc, place / "toolkit")), place)


def _shown(goal: Goal) -> str:
    return f"{'met   ' if goal.met else 'MISSED'} {goal.what}: {goal.found}"


def _as_json(rows: Sequence[Row], found: Sequence[Goal]) -> str:
    described = [
        {"case": row.case, "tool": row.tool, "wall": row.took.wall, "cpu": row.took.cpu}
        | {"verdict": row.verdict}
        for row in rows
    ]
    promised = [{"what": goal.what, "met": goal.met, "found": goal.found} for goal in found]
    return json.dumps({"schema": 1, "rows": described, "goals": promised}, indent=2)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--nvcc", type=Path, required=True)
    parser.add_argument("--only", nargs="+", default=_CASES, choices=_CASES, metavar="CASE")
    parser.add_argument("--sccache", metavar="PROGRAM", help="default: the one on the PATH")
    parser.add_argument("--ccache", metavar="PROGRAM", help="default: the one on the PATH")
    parser.add_argument("--targets", nargs="+", default=["80", "90"], metavar="N")
    parser.add_argument("--files", type=int, default=200, metavar="N", help="of the make case")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
