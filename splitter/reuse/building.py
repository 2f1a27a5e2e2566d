"""Build with what earlier builds have made of the same."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from splitter import __version__
from splitter.cache.cache import Cache
from splitter.engine.graph import Graph
from splitter.reuse.commands import is_precise, with_listing
from splitter.reuse.keeping import keep
from splitter.reuse.steps import StepMemory
from splitter.reuse.tools import GROUP, Tools
from splitter.reuse.units import Units

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from splitter.cache.settings import Settings
    from splitter.engine.outcome import Finished
    from splitter.reuse.units import Unit
    from splitter.system.progress import ProgressSink
    from splitter.system.run import Runner


class Remembering:
    """One build's dealings with the cache.

    Args:
        cache: where results are.
        runner: starts programs.
        progress: is told what was known.
        explain: tell of each source and each step.
    """

    def __init__(
        self, cache: Cache, *, runner: Runner, progress: ProgressSink, explain: bool
    ) -> None:
        self._cache = cache
        self._runner = runner
        self._progress = progress
        self._explain = explain
        self._tools: Tools | None = None
        self._units: Units | None = None
        self._memory: StepMemory | None = None
        self._graph = Graph(steps=())
        self._private: Path | None = None
        self._before: list[Path] = []

    def units(self, cwd: Path, environment: Mapping[str, str]) -> Units:
        """What knows the objects of whole sources.

        Args:
            cwd: where nvcc and its steps run.
            environment: what they run in.
        """
        tools = self._asking(cwd)
        self._units = Units(self._cache, tools, environment=environment, version=__version__)
        return self._units

    def listed(self, graph: Graph, private: Path) -> Graph:
        """The graph, with compiles for the host that list what they read.

        Args:
            private: the folder that all intermediate files are in.
        """
        self._private = private
        self._before = [path for path in private.rglob("*") if path.is_file()]
        self._graph = Graph(steps=tuple(with_listing(step, private) for step in graph.steps))
        return self._graph

    def memory(self, cwd: Path, private: Path) -> StepMemory:
        """What knows the results of the graph's steps."""
        precise = is_precise(word for step in self._graph.steps for word in step.command.argv)
        self._memory = StepMemory(
            self._cache, self._asking(cwd), private=private, precise=precise, spread=False
        )
        return self._memory

    def remember(self, units: Sequence[Unit], finished: Sequence[Finished]) -> None:
        """Store what was made of whole sources, and say what was known.

        Raises:
            VerifyError: see `StepMemory.check`.
        """
        if self._memory is None or self._units is None or self._private is None:
            return
        for unit in units:
            self._tell(unit)
        for each in self._memory.told if self._explain else ():
            if not any(_is_of(each.step, unit) for unit in units):
                self._progress.note(each.line)
        self._memory.check()
        for unit in units:
            steps = [step for step in self._graph.steps if _is_of(step.name, unit)]
            done = [each for each in finished if _is_of(each.name, unit)]
            wholes = self._units.remember(unit, steps, done, self._memory, self._private)
            keep(
                self._cache,
                steps,
                subject=str(unit.source),
                private=self._private,
                before=[path for path in self._before if path.parent.name == unit.name],
                precise=unit.request.precise,
                wholes=wholes,
            )
        self._sum_up()

    def _asking(self, cwd: Path) -> Tools:
        if self._tools is None:
            self._tools = Tools(runner=self._runner, digests=self._cache.digests, cwd=cwd)
        return self._tools

    def _tell(self, unit: Unit) -> None:
        if self._units is None or self._memory is None:
            return
        told = [each for each in self._memory.told if _is_of(each.step, unit)]
        lines = [("", line) for line in self._units.explain(unit)]
        lines += [(each.target, each.line) for each in told]
        self._cache.notebook.tell(str(unit.source), tuple(lines))
        for _, line in lines if self._explain else ():
            self._progress.note(f"{unit.source.name}: {line}")

    def _sum_up(self) -> None:
        if self._units is None or self._memory is None:
            return
        saved = sum(self._units.saved) + self._memory.saved
        known = []
        if self._units.saved:
            known.append(f"{len(self._units.saved)} objects")
        if self._memory.known:
            known.append(f"{self._memory.known} steps")
        if known:
            self._progress.note(f"{' and '.join(known)} were known: {saved:.0f} s saved")


@contextlib.contextmanager
def remembering(
    settings: Settings | None, *, runner: Runner, progress: ProgressSink, explain: bool
) -> Iterator[Remembering | None]:
    """Have the cache open as long as the context lives; None where there shall be none."""
    if settings is None:
        yield None
        return
    cache = Cache(settings, warn=progress.note)
    cache.digests.load(GROUP)
    with contextlib.closing(cache):
        yield Remembering(cache, runner=runner, progress=progress, explain=explain)


def _is_of(step: str, unit: Unit) -> bool:
    return step.startswith(f"{unit.name}/")
