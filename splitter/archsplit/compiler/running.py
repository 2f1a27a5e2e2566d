"""Run a compilation's graph with the engine, and remember what its steps took."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from archsplit.scheduler.execute import run_graph
from archsplit.scheduler.graph import Graph
from archsplit.scheduler.history import History
from archsplit.scheduler.outcome import Outcome

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.scheduler.memo import ResultCache
    from archsplit.scheduler.pool import Pool
    from archsplit.system.process import Starter
    from archsplit.system.progress import ProgressSink


@dataclass(frozen=True, slots=True, kw_only=True)
class WrapperRunner:
    """What runs graphs.

    Attributes:
        pool: cores and memory.
        runner: starts programs.
        progress: is told of steps.
        history: the folder of what earlier runs took.
    """

    pool: Pool
    runner: Starter
    progress: ProgressSink
    history: Path

    def run(
        self, graph: Graph, *, group: str, spread: bool, memo: ResultCache | None = None
    ) -> Outcome:
        """Run a graph; ``group`` is what its steps are remembered under."""
        return run_graph(
            graph,
            pool=self.pool,
            runner=self.runner,
            progress=self.progress,
            history=History(self.history, group),
            spread=spread,
            memo=memo,
        )

    def run_in_order(self, graph: Graph) -> Outcome:
        """Run one step after the other, in the graph's own order."""
        outcome = Outcome(finished=(), failure=None, starts=(), seconds=0.0)
        for position, step in enumerate(graph.steps):
            alone = Graph(steps=(step,))
            one = run_graph(
                alone, pool=self.pool, runner=self.runner, progress=self.progress, spread=False
            )
            outcome = _followed_by(outcome, one, position)
            if outcome.failure is not None:
                break
        return outcome


def _followed_by(before: Outcome, one: Outcome, position: int) -> Outcome:
    ran = before.seconds
    finished = tuple(
        replace(done, position=position, started=done.started + ran, ended=done.ended + ran)
        for done in one.finished
    )
    starts = tuple(
        replace(each, position=position, ready=each.ready + ran, started=each.started + ran)
        for each in one.starts
    )
    return Outcome(
        finished=before.finished + finished,
        failure=finished[0] if one.failure is not None else None,
        starts=before.starts + starts,
        seconds=ran + one.seconds,
    )
