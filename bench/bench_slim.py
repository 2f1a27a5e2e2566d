# ruff: noqa: INP001, S603, TID251 - a script, which starts programs to measure them
"""Slim a wheel, against unpacking and packing the same wheel with `wheel`.

``python bench/bench_slim.py WHEEL [ROUNDS]`` prints a table: wall and CPU seconds (the best of all
rounds), peak memory of the largest process, and the size of what was written. The slimming includes
all of its checks: reading everything again, installing the wheel, loading its libraries.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

GOALS = "goals: 4 times as fast as unpack and pack, not larger, no more than 300 MB of memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run of a program."""

    wall: float
    cpu: float
    memory: float

    def then(self, other: Run) -> Run:
        """Both, one after the other."""
        return Run(
            wall=self.wall + other.wall,
            cpu=self.cpu + other.cpu,
            memory=max(self.memory, other.memory),
        )


def run(*argv: str) -> Run:
    """Run it to the end; `wait4` tells what it and its children took."""
    start = time.monotonic()
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{argv} failed")
    cpu = usage.ru_utime + usage.ru_stime
    return Run(wall=time.monotonic() - start, cpu=cpu, memory=usage.ru_maxrss / 1e3)


def slimmed(wheel: Path, folder: Path) -> tuple[Run, int]:
    """Slim it; what that took, and the bytes of the result."""
    arguments = ("--device", "9.0", "--keep-ptx", "none", "--out", str(folder / "slim"))
    took = run("archsplit", "slim", str(wheel), *arguments)
    (made,) = (folder / "slim").iterdir()
    return took, made.stat().st_size


def repacked(wheel: Path, folder: Path) -> tuple[Run, int]:
    """Unpack and pack it; the same of that."""
    took = run(sys.executable, "-m", "wheel", "unpack", "--dest", str(folder), str(wheel))
    (tree,) = folder.iterdir()
    out = folder / "packed"
    out.mkdir()
    took = took.then(run(sys.executable, "-m", "wheel", "pack", "--dest-dir", str(out), str(tree)))
    (made,) = out.iterdir()
    return took, made.stat().st_size


def main(wheel: Path, rounds: int = 3) -> None:
    """Run both in turn, and print the table."""
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
