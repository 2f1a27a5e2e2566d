"""Shell steps, which run on any machine."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.remote.action import ToolFile
from archsplit.scheduler.graph import Graph, Step
from archsplit.scheduler.pool import LocalPool
from archsplit.scheduler.runner import RunOptions, run_graph
from archsplit.system.process import Command, SubprocessRunner
from archsplit.system.terminal import SilentProgress

if TYPE_CHECKING:
    from archsplit.scheduler.executor import Executor
    from archsplit.scheduler.outcome import Outcome

SHELL = Path("/bin/sh")


class Work:
    """Shell steps in a recipe's folder and a private one."""

    def __init__(self, folder: Path) -> None:
        self.root, self.private = folder / "recipe", folder / "private"
        self.root.mkdir(parents=True)
        self.private.mkdir()
        self.tools = (
            ToolFile(path=str(SHELL), sha256=hashlib.sha256(SHELL.read_bytes()).hexdigest()),
        )

    def step(self, name: str, script: str, reads: str = "", writes: str = "") -> Step:
        return Step(
            name=name,
            command=Command(argv=(str(SHELL), "-c", script), cwd=self.root, env={}),
            reads=tuple(self.root / each for each in reads.split()),
            writes=tuple(self.private / each for each in writes.split()),
        )

    def run(self, executor: Executor, *steps: Step, slots: int = 4) -> Outcome:
        return run_graph(
            Graph(steps=steps),
            RunOptions(
                pool=LocalPool(slots),
                runner=SubprocessRunner(),
                progress=SilentProgress(),
                executor=executor,
            ),
        )
