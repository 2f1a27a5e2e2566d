"""The build engine of one build: a farm with the Remote Execution API, or a dask cluster.

In: the plan of a build. Out: the pool and the executor that its graph runs with. A farm's steps
need this machine's tools at the same paths; `ToolFiles` lists the files of which they consist. The
check of a farm before a build needs no plan: it compares only the tools of each build.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.build.context import open_digests, probe_nvcc
from archsplit.build.provenance import STATIC_DEVICE_RUNTIME, STATIC_RUNTIME
from archsplit.compiler.machine_facts import PROGRAM_GROUP
from archsplit.compiler.tool_identity import ToolIdentities
from archsplit.compiler.wrapper_farm import ToolFiles
from archsplit.errors import ToolNotFoundError
from archsplit.nvcc.toolkit import choose_toolkit, find_host_tools
from archsplit.remote.action import PathMap, ToolFile
from archsplit.remote.action_results import ActionResults
from archsplit.remote.connection import library_errors, open_executor
from archsplit.remote.endpoint import DaskEndpoint
from archsplit.remote.farm_executor import ExecutorSettings
from archsplit.scheduler.graph import Graph, group_steps, guess_size
from archsplit.scheduler.history import History
from archsplit.scheduler.pool import LocalPool
from archsplit.system.env import cache_dir
from archsplit.system.fs import temporary_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from archsplit.build.context import BuildContext
    from archsplit.build.plan import BuildPlan
    from archsplit.cache.cache import Cache
    from archsplit.release.context import Effects
    from archsplit.remote.endpoint import Endpoint, EngineChoice
    from archsplit.scheduler.executor import Executor
    from archsplit.scheduler.graph import Step
    from archsplit.scheduler.schedule import StepEstimate

_RUNTIME_LIBRARIES = (STATIC_RUNTIME, STATIC_DEVICE_RUNTIME)


def plan_farm(plan: BuildPlan, known: Mapping[str, StepEstimate]) -> tuple[Graph, frozenset[Path]]:
    """Group the steps of a plan into actions.

    Args:
        known: measurements of earlier builds by the keys of steps.

    Returns:
        The steps, each of which is an action, and the files that the build reads here.
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

    groups = group_steps(plan.graph, wanted=wanted, size_of=size_of)
    graph = Graph(
        steps=tuple(step._replace(weight=_expected_seconds(step, known)) for step in groups.steps)
    )
    return graph, wanted


def _expected_seconds(step: Step, known: Mapping[str, StepEstimate]) -> float:
    """Return the seconds of an action, measured as a whole or summed over its steps."""
    if step.key in known:
        return known[step.key].seconds
    return sum(_expected_seconds(part, known) for part in step.parts) or step.weight


def build_history(plan: BuildPlan, environment: Mapping[str, str]) -> History:
    """Return the measurements of earlier builds of a recipe on this machine."""
    return History(Path(cache_dir(environment)) / "history", str(plan.context.recipe.root))


def _tool_files(context: BuildContext, effects: Effects) -> ToolFiles:
    # nvcc's profile names this folder; the wheels of the index put it there, too.
    toolkit = context.toolkit
    folders = [toolkit.root / "include"]
    folders += [one.include for one in context.cuda_libraries if one.include]
    libraries = [toolkit.library_folder / name for name in _RUNTIME_LIBRARIES]
    libraries = [path for path in libraries if path.is_file()]
    return ToolFiles(
        effects.runner,
        Path(cache_dir(effects.environment)) / "digests",
        cwd=context.recipe.root,
        objcopy=context.host.objcopy,
        headers=lambda: (path for folder in folders for path in folder.rglob("*")),
        libraries=[*libraries, *(library.file for library in context.cuda_libraries)],
        stubs=[toolkit.root / "bin" / "crt" / "link.stub"],
    )


