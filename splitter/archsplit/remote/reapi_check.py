"""The checks of a farm with the Remote Execution API.

The action runs through the executor of builds, so that what works here works there: the same
upload, the same comparison of the tools, the same errors.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from archsplit.errors import EngineRefusedError, EngineUnavailableError
from archsplit.remote.action import PathMap, probe_step
from archsplit.remote.farm_executor import Traffic
from archsplit.remote.reapi_client import ReapiClient, digest_bytes
from archsplit.remote.reapi_executor import ReapiExecutor

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from pathlib import Path

    from archsplit.remote.action import ToolFile
    from archsplit.remote.endpoint import Endpoint
    from archsplit.system.process import CompletedProcess

_NOBODY_SECONDS = 30.0
"""Longest wait for a reply, and for a worker that takes an action."""
_BLOB_SIZE = 1 << 16


class ReapiChecks:
    """The checks of one farm.

    Args:
        endpoint: the farm.
        tools: the files that workers must have.
        folder: an empty folder for the files of the action.
    """

    def __init__(self, endpoint: Endpoint, *, tools: tuple[ToolFile, ...], folder: Path) -> None:
        self._endpoint = endpoint
        self._tools = tools
        self._paths = PathMap(folder / "root", folder / "private")
        self._step = probe_step(folder / "root", folder / "private")
        self._loop = asyncio.new_event_loop()
        self._client: ReapiClient | None = None

    def checks(self) -> Iterator[tuple[str, Callable[[], str]]]:
        """Yield the checks in the order in which a build needs them."""
        yield "capabilities", self._ask_capabilities
        yield "storage", self._write_and_read
        yield "action cache", self._look_up
        yield "execution", self._execute
        yield "kept results", self._execute_again

    def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._loop.run_until_complete(self._client.close())
        self._loop.close()

    def _ask_capabilities(self) -> str:
        self._wait_for(self._connect())
        return "runs actions, with SHA-256"

    async def _connect(self) -> None:
        # In a coroutine: a channel belongs to the loop that makes it.
        self._client = ReapiClient(self._endpoint, Traffic())
        await self._client.check_capabilities()

    def _write_and_read(self) -> str:
        assert self._client is not None
        # Random, so that the server can't have it.
        blob = os.urandom(_BLOB_SIZE)
        self._wait_for(self._client.upload({digest_bytes(blob): blob}))
        # Raises for other bytes.
        self._wait_for(self._client.download(digest_bytes(blob)))
        return f"{_BLOB_SIZE // 1024} KB written and read"

    def _look_up(self) -> str:
        assert self._client is not None
        self._wait_for(self._client.cached_result(digest_bytes(os.urandom(16))))
        return "replies"

    def _execute(self) -> str:
        self._run_probe()
        return f"the tools are the same on the worker; files: {len(self._tools)}"

    def _execute_again(self) -> str:
        if self._run_probe():
            return "a second build has hits"
        return "none: each build runs all steps, because the action cache accepts no results"

    def _run_probe(self) -> bool:
        """Run the action; return True if the result was in the action cache."""
        ends: SimpleQueue[CompletedProcess | BaseException] = SimpleQueue()
        executor = ReapiExecutor(
            self._endpoint,
            paths=self._paths,
            tools=lambda _: self._tools,
            wanted=self._step.writes,
            priorities={},
        )
        with contextlib.closing(executor):
            executor.start(self._step, cores=1, ended=ends.put)
            done = self._end(executor, ends)
            if isinstance(done, BaseException):
                raise done
            if fault := executor.find_fault(self._step, done):
                raise EngineRefusedError(
                    f"an action {fault} on a worker of {self._endpoint.address}: {done.tail()}",
                    hint="workers need sh, sha256sum, mkdir and cat",
                )
            return executor.hits > 0

    def _end(
        self, executor: ReapiExecutor, ends: SimpleQueue[CompletedProcess | BaseException]
    ) -> CompletedProcess | BaseException:
        with contextlib.suppress(Empty):
            return ends.get(timeout=_NOBODY_SECONDS)
        if not executor.is_taken:
            raise EngineUnavailableError(
                f"no worker of {self._endpoint.address} has taken an action in"
                f" {_NOBODY_SECONDS:.0f} s",
                hint="start workers, or ask for others with --remote-property",
            )
        # A worker that has taken the action may have to load its image.
        return ends.get()

    def _wait_for(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        try:
            return self._loop.run_until_complete(asyncio.wait_for(coroutine, _NOBODY_SECONDS + 5))
        except asyncio.TimeoutError:
            raise EngineUnavailableError(
                f"{self._endpoint.address} has not replied for {_NOBODY_SECONDS:.0f} s",
                hint="check the address and the server",
            ) from None
