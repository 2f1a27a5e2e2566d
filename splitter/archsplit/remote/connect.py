"""The connection to a farm or a cluster, whose libraries are optional dependencies."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, TypedDict

from archsplit.errors import ToolNotFoundError
from archsplit.remote.endpoint import DaskEndpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from archsplit.remote.action import PathMap, ToolFile
    from archsplit.remote.endpoint import Endpoint
    from archsplit.scheduler.executor import Executor
    from archsplit.scheduler.graph import Graph, Step


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
        note(f"{endpoint.address}: {cluster.runs} results were made")
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
        f" were there; {farm.sent / 1e6:.1f} MB sent, {farm.received / 1e6:.1f} MB received"
    )


def missing_library_error(error: ImportError, extra: str) -> ToolNotFoundError:
    """Return the error of an extra that is not installed."""
    return ToolNotFoundError(
        f"no {error.name} to reach the machines with", hint=f"pip install 'archsplit[{extra}]'"
    )
