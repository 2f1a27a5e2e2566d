"""Run a graph, longest critical path first, with cores and memory as what limits it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from archsplit.errors import DiskFullError, StepError
from archsplit.scheduler.estimates import Estimates
from archsplit.scheduler.runner import GraphRunner
from archsplit.system.process import tail

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.scheduler.graph import Graph, Step
    from archsplit.scheduler.history import History
    from archsplit.scheduler.memo import ResultCache
    from archsplit.scheduler.outcome import FinishedStep, Outcome
    from archsplit.scheduler.pool import Pool
    from archsplit.system.process import Starter
    from archsplit.system.progress import ProgressSink

_NO_SPACE = "No space left on device"
_LITTLE_SPACE = 1 << 20
"""Bytes; a compiler that fails where less is free most likely failed for that reason."""


def run_graph(
    graph: Graph,
    *,
    pool: Pool,
    runner: Starter,
    progress: ProgressSink,
    history: History | None = None,
    spread: bool = True,
    memo: ResultCache | None = None,
) -> Outcome:
    """Run every step, each after those whose files it reads, as the pool allows.

    A failure stops what comes after it in the graph's order; what comes before goes on, so the
    failure reported is the one that running one after the other would have met first.

    Args:
        history: what earlier runs have taken; what this one takes is added and saved.
        spread: give idle cores to long steps that can use them.
        memo: what may know results, so that steps needn't run.

    Raises:
        ToolNotFoundError: a program can't be started.
        ToolFailedError: a program ran past its timeout.
        InterruptedByUserError: the runner was cancelled from outside.
    """
    known = {} if history is None else history.known
    forecast = Estimates(graph.steps, known, size_of=_size)
    loop = GraphRunner(
        graph, forecast, pool=pool, runner=runner, progress=progress, spread=spread, memo=memo
    )
    outcome = loop.run()
    if history is not None:
        history.learn(graph, outcome)
    return outcome


def execute(
    graph: Graph,
    *,
    pool: Pool,
    runner: Starter,
    progress: ProgressSink,
    history: History | None = None,
    spread: bool = False,
    memo: ResultCache | None = None,
) -> tuple[FinishedStep, ...]:
    """Run a graph as `run_graph` does; a step's failure is an error.

    Returns:
        What each step left, in the graph's order.

    Raises:
        StepError: a step failed, or left out a file that it should have written.
        DiskFullError: a step failed because the disk is full.
        InterruptedByUserError: the runner was cancelled from outside.
    """
    outcome = run_graph(
        graph,
        pool=pool,
        runner=runner,
        progress=progress,
        history=history,
        spread=spread,
        memo=memo,
    )
    if outcome.failure is not None:
        raise _error(graph.steps[outcome.failure.position], outcome.failure)
    return outcome.finished


def _error(step: Step, failed: FinishedStep) -> StepError | DiskFullError:
    said = tail(failed.stdout, failed.stderr)
    message = f"{step.name} {failed.fault}\n  {step.command_for(failed.cores).text()}\n{said}"
    if is_disk_full(step, failed):
        hint = "no space left: free some where TMPDIR points, and run it again"
        return DiskFullError(message, hint=hint)
    return StepError(message)


def is_disk_full(step: Step, failed: FinishedStep) -> bool:
    """Whether a step failed because the disk is full."""
    # gcc calls a full disk "No such file or directory", so what it says is not enough.
    return _NO_SPACE in failed.stderr or any(_is_full(path.parent) for path in step.writes)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _is_full(folder: Path) -> bool:
    if not folder.is_dir():
        return False
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize < _LITTLE_SPACE
