"""The checks of a cluster with dask's scheduler: one action on each of its workers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from archsplit.errors import EngineRefusedError, EngineUnavailableError
from archsplit.remote.action import (
    OTHER_TOOLS_STATUS,
    PathMap,
    action_spec,
    describe_tools,
    other_tools_error,
    probe_step,
)
from archsplit.remote.dask_executor import connect_to_scheduler, plain_action, ship_toolkit
from archsplit.remote.dask_programs import run_on_worker
from archsplit.remote.farm_check import FarmCheck
from archsplit.remote.shipped_toolkit import ToolkitFiles

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from archsplit.remote.action import ShippedFolders, ToolFile
    from archsplit.remote.dask_worker import DaskResult
    from archsplit.remote.endpoint import DaskEndpoint

_NOBODY_SECONDS = 30.0


class DaskChecks:
    """The checks of one cluster; see `ReapiChecks`."""

    def __init__(
        self,
        endpoint: DaskEndpoint,
        *,
        tools: tuple[ToolFile, ...],
        folder: Path,
        shipped: ShippedFolders | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._tools = tools
        self._paths = PathMap(folder / "root", folder / "private", shipped)
        self._files = ToolkitFiles(tools, self._paths.shipped)
        step = probe_step(folder / "root", folder / "private")
        spec = action_spec(step, self._paths, tools)
        self._action = plain_action(spec, made={}, toolkit=self._files.name)
        self._client: Any = None

    def checks(self) -> Iterator[FarmCheck]:
        """Yield the checks in the order in which a build needs them."""
        yield FarmCheck(name="scheduler", run=self._connect)
        yield FarmCheck(name="execution", run=self._execute)

    def close(self) -> None:
        """Close the connection; actions that wait are canceled."""
        if self._client is not None:
            self._client.close(timeout=_NOBODY_SECONDS)

    def _connect(self) -> str:
        self._client = connect_to_scheduler(self._endpoint)
        threads = self._client.nthreads()
        return f"workers: {len(threads)}; steps at a time: {sum(threads.values())}"

    def _execute(self) -> str:
        if self._files.name:
            ship_toolkit(self._client, self._files)
        # On each: one worker with other tools would end a build that has begun.
        running = {
            worker: self._client.submit(
                run_on_worker,
                self._action,
                [],
                workers=[worker],
                allow_other_workers=False,
                pure=False,
            )
            for worker in self._client.nthreads()
        }
        for worker, future in running.items():
            try:
                done: DaskResult = future.result(timeout=_NOBODY_SECONDS)
            except (TimeoutError, asyncio.TimeoutError):  # two classes before Python 3.11
                raise EngineUnavailableError(
                    f"worker {worker} has not run an action in {_NOBODY_SECONDS:.0f} s",
                    hint="another build may have all of its slots",
                ) from None
            self._check_end(worker, done)
        return f"{describe_tools(self._tools, self._paths.shipped)} each worker"

    def _check_end(self, worker: str, done: DaskResult) -> None:
        if done["returncode"] == OTHER_TOOLS_STATUS:
            raise other_tools_error("the check", done["stdout"], worker)
        if done["returncode"] != 0 or not all(done["sizes"].values()):
            raise EngineRefusedError(
                f"an action failed with exit status {done['returncode']} on worker {worker}:"
                f" {done['stderr']}",
                hint="workers need sh, sha256sum, mkdir and cat",
            )
