"""The build engine of one build: a farm with the Remote Execution API, or a dask cluster.

In: the plan of a build. Out: the pool and the executor that its graph runs with. A farm's steps
need this machine's tools at the same paths; `ToolFiles` lists the files of which they consist.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from archsplit.build.provenance import STATIC_DEVICE_RUNTIME
from archsplit.cache.file_digests import FileDigests
from archsplit.compiler.file_resolver import PROGRAM_GROUP
from archsplit.compiler.step_key import is_host_compiler
from archsplit.compiler.tool_identity import ToolIdentities
from archsplit.errors import ToolNotFoundError
from archsplit.remote.action import PathMap, ToolFile
from archsplit.remote.endpoint import DaskEndpoint
from archsplit.scheduler.grouping import MovedBytes, group_steps, guess_size, moved_bytes
from archsplit.scheduler.history import History
from archsplit.scheduler.pool import SlotPool
from archsplit.system.fs import cache_folder
from archsplit.system.process import Command, run_checked

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from archsplit.build.context import BuildContext
    from archsplit.build.plan import BuildPlan
    from archsplit.release.context import Effects, EngineChoice
    from archsplit.remote.endpoint import Endpoint
    from archsplit.scheduler.estimates import StepEstimate
    from archsplit.scheduler.executor import Executor
    from archsplit.scheduler.graph import Graph, Step
    from archsplit.system.process import Runner
    from archsplit.system.progress import ProgressSink

_HEADER_GROUP = "toolkit headers"
_LINKERS = ("collect2", "ld")
_RUNTIME_LIBRARIES = ("libcudart_static.a", STATIC_DEVICE_RUNTIME)


class ToolFiles:
    """The files of the tools of each step, with their digests.

    Args:
        site: the tools of the build.
        runner: asks compilers for their parts.
        folder: folder of known digests.
    """

    def __init__(self, site: BuildContext, runner: Runner, folder: Path) -> None:
        self._site = site
        self._digests = FileDigests(folder)
        self._digests.load(PROGRAM_GROUP)
        self._digests.load(_HEADER_GROUP)
        self._runner = runner
        self._tools = ToolIdentities(runner=runner, digests=self._digests, cwd=site.recipe.root)
        self._more: dict[str, tuple[ToolFile, ...]] = {}
        self._lock = threading.Lock()

    def __call__(self, step: Step) -> tuple[ToolFile, ...]:
        """Return the files of a step's tools; several threads may call it.

        Raises:
            ToolNotFoundError: one of them is gone.
        """
        with self._lock:
            return tuple(dict.fromkeys(self._find_all(step)))

    def save(self) -> None:
        """Store the digests for the next build."""
        self._digests.save()

    def _find_all(self, step: Step) -> Iterator[ToolFile]:
        for part in step.parts or (step,):
            yield from self._find(part.command)

    def _find(self, command: Command) -> Iterator[ToolFile]:
        if command.argv[0] == str(self._site.host.objcopy):
            # `ToolIdentities` takes each other program for a compiler with parts.
            yield self._file(self._site.host.objcopy, PROGRAM_GROUP)
            return
        for path in self._tools.files(command.argv, command.env):
            yield self._file(path, PROGRAM_GROUP)
        if is_host_compiler(command.argv[0]):
            compiles = "-E" in command.argv or "-c" in command.argv
            yield from self._headers() if compiles else self._link_parts(command)

    def _headers(self) -> tuple[ToolFile, ...]:
        if "headers" not in self._more:
            # nvcc's profile names this folder; the wheels of the index put it there, too.
            folders = [part.toolkit.root / "include" for part in self._site.parts]
            folders += [one.include for one in self._site.cuda_libraries if one.include]
            paths = sorted({path for folder in folders for path in folder.rglob("*")})
            found = (self._file(path, _HEADER_GROUP) for path in paths if path.is_file())
            self._more["headers"] = tuple(found)
        return self._more["headers"]

    def _link_parts(self, command: Command) -> tuple[ToolFile, ...]:
        if "link" not in self._more:
            folders = [part.toolkit.library_folder for part in self._site.parts]
            paths = [folder / name for folder in folders for name in _RUNTIME_LIBRARIES]
            paths = [path for path in paths if path.is_file()]
            paths += [library.file for library in self._site.cuda_libraries]
            for part in _LINKERS:
                argv = (command.argv[0], f"-print-prog-name={part}")
                query = Command(argv=argv, cwd=command.cwd, env=command.env)
                name = run_checked(self._runner, query, what=f"asking for {part}").stdout.strip()
                # A bare name is one that the compiler looks for on the PATH.
                place = shutil.which(name, path=command.env.get("PATH", ""))
                paths += [] if place is None else [Path(place)]
            self._more["link"] = tuple(self._file(path, PROGRAM_GROUP) for path in paths)
        return self._more["link"]

    def _file(self, path: Path | None, group: str) -> ToolFile:
        digest = None if path is None else self._digests.digest(str(path), group=group)
        if path is None or digest is None:
            raise ToolNotFoundError(f"a part of the tools is gone: {path or 'a compiler'}")
        return ToolFile(path=str(path), sha256=digest)


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
    tools = ToolFiles(site, effects.runner, cache_folder(effects.environment) / "digests")
    farm = plan_farm(plan, build_history(plan, effects.environment).estimates)
    lengths = farm.graph.critical_path()
    # Lower numbers first; a tenth of a second is exact enough.
    priorities = {
        step.name: -round(10 * length)
        for step, length in zip(farm.graph.steps, lengths, strict=True)
    }
    common = _Common(
        paths=PathMap(site.recipe.root, site.folder),
        tools=tools,
        wanted=farm.wanted,
        priorities=priorities,
    )
    if isinstance(choice.endpoint, DaskEndpoint):
        opened = _open_dask(choice.endpoint, farm.graph, common)
    else:
        opened = _open_reapi(choice.endpoint, common, effects.progress)
    with opened as executor:
        yield farm.graph, SlotPool(choice.jobs), executor
    tools.save()


class _Common(TypedDict):
    """The arguments of all executors."""

    paths: PathMap
    tools: ToolFiles
    wanted: frozenset[Path]
    priorities: dict[str, int]


@contextlib.contextmanager
def _open_reapi(endpoint: Endpoint, common: _Common, progress: ProgressSink) -> Iterator[Executor]:
    try:
        # An optional dependency, and 0.2 s of a start.
        from archsplit.remote.reapi_executor import ReapiExecutor  # noqa: PLC0415
    except ImportError as error:
        raise missing_library_error(error, "reapi") from None
    executor = ReapiExecutor(endpoint, **common)
    yield executor
    progress.note(
        f"{endpoint.address}: {executor.hits} of {executor.hits + executor.runs} results"
        f" were there; {executor.sent / 1e6:.1f} MB sent, {executor.received / 1e6:.1f} MB received"
    )


@contextlib.contextmanager
def _open_dask(endpoint: DaskEndpoint, graph: Graph, common: _Common) -> Iterator[Executor]:
    try:
        # An optional dependency, and a second of a start.
        from archsplit.remote.dask_executor import DaskExecutor  # noqa: PLC0415
    except ImportError as error:
        raise missing_library_error(error, "dask") from None
    yield DaskExecutor(endpoint, graph=graph, **common)


def missing_library_error(error: ImportError, extra: str) -> ToolNotFoundError:
    """Return the error of an extra that is not installed."""
    return ToolNotFoundError(
        f"no {error.name} to reach the machines with", hint=f"pip install 'archsplit[{extra}]'"
    )
