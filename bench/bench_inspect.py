# ruff: noqa: INP001, T201 - a script, whose table goes to standard output
"""Compare the time and memory of inspect with other tools that read device code.

    python bench/bench_inspect.py LIBRARY --cuobjdump PATH --cubloaty PATH [--rounds 3]

All programs run in turn in every round, after the file has been read once. The shortest time of
each counts, and its largest peak of resident memory. The goals: on a library of more than 300 MB
inspect is at least 8 times as fast as each of the others, and takes at most 200 MB.
"""

from __future__ import annotations

import argparse
import os
import shlex
import time
from dataclasses import dataclass
from pathlib import Path

from program_usage import megabytes

from archsplit.system.fs import sha256

_LEAST_SIZE = 300_000_000
_LEAST_RATIO = 8.0
_MOST_MEGABYTES = 200.0
_OURS = "archsplit inspect"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run of a program: wall seconds, and the peak of its resident memory in MB."""

    seconds: float
    megabytes: float


def main() -> int:
    """Run everything, print a table, and say by the exit status whether the goals were met."""
    arguments = _arguments()
    library = str(arguments.library)
    programs = {
        _OURS: (*arguments.archsplit, "inspect", library),
        f"{_OURS} --json, with the SHA-256": (*arguments.archsplit, "inspect", library, "--json"),
        "cuobjdump -all -lelf -lptx": (*arguments.cuobjdump, "-all", "-lelf", "-lptx", library),
        "cubloaty": (*arguments.cubloaty, library),
    }
    size = arguments.library.stat().st_size
    print(f"{arguments.library.name}, {size / 1e6:.0f} MB, SHA-256 {sha256(arguments.library)}\n")
    runs: dict[str, list[Run]] = {name: [] for name in programs}
    for _ in range(arguments.rounds):
        for name, argv in programs.items():
            runs[name].append(_run(argv))
    return _report(runs, is_large=size > _LEAST_SIZE)


def _report(runs: dict[str, list[Run]], *, is_large: bool) -> int:
    times = {name: min(run.seconds for run in some) for name, some in runs.items()}
    peaks = {name: max(run.megabytes for run in some) for name, some in runs.items()}
    print("| program | seconds | times ours | peak MB |\n|---|---|---|---|")
    for name, seconds in times.items():
        print(f"| {name} | {seconds:.2f} | {seconds / times[_OURS]:.1f} | {peaks[name]:.0f} |")
    others = [name for name in runs if not name.startswith(_OURS)]
    slow = [name for name in others if times[name] < _LEAST_RATIO * times[_OURS]]
    good = is_large and not slow and peaks[_OURS] <= _MOST_MEGABYTES
    print(f"\ngoals {'met' if good else 'missed'}")
    return 0 if good else 1


def _run(argv: tuple[str, ...]) -> Run:
    """Run a program to its end, its output thrown away."""
    quiet = [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_WRONLY, 0) for stream in (1, 2)]
    started = time.perf_counter()
    process = os.posix_spawnp(argv[0], argv, os.environ, file_actions=quiet)
    _, status, usage = os.wait4(process, 0)
    seconds = time.perf_counter() - started
    if status != 0:
        raise SystemExit(f"failed with wait status {status}: {shlex.join(argv)}")
    return Run(seconds=seconds, megabytes=megabytes(usage.ru_maxrss))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("library", type=Path)
    for program in ("archsplit", "cuobjdump", "cubloaty"):
        parser.add_argument(f"--{program}", type=shlex.split, default=[program], metavar="COMMAND")
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
