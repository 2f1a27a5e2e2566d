# ruff: noqa: INP001, S603, TID251 - a script, which starts programs to measure them
"""Slim a wheel, against unpacking and packing it with `wheel`; or measure an environment.

``python bench/bench_slim.py WHEEL [ROUNDS]`` prints a table: wall and CPU seconds (the best of all
rounds), peak memory of the largest process, and the size of what was written. The slimming includes
all of its checks by default: reading everything again, installing the wheel. No library is loaded.

``python bench/bench_slim.py SITE_PACKAGES [ROUNDS]`` measures inspect and ``slim --dry-run`` of an
environment, on all cores and on two: the best of all rounds, and the peak memory of all processes
together, without shared pages counted twice (PSS). Nothing is changed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from program_usage import Run, run

GOALS = "goals: 4 times as fast as unpack and pack, not larger, no more than 300 MB of memory"


def slimmed(wheel: Path, folder: Path) -> tuple[Run, int]:
    """Slim a wheel; return the run and the bytes of the result."""
    arguments = ("--device", "9.0", "--keep-ptx", "none", "--out", str(folder / "slim"))
    took = run("archsplit", "slim", str(wheel), *arguments)
    (made,) = (folder / "slim").iterdir()
    return took, made.stat().st_size


def repacked(wheel: Path, folder: Path) -> tuple[Run, int]:
    """Unpack and pack a wheel; return the run and the bytes of the result."""
    took = run(sys.executable, "-m", "wheel", "unpack", "--dest", str(folder), str(wheel))
    (tree,) = folder.iterdir()
    out = folder / "packed"
    out.mkdir()
    took = took.then(run(sys.executable, "-m", "wheel", "pack", "--dest-dir", str(out), str(tree)))
    (made,) = out.iterdir()
    return took, made.stat().st_size


def shared_memory(*argv: str) -> float:
    """Run a program; return the peak memory of all its processes together, in MB."""
    peak = 0
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            peak = max(peak, process_memory(process.pid))
            time.sleep(0.05)
    return peak / 1e6


def process_memory(pid: int) -> int:
    """Return the bytes of a process and its children; 0 after its end."""
    folder = Path("/proc", str(pid))
    try:
        rows = (folder / "smaps_rollup").read_text().splitlines()
        children = (folder / "task" / str(pid) / "children").read_text().split()
    except OSError:
        return 0
    own = sum(int(row.split()[1]) * 1024 for row in rows if row.startswith("Pss:"))
    return own + sum(process_memory(int(child)) for child in children)


def measure_environment(site: Path, rounds: int) -> None:
    """Print a table of inspect and ``slim --dry-run`` on all cores and on two."""
    all_cores = os.sched_getaffinity(0)
    commands = {
        "inspect": ("archsplit", "inspect", str(site)),
        "slim --dry-run": (
            *("archsplit", "slim", "--site-packages", str(site)),
            *("--device", "9.0", "--dry-run"),
        ),
    }
    sys.stdout.write(f"{'':16} {'cores':>6} {'wall s':>8} {'CPU s':>8} {'MB PSS':>8}\n")
    for cores in (all_cores, set(sorted(all_cores)[:2])):
        # Child processes inherit it.
        os.sched_setaffinity(0, cores)
        for name, argv in commands.items():
            best = min((run(*argv) for _ in range(rounds)), key=lambda one: one.wall)
            memory = shared_memory(*argv)
            numbers = f"{len(cores):6} {best.wall:8.2f} {best.cpu:8.2f} {memory:8.0f}"
            sys.stdout.write(f"{name:16} {numbers}\n")


def main(subject: Path, rounds: int = 3) -> None:
    """Run everything in turn, and print the table."""
    if subject.is_dir():
        measure_environment(subject, rounds)
    else:
        measure_wheel(subject, rounds)


def measure_wheel(wheel: Path, rounds: int) -> None:
    """Slim and repack a wheel in turn, and print the table."""
    best: dict[str, tuple[Run, int]] = {}
    for _ in range(rounds):
        for name, measure in (("archsplit slim", slimmed), ("wheel unpack + pack", repacked)):
            folder = Path(tempfile.mkdtemp())
            found = measure(wheel, folder)
            shutil.rmtree(folder)
            if name not in best or found[0].wall < best[name][0].wall:
                best[name] = found
    lines = [f"{wheel.name}, {wheel.stat().st_size / 1e6:.1f} MB, best of {rounds}"]
    lines.append(f"{'':20} {'wall s':>8} {'CPU s':>8} {'MB peak':>8} {'MB made':>8}")
    for name, (took, size) in best.items():
        numbers = f"{took.wall:8.2f} {took.cpu:8.2f} {took.memory:8.0f} {size / 1e6:8.1f}"
        lines.append(f"{name:20} {numbers}")
    ours, theirs = best.values()
    lines.append(f"{theirs[0].wall / ours[0].wall:.1f} times as fast; {GOALS}")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