@contextlib.contextmanager
def open_farm(
    plan: BuildPlan, effects: Effects, choice: EngineChoice, cache: Cache | None = None
) -> Iterator[tuple[Graph, LocalPool, Executor, ActionResults | None]]:
    """Connect to a farm or a cluster; report at the end what it had and what was moved.

    Args:
        plan: the plan.
        effects: the effects.
        choice: the farm.
        cache: keeps the results of a cluster, which has no store; None for no cache.

    Raises:
        ToolNotFoundError: the libraries for it are not installed.
        EngineUnavailableError: it does not reply, or has no worker.
        EngineRefusedError: it runs no actions, or wants credentials.
    """
    context = plan.context
    tools = _tool_files(context, effects)
    graph, wanted = plan_farm(plan, build_history(plan, effects.environment).estimates)
    lengths = graph.critical_path()
    # Lower numbers first; a tenth of a second is exact enough.
    priorities = {
        step.name: -round(10 * length) for step, length in zip(graph.steps, lengths, strict=True)
    }
    paths = PathMap(context.recipe.root, context.folder)
    results = None
    # A farm has an action cache, and its results needn't come here. Verifying runs all steps.
    keeps = cache is not None and cache.settings.mode != "verify"
    if cache is not None and keeps and isinstance(choice.endpoint, DaskEndpoint):
        results = ActionResults(cache, paths, tools)
        wanted = frozenset(path for step in graph.steps for path in step.writes)
        for folder in {path.parent for path in wanted}:
            folder.mkdir(parents=True, exist_ok=True)
    settings = ExecutorSettings(paths=paths, tools=tools, wanted=wanted, priorities=priorities)
    opened = open_executor(choice.endpoint, graph, settings, note=effects.progress.note)
    with opened as executor:
        yield graph, LocalPool(choice.jobs), executor, results
    if results is not None:
        effects.progress.note(f"{results.hits} of {len(graph.steps)} steps from the compile cache")
    tools.save()


def build_tools(effects: Effects, nvcc: Path | None) -> tuple[ToolFile, ...]:
    """Return the files that steps of each build run with.

    The files are programs and device libraries; builds have headers, too.

    Raises:
        ToolNotFoundError: a toolkit or host compiler, or a part of it, is missing.
    """
    toolkit = choose_toolkit(probe_nvcc(effects, nvcc))
    host = find_host_tools(effects.environment, effects.runner)
    digests = open_digests(effects.environment, PROGRAM_GROUP)
    identities = ToolIdentities(runner=effects.runner, digests=digests, cwd=Path("/"))
    parts = identities.files((str(host.compiler),), effects.environment)
    # No step runs nvcc itself: it is the planner's.
    paths = [*(path for path in toolkit.tools if path != toolkit.nvcc), host.objcopy, *parts]
    paths += sorted((toolkit.root / "nvvm" / "libdevice").glob("*.bc"))
    found = []
    for path in paths:
        digest = None if path is None else digests.digest(str(path), group=PROGRAM_GROUP)
        if path is None or digest is None:
            raise ToolNotFoundError(f"a tool is missing: {path or 'a compiler'}")
        found.append(ToolFile(path=str(path), sha256=digest))
    digests.save()
    return tuple(found)


@contextlib.contextmanager
def open_checks(
    endpoint: Endpoint | DaskEndpoint, tools: tuple[ToolFile, ...]
) -> Iterator[Iterator[tuple[str, Callable[[], str]]]]:
    """Yield the checks of a farm or a cluster.

    Args:
        endpoint: the farm or the scheduler.
        tools: files of the tools.

    Raises:
        ToolNotFoundError: the libraries for it are not installed.
    """
    with temporary_dir() as folder:
        if isinstance(endpoint, DaskEndpoint):
            # An optional dependency, and a second of a start.
            with library_errors("dask"):
                from archsplit.remote.dask_executor import DaskChecks  # noqa: PLC0415
            cluster = DaskChecks(endpoint, tools=tools, folder=folder)
            with contextlib.closing(cluster):
                yield cluster.checks()
        else:
            # An optional dependency, and 0.2 s of a start.
            with library_errors("reapi"):
                from archsplit.remote.reapi_check import ReapiChecks  # noqa: PLC0415
            farm = ReapiChecks(endpoint, tools=tools, folder=folder)
            with contextlib.closing(farm):
                yield farm.checks()
