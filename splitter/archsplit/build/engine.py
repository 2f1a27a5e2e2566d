"""The build engine of one build: a farm with the Remote Execution API, or a dask cluster.

In: the plan of a build. Out: the pool and the executor that its graph runs with. A farm's steps
need this machine's tools at the same paths; `ToolFiles` lists the files of which they consist.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from archsplit.build.provenance import STATIC_DEVICE_RUNTIME
from archsplit.compiler.tool_files import ToolFiles
from archsplit.remote.action import PathMap
from archsplit.remote.connect import ExecutorSettings, open_executor
from archsplit.scheduler.grouping import MovedBytes, group_steps, guess_size, moved_bytes
from archsplit.scheduler.history import History
from archsplit.scheduler.pool import SlotPool
from archsplit.system.fs import cache_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from archsplit.build.context import BuildContext
    from archsplit.build.plan import BuildPlan
    from archsplit.release.context import Effects
    from archsplit.remote.endpoint import EngineChoice
    from archsplit.scheduler.estimates import StepEstimate
    from archsplit.scheduler.executor import Executor
    from archsplit.scheduler.graph import Graph

_RUNTIME_LIBRARIES = ("libcudart_static.a", STATIC_DEVICE_RUNTIME)


@dataclass(frozen=True, slots=True, kw_only=True)
class FarmPlan:
    """The actions of a build on a farm.

    Attributes:
        graph: the steps, each of which is an action.
        moved: the expected bytes between actions.
        unmoved: the expected bytes between steps of one action.
        wanted: files that the build reads on this machine.
    """

    graph: Graph
    moved: MovedBytes
    unmoved: int
    wanted: frozenset[Path]


def plan_farm(plan: BuildPlan, known: Mapping[str, StepEstimate]) -> FarmPlan:
    """Group the steps of a plan into actions.

    Args:
        known: measurements of earlier builds by the keys of steps.
    """
    checked = (path for step in plan.graph.steps if step.check for path in step.writes)
    wanted = frozenset([*plan.libraries.values(), *checked])
    sizes = {
        path: size
        for step in plan.graph.steps
        if step.key in known
        for path, size in zip(step.writes, known[step.key].sizes, strict=False)
    }

    def size_of(path: Path) -> int:
        return sizes.get(path) or guess_size(path)

    graph = group_steps(plan.graph, wanted=wanted, size_of=size_of)
    moved = moved_bytes(graph, size_of)
    return FarmPlan(
        graph=graph,
        moved=moved,
        unmoved=moved_bytes(plan.graph, size_of).total - moved.total,
        wanted=wanted,
    )


def build_history(plan: BuildPlan, environment: Mapping[str, str]) -> History:
    """Return the measurements of earlier builds of a recipe on this machine."""
    return History(cache_folder(environment) / "history", str(plan.site.recipe.root))


def _tool_files(site: BuildContext, effects: Effects) -> ToolFiles:
    # nvcc's profile names this folder; the wheels of the index put it there, too.
    folders = [part.toolkit.root / "include" for part in site.parts]
    folders += [one.include for one in site.cuda_libraries if one.include]
    places = [part.toolkit.library_folder for part in site.parts]
    libraries = [place / name for place in places for name in _RUNTIME_LIBRARIES]
    libraries = [path for path in libraries if path.is_file()]
    return ToolFiles(
        effects.runner,
        cache_folder(effects.environment) / "digests",
        cwd=site.recipe.root,
        objcopy=site.host.objcopy,
        headers=lambda: (path for folder in folders for path in folder.rglob("*")),
        libraries=[*libraries, *(library.file for library in site.cuda_libraries)],
    )


@contextlib.contextmanager
def open_farm(
    plan: BuildPlan, effects: Effects, choice: EngineChoice
) -> Iterator[tuple[Graph, SlotPool, Executor]]:
    """Connect to a farm or a cluster; report at the end what it had and what was moved.

    Raises:
        ToolNotFoundError: the libraries for it are not installed.
        EngineUnavailableError: it does not reply, or has no worker.
        EngineRefusedError: it runs no actions, or wants credentials.
    """
    site = plan.site
    tools = _tool_files(site, effects)
    farm = plan_farm(plan, build_history(plan, effects.environment).estimates)
    lengths = farm.graph.critical_path()
    # Lower numbers first; a tenth of a second is exact enough.
    priorities = {
        step.name: -round(10 * length)
        for step, length in zip(farm.graph.steps, lengths, strict=True)
    }
    settings = ExecutorSettings(
        paths=PathMap(site.recipe.root, site.folder),
        tools=tools,
        wanted=farm.wanted,
        priorities=priorities,
    )
    opened = open_executor(choice.endpoint, farm.graph, settings, note=effects.progress.note)
    with opened as executor:
        yield farm.graph, SlotPool(choice.jobs), executor
    tools.save()
