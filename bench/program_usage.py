# ruff: noqa: INP001, S603, TID251 - beside scripts, which start programs to measure them
"""CPU time and memory of programs, as the kernel counts them."""

from __future__ import annotations

import os
import resource
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run of a program: wall and CPU seconds, and the peak of its largest process in MB."""

    wall: float
    cpu: float
    memory: float

    def then(self, other: Run) -> Run:
        """Return the sum of two runs, one after the other."""
        return Run(
            wall=self.wall + other.wall,
            cpu=self.cpu + other.cpu,
            memory=max(self.memory, other.memory),
        )


def run(*argv: str) -> Run:
    """Run a program to its end, without its standard output; end this script if it fails."""
    start = time.monotonic()
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{argv} failed")
    cpu = usage.ru_utime + usage.ru_stime
    return Run(wall=time.monotonic() - start, cpu=cpu, memory=megabytes(usage.ru_maxrss))


def megabytes(ru_maxrss: int) -> float:
    """Return a peak of memory in MB; Linux counts it in KiB."""
    return ru_maxrss * 1024 / 1e6


def children_cpu() -> float:
    """Return the CPU seconds of all programs that have ended, and of their children."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def process_cpu(pid: int) -> float:
    """Return the CPU seconds of a process, and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / _TICKS
