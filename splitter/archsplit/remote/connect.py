"""The connection to a farm or a cluster, and the checks before a build.

The libraries of both are optional dependencies. The first failed check ends all: those behind it
need what it has not found. Its row is there, too.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from archsplit.errors import ToolNotFoundError
from archsplit.remote.endpoint import DaskEndpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from typing_extensions import Unpack

    from archsplit.remote.action import PathMap, ToolFile
    from archsplit.remote.endpoint import Endpoint
    from archsplit.scheduler.executor import Executor, Placement
    from archsplit.scheduler.graph import Graph, Step
    from archsplit.system.process import CompletedProcess

_NAME_WIDTH = 16


class ExecutorSettings(TypedDict):
    """The arguments that all executors share.

    Attributes:
        paths: the folders of the build.
        tools: returns the files of the tools of a step.
        wanted: files that are written here; all others stay on the farm.
        priorities: the number of each step by its name; the lowest starts first.
    """

    paths: PathMap
    tools: Callable[[Step], Iterable[ToolFile]]
    wanted: Iterable[Path]
    priorities: Mapping[str, int]


class Traffic:
    """Bytes of files that were sent to other machines, and received from them."""

    def __init__(self) -> None:
        self.sent = 0
        self.received = 0

    def __str__(self) -> str:
        return f"{self.sent / 1e6:.1f} MB sent, {self.received / 1e6:.1f} MB received"


class FarmExecutor:
    """The part of an `Executor` that all farms share.

    Attributes:
        runs: number of steps that workers have run.
        traffic: bytes that were moved.
    """

    is_local = False

    def __init__(self, **settings: Unpack[ExecutorSettings]) -> None:
        self.runs = 0
        self.traffic = Traffic()
        self._paths = settings["paths"]
        self._tools = settings["tools"]
        self._wanted = frozenset(settings["wanted"])
        self._priorities = settings["priorities"]
        self._missing: dict[str, str] = {}
        self._placements: dict[str, Placement] = {}

    @property
    def moved(self) -> int:
        """See `Executor`."""
        return self.traffic.sent + self.traffic.received

    def find_fault(self, step: Step, done: CompletedProcess) -> str:
        """See `Executor.find_fault`."""
        if done.returncode != 0:
            return f"failed with exit status {done.returncode}"
        return self._missing.get(step.name, "")

    def find_placement(self, step: Step) -> Placement | None:
        """See `Executor.find_placement`."""
        return self._placements.get(step.name)

    def kill_unawaited(self) -> None:
        """See `Executor.kill_unawaited`; `close` ends all actions."""


@contextlib.contextmanager
def open_executor(
    endpoint: Endpoint | DaskEndpoint,
    graph: Graph,
    settings: ExecutorSettings,
    *,
    note: Callable[[str], None],
) -> Iterator[Executor]:
    """Connect to the farm at an endpoint.

    Args:
        endpoint: a farm, or a dask scheduler.
        graph: the steps that will be started.
        settings: of the executor, which its user closes.
        note: is told of the dashboard, and at the end of what the farm had and what was moved.

    Raises:
        ToolNotFoundError: the libraries for it are not installed.
        EngineUnavailableError: it does not reply, or has no worker.
        EngineRefusedError: it runs no actions, or wants credentials.
    """
    if isinstance(endpoint, DaskEndpoint):
        try:
            # An optional dependency, and a second of a start.
            from archsplit.remote.dask_executor import DaskExecutor  # noqa: PLC0415
        except ImportError as error:
            raise missing_library_error(error, "dask") from None
        cluster = DaskExecutor(endpoint, graph=graph, **settings)
        if cluster.dashboard:
            note(f"dask's dashboard: {cluster.dashboard}")
        yield cluster
        note(f"{endpoint.address}: {cluster.runs} results were made; {cluster.traffic}")
        return
    try:
        # An optional dependency, and 0.2 s of a start.
        from archsplit.remote.reapi_executor import ReapiExecutor  # noqa: PLC0415
    except ImportError as error:
        raise missing_library_error(error, "reapi") from None
    farm = ReapiExecutor(endpoint, **settings)
    yield farm
    note(
        f"{endpoint.address}: {farm.hits} of {farm.hits + farm.runs} results"
        f" were there; {farm.traffic}"
    )


def missing_library_error(error: ImportError, extra: str) -> ToolNotFoundError:
    """Return the error of an extra that is not installed."""
    return ToolNotFoundError(
        f"no {error.name} to reach the machines with", hint=f"pip install 'archsplit[{extra}]'"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRow:
    """The result of one check.

    Attributes:
        works: False for a failure.
        text: the facts; "" for a failure.
    """

    name: str
    works: bool
    seconds: float
    text: str

    def as_line(self) -> str:
        """Return the row of a table for people."""
        state = "ok" if self.works else "failed"
        return f"{self.name:<{_NAME_WIDTH}}{state:<8}{self.seconds:6.2f} s  {self.text}".rstrip()


def run_checks(
    checks: Iterable[tuple[str, Callable[[], str]]], on_row: Callable[[CheckRow], None]
) -> None:
    """Run checks up to the first failure, whose error is raised after its row.

    Args:
        checks: the name of each checked part, and a function that returns the facts found there
            in words; in the order in which a build needs them.
        on_row: called with each row.
    """
    for name, check in checks:
        began, text, works = time.monotonic(), "", False
        try:
            text = check()
            works = True
        # The row of a failed check is printed before its error.
        finally:
            seconds = time.monotonic() - began
            on_row(CheckRow(name=name, works=works, seconds=seconds, text=text))
