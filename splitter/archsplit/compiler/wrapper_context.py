"""Effects of the compiler wrapper: programs that are started, graphs that are run, output."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import IO, TYPE_CHECKING

from archsplit.scheduler.graph import Graph
from archsplit.scheduler.history import History
from archsplit.scheduler.outcome import Outcome
from archsplit.scheduler.pool import MixedPool
from archsplit.scheduler.runner import RunOptions, run_graph

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from archsplit.cache.config import Settings
    from archsplit.remote.endpoint import EngineChoice
    from archsplit.scheduler.executor import Executor
    from archsplit.scheduler.pool import Pool
    from archsplit.scheduler.runner import ResultCache
    from archsplit.system.process import Runner, Starter
    from archsplit.system.terminal import ProgressSink


@dataclass(frozen=True, slots=True, kw_only=True)
class WrapperRunner:
    """A runner of graphs, with the pool and the history that all runs share.

    Attributes:
        pool: cores and memory.
        runner: starts programs.
        progress: is told of steps.
        history: folder of the durations and memory peaks of earlier runs.
    """

    pool: Pool
    runner: Starter
    progress: ProgressSink
    history: Path

    def run(
        self,
        graph: Graph,
        *,
        group: str,
        parallel: bool,
        result_cache: ResultCache | None = None,
    ) -> Outcome:
        """Run a graph.

        Args:
            group: the key of its steps in the history.
            parallel: let steps use more than one core.
            result_cache: restores results instead of running steps.
        """
        return run_graph(
            graph,
            RunOptions(
                pool=self.pool,
                runner=self.runner,
                progress=self.progress,
                history=History(self.history, group),
                parallel=parallel,
                result_cache=result_cache,
            ),
        )

    def run_elsewhere(
        self,
        graph: Graph,
        *,
        slots: int,
        executor: Executor,
        result_cache: ResultCache | None = None,
    ) -> Outcome:
        """Run a graph whose remote steps run on other machines.

        Args:
            slots: most remote steps at a time.
            executor: runs all steps.
            result_cache: restores results instead of running steps.
        """
        # No history: the times of other machines say nothing about this one.
        return run_graph(
            graph,
            RunOptions(
                pool=MixedPool(self.pool, slots),
                runner=self.runner,
                progress=self.progress,
                parallel=False,
                result_cache=result_cache,
                executor=executor,
            ),
        )

    def run_in_order(self, graph: Graph) -> Outcome:
        """Run one step after the other, in the graph's own order."""
        outcome = Outcome(finished=(), failure=None, starts=(), seconds=0.0)
        for position, step in enumerate(graph.steps):
            next_outcome = run_graph(
                Graph(steps=(step,)),
                RunOptions(
                    pool=self.pool, runner=self.runner, progress=self.progress, parallel=False
                ),
            )
            outcome = _append_outcome(outcome, next_outcome, position)
            if outcome.failure is not None:
                break
        return outcome


def _append_outcome(before: Outcome, added: Outcome, position: int) -> Outcome:
    """Return both outcomes as one; the times of the added one begin where the other ends."""
    ran = before.seconds
    finished = tuple(
        replace(done, position=position, started=done.started + ran, ended=done.ended + ran)
        for done in added.finished
    )
    starts = tuple(
        replace(start, position=position, ready=start.ready + ran, started=start.started + ran)
        for start in added.starts
    )
    return Outcome(
        finished=before.finished + finished,
        failure=finished[0] if added.failure is not None else None,
        starts=before.starts + starts,
        seconds=ran + added.seconds,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WrapperContext:
    """The effects that a compilation works with.

    Attributes:
        runner: starts programs.
        engine: runs graphs.
        stdout: receives the standard output of the tools.
        stderr: receives warnings and errors of the tools.
        warn: shows a line of archsplit's own to a person.
        cache: settings of the cache; None to do without.
        explain_cache: report hits, and the reason of each miss.
        farm: the farm for the long steps; None for this machine alone.
        record: receives ``cached`` or ``compiled`` for a build that counts the calls.
    """

    runner: Runner
    engine: WrapperRunner
    stdout: IO[bytes]
    stderr: IO[bytes]
    warn: Callable[[str], None]
    cache: Settings | None = None
    explain_cache: bool = False
    farm: EngineChoice | None = None
    record: Callable[[str], None] | None = None

    def record_result(self, *, cached: bool) -> None:
        """Record a compilation that has ended."""
        if self.record is not None:
            self.record("cached" if cached else "compiled")

    def write_output(self, stdout: str, stderr: str) -> None:
        """Print the output of tools, byte for byte."""
        self.stdout.write(stdout.encode(errors="surrogateescape"))
        self.stderr.write(stderr.encode(errors="surrogateescape"))
        self.stdout.flush()
        self.stderr.flush()
