"""The connection to a farm or a cluster, and the checks before a build.

The libraries of both are optional dependencies. The checks end at the first failure, because the
later checks need the earlier parts. The failed check has a row, too.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from archsplit.errors import ToolNotFoundError
from archsplit.remote.endpoint import DaskEndpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from archsplit.remote.endpoint import Endpoint
    from archsplit.remote.farm_executor import ExecutorSettings
    from archsplit.scheduler.executor import Executor
    from archsplit.scheduler.graph import Graph

_NAME_WIDTH = 16


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
        # An optional dependency, and a second of a start.
        with library_errors("dask"):
            from archsplit.remote.dask_executor import DaskExecutor  # noqa: PLC0415
        cluster = DaskExecutor(endpoint, graph=graph, **settings)
        if cluster.dashboard:
            note(f"dask's dashboard: {cluster.dashboard}")
        yield cluster
        note(f"{endpoint.address}: steps run: {cluster.runs}; {cluster.traffic}")
        return
    # An optional dependency, and 0.2 s of a start.
    with library_errors("reapi"):
        from archsplit.remote.reapi_executor import ReapiExecutor  # noqa: PLC0415
    farm = ReapiExecutor(endpoint, **settings)
    yield farm
    note(
        f"{endpoint.address}: steps from the cache: {farm.hits} of {farm.hits + farm.runs};"
        f" {farm.traffic}"
    )


@contextlib.contextmanager
def library_errors(extra: str) -> Iterator[None]:
    """Explain an import that fails because an extra is not installed.

    Raises:
        ToolNotFoundError: instead of each ImportError.
    """
    try:
        yield
    except ImportError as error:
        raise ToolNotFoundError(
            f"the package {error.name} is not installed", hint=f"pip install 'archsplit[{extra}]'"
        ) from None


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
