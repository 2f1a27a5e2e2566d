"""The compile cache during one call of the wrapper, or during one build by recipe.

In: a graph of steps. Out: the same graph with steps that list the files they read, and the cache of
single steps that the scheduler asks before it runs one. Afterwards the session logs the reason of
each miss.

Results of a whole compilation are found first, without a graph: the wrapper's by `WrapperCache`, a
build's by `ObjectCache`, which the session opens.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from archsplit import __version__
from archsplit.cache.cache import Cache
from archsplit.compiler.keys import with_depfile
from archsplit.compiler.machine_facts import PROGRAM_GROUP
from archsplit.compiler.prefix_map import NO_PREFIXES
from archsplit.compiler.step_cache import StepCache
from archsplit.compiler.tool_identity import ToolIdentities
from archsplit.scheduler.graph import Graph
from archsplit.system.units import count_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from archsplit.cache.config import Settings
    from archsplit.compiler.object_cache import ObjectCache, SourceUnit
    from archsplit.compiler.prefix_map import PrefixMap
    from archsplit.compiler.step_cache import StepEvent
    from archsplit.scheduler.outcome import FinishedStep
    from archsplit.system.process import Runner
    from archsplit.system.terminal import ProgressSink


class CacheSession:
    """The cache between its opening and its end.

    Args:
        settings: of the cache; the mode isn't ``off``.
        runner: starts programs.
        report: shows a line to a person.
        explain: report the result of each lookup.
        multicore: steps may use more than one core.

    Attributes:
        cache: the store and its records.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        runner: Runner,
        report: Callable[[str], None],
        explain: bool,
        multicore: bool = False,
    ) -> None:
        self.cache = Cache(settings, warn=report)
        self.cache.digests.load(PROGRAM_GROUP)
        self._runner = runner
        self._tools: ToolIdentities | None = None
        self._report = report
        self._explain = explain
        self._multicore = multicore
        self._objects: ObjectCache | None = None
        self._steps: StepCache | None = None
        self._graph = Graph(steps=())
        self._private: Path | None = None

    def close(self) -> None:
        """Write what is left to write."""
        self.cache.close()

    def identify_tools(self, cwd: Path) -> ToolIdentities:
        """Return the identities of the tools that run in a folder."""
        if self._tools is None:
            self._tools = ToolIdentities(runner=self._runner, digests=self.cache.digests, cwd=cwd)
        return self._tools

    def begin(
        self, graph: Graph, *, cwd: Path, private: Path, prefixes: PrefixMap = NO_PREFIXES
    ) -> tuple[Graph, StepCache]:
        """Return the graph to run, and the cache of its steps.

        Args:
            cwd: the working directory of nvcc and its steps.
            private: the folder of all intermediate files.
            prefixes: the folders of ``base-dir``.
        """
        self._private = private
        self._graph = Graph(steps=tuple(with_depfile(step, private) for step in graph.steps))
        self._steps = StepCache(
            self.cache,
            self.identify_tools(cwd),
            private=private,
            multicore=self._multicore,
            prefixes=prefixes,
        )
        return self._graph, self._steps

    def step_events(self, prefix: str = "") -> list[StepEvent]:
        """Return the lookups of steps whose names begin with the prefix."""
        events = [] if self._steps is None else self._steps.events
        return [event for event in events if event.step.startswith(prefix)]

    def log_lookups(
        self, subjects: Iterable[str], misses: Iterable[str], *, prefix: str = "", label: str = ""
    ) -> None:
        """Write the results of lookups to the miss log; report them where that is wanted.

        Args:
            subjects: the source files, absolute.
            misses: reasons why the whole compilation wasn't in the cache.
            prefix: of the names of the steps that belong to these sources.
            label: begins each line of the report.
        """
        lines = [("", line) for line in misses]
        lines += [(event.target, event.line) for event in self.step_events(prefix)]
        for subject in subjects:
            self.cache.miss_log.write_reasons(subject, tuple(lines))
        for _, line in lines if self._explain else ():
            self._report(f"{label}{line}")

    def verify_steps(self) -> None:
        """Refuse steps whose results differ from those in the cache.

        Raises:
            VerifyError: names the steps.
        """
        if self._steps is not None:
            self._steps.verify()

    def open_objects(self, cwd: Path, environment: Mapping[str, str]) -> ObjectCache:
        """Return the cache of the objects of whole sources.

        Args:
            cwd: the working directory of nvcc and its steps.
            environment: of nvcc and its steps.
        """
        # Imported late: a call of the wrapper has no recipe.
        from archsplit.compiler.object_cache import ObjectCache  # noqa: PLC0415

        tools = self.identify_tools(cwd)
        self._objects = ObjectCache(self.cache, tools, environment=environment, version=__version__)
        return self._objects

    def store_objects(self, units: Sequence[SourceUnit], finished: Sequence[FinishedStep]) -> None:
        """Store the objects of whole sources, and report what came from the cache.

        Raises:
            VerifyError: see `verify_steps`.
        """
        if self._objects is None or self._steps is None or self._private is None:
            return
        for unit in units:
            reasons = self._objects.explain(unit)
            label = f"{unit.source.name}: "
            self.log_lookups([str(unit.source)], reasons, prefix=f"{unit.name}/", label=label)
        # Links belong to no source.
        names = tuple(f"{unit.name}/" for unit in units)
        for event in self.step_events() if self._explain else ():
            if not event.step.startswith(names):
                self._report(event.line)
        self.verify_steps()
        for unit in units:
            prefix = f"{unit.name}/"
            steps = [step for step in self._graph.steps if step.name.startswith(prefix)]
            done = [step for step in finished if step.name.startswith(prefix)]
            self._objects.store(unit, steps, done, self._steps, self._private)
        self._report_total(self._objects, self._steps)

    def _report_total(self, objects: ObjectCache, steps: StepCache) -> None:
        total = len(self._graph.steps)
        texts = [count_text(len(objects.saved), "object")] if objects.saved else []
        texts += [f"{steps.hits} of {count_text(total, 'step')}"] if steps.hits else []
        if texts:
            saved = sum(objects.saved) + steps.saved
            self._report(f"{' and '.join(texts)} from the cache, {saved:.0f} s saved")


@contextlib.contextmanager
def open_build_session(
    settings: Settings | None, *, runner: Runner, progress: ProgressSink, explain: bool
) -> Iterator[CacheSession | None]:
    """Open the cache for one build; yield None without settings."""
    if settings is None:
        yield None
        return
    session = CacheSession(settings, runner=runner, report=progress.note, explain=explain)
    with contextlib.closing(session):
        yield session
