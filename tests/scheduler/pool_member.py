"""A process among many: runs some steps in the pool of a folder, and counts what runs with them.

Arguments: the folder, how many slots its pool has, how many steps to run.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from archsplit.scheduler.graph import Graph, Step
from archsplit.scheduler.pool_choice import find_pool
from archsplit.scheduler.runner import RunOptions, check_outcome, run_graph
from archsplit.system.process import Command, SubprocessRunner
from archsplit.system.terminal import SilentProgress

COUNT = "mkdir running.$$; ls -d running.* | wc -l >> counts; sleep 0.05; rmdir running.$$"


def main(folder: str, slots: str, steps: str) -> None:
    cwd = Path(folder)
    command = Command(argv=("/bin/sh", "-c", COUNT), cwd=cwd, env=dict(os.environ))
    graph = Graph(
        steps=tuple(
            Step(name=f"step {number}", command=command, reads=(), writes=())
            for number in range(int(steps))
        )
    )
    found = find_pool(os.environ, jobs=int(slots), memory=None, folder=cwd / "pool")
    for note in found.notes:
        sys.stderr.write(f"{note}\n")
    try:
        check_outcome(
            graph,
            run_graph(
                graph,
                RunOptions(
                    pool=found.pool,
                    runner=SubprocessRunner(),
                    progress=SilentProgress(),
                    parallel=False,
                ),
            ),
        )
    finally:
        found.pool.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
