"""Run a graph with a fixed number of slots, longest critical path first."""

from __future__ import annotations

import heapq
import shutil
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING

from splitter.errors import DiskFullError, InterruptedByUserError, StepError

if TYPE_CHECKING:
    from pathlib import Path

    from splitter.engine.graph import Graph, Step
    from splitter.system.progress import ProgressSink
    from splitter.system.run import Completed, Runner

_NO_SPACE = "No space left on device"
_LITTLE_SPACE = 1 << 20
"""Bytes; a compiler that fails where less is free most likely failed for that reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A step that was run: its name, its wall seconds, and what it said (warnings)."""

    name: str
    seconds: float
    output: str


def execute(
    graph: Graph, *, jobs: int, runner: Runner, progress: ProgressSink
) -> tuple[Finished, ...]:
    """Run every step, each after those whose files it reads, at most ``jobs`` at a time.

    The first failure cancels what runs and starts nothing more.

    Returns:
        What each step left, in the graph's order.

    Raises:
        StepError: a step failed, or left out a file that it should have written. Of several that
            failed before the rest could be stopped, the first in the graph's order is reported.
        DiskFullError: a step failed because the disk is full.
        InterruptedByUserError: the runner was cancelled from outside.
    """
    if jobs < 1:
        raise ValueError("at least one job is needed")
    with ThreadPoolExecutor(max_workers=jobs, thread_name_prefix="step") as pool:
        run = _Run(graph, pool, runner, progress)
        try:
            run.to_the_end(jobs)
        except BaseException:
            runner.cancel()
            raise
    return run.results()


class _Run:
    """The state of one execution; used by one thread, the steps by those of the pool."""

    def __init__(
        self, graph: Graph, pool: ThreadPoolExecutor, runner: Runner, progress: ProgressSink
    ) -> None:
        self._graph = graph
        self._pool = pool
        self._runner = runner
        self._progress = progress
        self._urgency = graph.critical_path()
        self._missing = [len(earlier) for earlier in graph.waits_for]
        self._ready = [
            (-self._urgency[at], at) for at, count in enumerate(self._missing) if count == 0
        ]
        heapq.heapify(self._ready)
        self._futures: dict[Future[Finished], int] = {}
        self._done: dict[int, Finished] = {}

    def to_the_end(self, jobs: int) -> None:
        """Start and collect until nothing is left, or something failed."""
        while self._ready or self._futures:
            while self._ready and len(self._futures) < jobs:
                _, at = heapq.heappop(self._ready)
                self._futures[self._pool.submit(self._run_step, self._graph.steps[at])] = at
            finished, _ = wait(self._futures, return_when=FIRST_COMPLETED)
            failures = {
                at: error for at, error in map(self._collect, finished) if error is not None
            }
            if failures:
                self._runner.cancel()
                wait(self._futures)
                failures |= dict(self._real_failures())
                raise failures[min(failures)]

    def results(self) -> tuple[Finished, ...]:
        """What each step left, in the graph's order."""
        return tuple(self._done[at] for at in range(len(self._graph.steps)))

    def _collect(self, future: Future[Finished]) -> tuple[int, BaseException | None]:
        at = self._futures.pop(future)
        error = future.exception()
        if error is None:
            self._done[at] = future.result()
            self._progress.finished(self._done[at].name, self._done[at].seconds)
            self._release(at)
        return at, error

    def _release(self, at: int) -> None:
        for later in self._graph.wakes[at]:
            self._missing[later] -= 1
            if self._missing[later] == 0:
                heapq.heappush(self._ready, (-self._urgency[later], later))

    def _real_failures(self) -> list[tuple[int, BaseException]]:
        found = []
        for future, at in self._futures.items():
            error = future.exception()
            if error is not None and not isinstance(error, InterruptedByUserError):
                found.append((at, error))
        return found

    def _run_step(self, step: Step) -> Finished:
        done = self._runner.run(step.command)
        if done.returncode != 0:
            raise _failure(step, done, f"failed with exit status {done.returncode}")
        for path in step.writes:
            if not path.is_file() or path.stat().st_size == 0:
                raise _failure(step, done, f"succeeded, but left no {path.name}")
        return Finished(name=step.name, seconds=done.seconds, output=done.stdout + done.stderr)


def _failure(step: Step, done: Completed, what: str) -> StepError | DiskFullError:
    message = f"{step.name} {what}\n  {step.command.text()}\n{done.tail()}"
    if _NO_SPACE in done.stderr or any(_is_full(path.parent) for path in step.writes):
        hint = "no space left: free some where TMPDIR points, and run it again"
        return DiskFullError(message, hint=hint)
    return StepError(message)


def _is_full(folder: Path) -> bool:
    # gcc calls a full disk "No such file or directory", so what it says is not enough.
    return folder.is_dir() and shutil.disk_usage(folder).free < _LITTLE_SPACE
