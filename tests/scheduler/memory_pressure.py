"""Run inside a cgroup with a memory limit: many steps at once, scheduled or not.

Arguments: the cgroup's folder, "scheduled" or "at once", megabytes of a step, megabytes of the
guess, and how many steps. Prints JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from archsplit.scheduler.graph import Graph, Step
from archsplit.scheduler.pool import LocalPool, MemoryBudget
from archsplit.scheduler.runner import RunOptions, run_graph
from archsplit.system.process import Command, SubprocessRunner
from archsplit.system.terminal import SilentProgress

MB = 1 << 20


def step(number: int, size: int, guess: int) -> Step:
    text = f"import time; block = b'x' * {size * MB}; time.sleep(0.3)"
    command = Command(argv=(sys.executable, "-I", "-S", "-c", text), cwd=Path("/"), env={})
    return Step(
        name=f"step {number}", command=command, reads=(), writes=(), memory=guess * MB, weight=0.5
    )


def main(group: str, how: str, size: str, guess: str, count: str) -> None:
    (Path(group) / "cgroup.procs").write_text(str(os.getpid()))
    steps = tuple(step(number, int(size), int(guess)) for number in range(int(count)))
    runner = SubprocessRunner()
    if how == "at once":
        running = [runner.start(one.command) for one in steps]
        json.dump([one.wait().returncode for one in running], sys.stdout)
        return
    pool = LocalPool(len(steps), MemoryBudget())
    outcome = run_graph(
        Graph(steps=steps), RunOptions(pool=pool, runner=runner, progress=SilentProgress())
    )
    rows = [(done.returncode, done.attempts, done.peak_memory) for done in outcome.finished]
    json.dump(rows, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
