"""Build with what earlier builds have made of the same.

Say beforehand what a longer list of targets costs.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from archsplit import __version__
from archsplit.cache.cache import Cache
from archsplit.cache.keys import KeyComponent
from archsplit.cache.miss_log import MissLog
from archsplit.compiler.object_cache import ObjectCache
from archsplit.compiler.replay import save_recording
from archsplit.compiler.step_cache import StepCache
from archsplit.compiler.step_key import has_line_info, with_depfile
from archsplit.compiler.tool_identity import GROUP, ToolIdentities
from archsplit.scheduler.graph import Graph

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from archsplit.cache.config import Settings
    from archsplit.compiler.object_cache import SourceUnit
    from archsplit.scheduler.outcome import FinishedStep
    from archsplit.system.process import Runner
    from archsplit.system.progress import ProgressSink


class BuildCacheSession:
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
        self._tools: ToolIdentities | None = None
        self._units: ObjectCache | None = None
        self._memory: StepCache | None = None
        self._graph = Graph(steps=())
        self._private: Path | None = None
        self._before: list[Path] = []

    def units(self, cwd: Path, environment: Mapping[str, str]) -> ObjectCache:
        """What knows the objects of whole sources.

        Args:
            cwd: where nvcc and its steps run.
            environment: what they run in.
        """
        tools = self._asking(cwd)
        self._units = ObjectCache(self._cache, tools, environment=environment, version=__version__)
        return self._units

    def listed(self, graph: Graph, private: Path) -> Graph:
        """The graph, with compiles for the host that list what they read.

        Args:
            private: the folder that all intermediate files are in.
        """
        self._private = private
        self._before = [path for path in private.rglob("*") if path.is_file()]
        self._graph = Graph(steps=tuple(with_depfile(step, private) for step in graph.steps))
        return self._graph

    def memory(self, cwd: Path, private: Path) -> StepCache:
        """What knows the results of the graph's steps."""
        precise = has_line_info(word for step in self._graph.steps for word in step.command.argv)
        self._memory = StepCache(
            self._cache, self._asking(cwd), private=private, precise=precise, spread=False
        )
        return self._memory

    def remember(self, units: Sequence[SourceUnit], finished: Sequence[FinishedStep]) -> None:
        """Store what was made of whole sources, and say what was known.

        Raises:
            VerifyError: see `StepCache.check`.
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
            save_recording(
                self._cache,
                steps,
                subject=str(unit.source),
                private=self._private,
                before=[path for path in self._before if path.parent.name == unit.name],
                precise=unit.request.precise,
                wholes=wholes,
            )
        self._sum_up()

    def _asking(self, cwd: Path) -> ToolIdentities:
        if self._tools is None:
            self._tools = ToolIdentities(runner=self._runner, digests=self._cache.digests, cwd=cwd)
        return self._tools

    def _tell(self, unit: SourceUnit) -> None:
        if self._units is None or self._memory is None:
            return
        told = [each for each in self._memory.told if _is_of(each.step, unit)]
        lines = [("", line) for line in self._units.explain(unit)]
        lines += [(each.target, each.line) for each in told]
        self._cache.miss_log.write_reasons(str(unit.source), tuple(lines))
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
def open_build_session(
    settings: Settings | None, *, runner: Runner, progress: ProgressSink, explain: bool
) -> Iterator[BuildCacheSession | None]:
    """Have the cache open as long as the context lives; None where there shall be none."""
    if settings is None:
        yield None
        return
    cache = Cache(settings, warn=progress.note)
    cache.digests.load(GROUP)
    with contextlib.closing(cache):
        yield BuildCacheSession(cache, runner=runner, progress=progress, explain=explain)


def _is_of(step: str, unit: SourceUnit) -> bool:
    return step.startswith(f"{unit.name}/")


_TARGET = "target"


def cache_summary(
    project: str, targets: Sequence[str], *, sources: int, settings: Settings
) -> str | None:
    """What a person should know before a build whose recipe has targets that its last one hadn't.

    The list is remembered for the next build. Which of its targets are built makes no difference.

    Args:
        targets: all of the recipe's.
        sources: how many files are compiled for all targets at once; 0 where each is compiled for
            each target by itself.
    """
    notebook = MissLog(settings.folder)
    subject = f"targets of {project}"
    earlier = notebook.previous_components(subject)
    if settings.mode != "read-only":
        notebook.add_components(subject, tuple(KeyComponent(_TARGET, target) for target in targets))
    if not earlier or not sources:
        return None
    before = {value for _, value in earlier[0]}
    new = [target for target in targets if target not in before]
    if not new:
        return None
    return (
        f"the recipe has new targets: {', '.join(new)}. Up to {sources} sources are compiled again"
        " for every target: the list of all targets (__CUDA_ARCH_LIST__) is a part of CUB's"
        ' namespaces. With host-pass = "per-target" in the recipe, targets know nothing of each'
        " other"
    )
