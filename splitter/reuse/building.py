"""Run a build's steps with what earlier builds have made of the same."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from splitter.cache.cache import Cache
from splitter.engine.graph import Graph
from splitter.reuse.commands import is_precise, with_listing
from splitter.reuse.steps import StepMemory
from splitter.reuse.tools import GROUP, Tools

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from splitter.cache.settings import Settings
    from splitter.system.progress import ProgressSink
    from splitter.system.run import Runner


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembering:
    """A graph to run, and what knows results of its steps; None where nothing shall."""

    graph: Graph
    memory: StepMemory | None


@contextlib.contextmanager
def remembering(
    graph: Graph,
    *,
    settings: Settings | None,
    private: Path,
    cwd: Path,
    runner: Runner,
    progress: ProgressSink,
    explain: bool,
) -> Iterator[Remembering]:
    """Have a graph's results known as long as the context lives; say afterwards what was known.

    Args:
        settings: of the cache, or None to do without.
        private: the folder that all intermediate files are in.
        cwd: where the steps run.
        explain: tell of each step.
    """
    if settings is None:
        yield Remembering(graph=graph, memory=None)
        return
    cache = Cache(settings, warn=progress.note)
    cache.digests.load(GROUP)
    with contextlib.closing(cache):
        steps = tuple(with_listing(step, private) for step in graph.steps)
        tools = Tools(runner=runner, digests=cache.digests, cwd=cwd)
        precise = is_precise(word for step in steps for word in step.command.argv)
        memory = StepMemory(cache, tools, private=private, precise=precise, spread=False)
        yield Remembering(graph=Graph(steps=steps), memory=memory)
        memory.check()
        for _, line in memory.told if explain else ():
            progress.note(line)
        if memory.known:
            progress.note(f"{memory.known} steps were known: {memory.saved:.0f} s saved")
