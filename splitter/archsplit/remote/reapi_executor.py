"""An executor that runs steps on a farm with the Remote Execution API.

In: steps that declare all that they open. Out: exits, and the files that the caller wants here; all
other files stay in the farm's storage, where the next step's worker finds them. Each action is
first looked up in the farm's action cache: a build whose results are there sends no file. After
some misses in a row only the server looks there, when it is asked to run the action.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from concurrent import futures
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import grpc

from archsplit.errors import EngineRefusedError, EngineUnavailableError, WorkerLostError
from archsplit.formats.reapi_messages import encode_message, new_message
from archsplit.remote.action import OTHER_TOOLS_STATUS, action_spec, failed_part, other_tools_error
from archsplit.remote.farm_executor import CANCELED, FarmExecutor
from archsplit.remote.reapi_client import Digest, ReapiClient, digest_bytes, read_digest
from archsplit.system.fs import output_errors
from archsplit.system.outputs import overwrite_file
from archsplit.system.process import CompletedProcess

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from typing_extensions import Unpack

    from archsplit.remote.action import ActionSpec
    from archsplit.remote.endpoint import Endpoint
    from archsplit.remote.farm_executor import ExecutorSettings, Traffic
    from archsplit.scheduler.executor import Ended
    from archsplit.scheduler.graph import Step

_ATTEMPTS = 3
"""Attempts at an action whose worker was lost."""
_NO_WORKER_SECONDS = 30.0
"""Seconds until a build fails because no worker has taken any of its actions."""
_BUSY_SECONDS = 300.0
"""Seconds without progress after a worker has taken one: other builds may keep all workers busy."""
_QUEUED, _EXECUTING = 2, 3
_KILLED = {-9, 137}
"""Exit statuses after SIGKILL: the kernel's OOM killer sends it, or the end of the worker."""
_CLOSE_SECONDS = 5.0
_MISSES = 16
"""Misses in a row after which a build counts as new."""
_SMALL = 1 << 16
"""Most bytes of a file that is written without a thread."""


class ReapiExecutor(FarmExecutor):
    """Runs steps on the farm at an endpoint.

    Args:
        endpoint: the farm.
        settings: see `ExecutorSettings`.

    Attributes:
        hits: number of steps whose results the farm had.
        is_taken: True after a worker has taken a step.
    """

    def __init__(self, endpoint: Endpoint, **settings: Unpack[ExecutorSettings]) -> None:
        super().__init__(**settings)
        self.hits = 0
        self._misses = 0
        self._platform = _platform(endpoint)
        self._outputs: dict[Path, Digest] = {}
        self._inputs: dict[Path, Digest] = {}
        self._programs: set[str] = set()
        self._began_to_wait: float | None = None
        self.is_taken = False
        self._reports_begin = False
        self._executing: set[str] = set()
        self._waiting: set[asyncio.Future[Any]] = set()
        self._timeouts: dict[asyncio.Future[Any], EngineUnavailableError] = {}
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._client: ReapiClient = self._wait_for(_new_client(endpoint, self.traffic))
        try:
            self._wait_for(self._client.check_capabilities())
            asyncio.run_coroutine_threadsafe(self._watch_workers(), self._loop)
        # Otherwise the thread of the loop would outlive the failed start.
        except BaseException:
            self.close()
            raise

    def start(self, step: Step, *, cores: int, ended: Ended) -> RemoteStep:
        """See `Executor.start`."""
        future = asyncio.run_coroutine_threadsafe(self._run(step, cores), self._loop)
        future.add_done_callback(partial(_report, ended))
        return RemoteStep(future)

    def close(self) -> None:
        """See `Executor.close`."""
        if self._loop.is_running():
            # A farm that doesn't reply can't keep the build from its end.
            with contextlib.suppress(futures.TimeoutError):
                self._wait_for(self._end(), seconds=_CLOSE_SECONDS)
            self._loop.call_soon_threadsafe(self._loop.stop)

    async def _end(self) -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._client.close()

    def _wait_for(
        self, coroutine: Coroutine[Any, Any, Any], *, seconds: float | None = None
    ) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(seconds)

    async def _run(self, step: Step, cores: int) -> CompletedProcess:
        try:
            return await self._find_or_execute(step, cores)
        except grpc.aio.AioRpcError as error:
            raise EngineRefusedError(
                f"{self._client.endpoint.address} refuses {step.name}:"
                f" {error.code().name}, {error.details()}"
            ) from error

    async def _find_or_execute(self, step: Step, cores: int) -> CompletedProcess:
        if self._is_quick(step):
            spec, blobs = self._prepare(step, cores)
        else:
            spec, blobs = await asyncio.to_thread(self._prepare, step, cores)
            self._programs |= _programs(step)
        action = next(reversed(blobs))
        result, seconds = None, 0.0
        if self._misses < _MISSES:
            result = await self._client.cached_result(action)
            self._misses += result is None
        if result is not None and await self._is_usable(result):
            self._add_hit()
        else:
            skip_cache_lookup = result is not None
            result = await self._execute(step, spec, blobs, skip_cache_lookup=skip_cache_lookup)
            seconds = _worker_seconds(result.execution_metadata)
        stdout, stderr = await self._read_output(result)
        if result.exit_code == OTHER_TOOLS_STATUS:
            raise other_tools_error(step.name, stdout, self._client.endpoint.address)
        if result.exit_code == 0:
            await self._take_outputs(step, spec, result)
        part, stderr = failed_part(stderr)
        return CompletedProcess(
            returncode=result.exit_code,
            stdout=stdout,
            stderr=stderr,
            failed_part=part,
            seconds=seconds,
        )

    def _add_hit(self) -> None:
        self.hits += 1
        self._misses = 0

    def _is_quick(self, step: Step) -> bool:
        """Return True if an action is made in less time than a thread is woken."""
        # The files of a program are hashed for its first steps.
        if not _programs(step) <= self._programs:
            return False
        new = (path for path in step.reads if path not in self._outputs)
        try:
            return sum(path.stat().st_size for path in new if path not in self._inputs) <= _SMALL
        except OSError:
            # The error is the same in a thread.
            return True

    def _prepare(self, step: Step, cores: int) -> tuple[ActionSpec, dict[Digest, bytes | Path]]:
        """Return the action of a step, and its blobs; reads files."""
        spec = action_spec(step, self._paths, self._tools(step), cores=cores)
        return spec, self._blobs(spec)

    async def _is_usable(self, result: Any) -> bool:
        # A failure in the cache may be a worker's; and a server may have lost outputs, which
        # later steps read.
        outputs = [read_digest(file.digest) for file in result.output_files]
        return result.exit_code == 0 and not await self._client.find_missing(outputs)

    def _blobs(self, spec: ActionSpec) -> dict[Digest, bytes | Path]:
        """Return the blobs of an action without other steps' outputs; its own is the last."""
        blobs: dict[Digest, bytes | Path] = {}
        files = {}
        for name, path in spec.inputs.items():
            files[name] = self._outputs.get(path) or self._hash(path)
            if path not in self._outputs:
                blobs[files[name]] = path
        for name, text in spec.texts.items():
            files[name] = digest_bytes(text)
            blobs[files[name]] = text
        root = _add_tree(files, blobs)
        command = new_message(
            "Command",
            arguments=spec.argv,
            environment_variables=[
                new_message("EnvironmentVariable", name=name, value=value)
                for name, value in spec.environment
            ],
            output_files=sorted(map(str, spec.outputs)),
            output_paths=sorted(map(str, spec.outputs)),
            platform=self._platform,
        )
        _add_message(
            blobs,
            new_message(
                "Action",
                command_digest=_add_message(blobs, command).message(),
                input_root_digest=root.message(),
                platform=self._platform,
            ),
        )
        return blobs

    def _hash(self, path: Path) -> Digest:
        # Sources of a build include the same headers.
        if path not in self._inputs:
            self._inputs[path] = digest_bytes(path.read_bytes())
        return self._inputs[path]

    async def _execute(
        self,
        step: Step,
        spec: ActionSpec,
        blobs: dict[Digest, bytes | Path],
        *,
        skip_cache_lookup: bool,
    ) -> Any:
        """Run an action and return its result.

        Args:
            step: the step.
            spec: its action.
            blobs: the blobs of the action, its own at the end.
            skip_cache_lookup: True if the result in the action cache can't be used: it is a
                failure, perhaps a worker's, or the server has lost its outputs.
        """
        action, reason = next(reversed(blobs)), ""
        wanted = [str(name) for name, path in spec.outputs.items() if path in self._wanted]
        for attempt in range(_ATTEMPTS):
            await self._client.upload(blobs)
            reply = await self._in_time(
                self._client.execute(
                    action,
                    priority=self._priorities.get(step.name, 0),
                    skip_cache_lookup=attempt > 0 or skip_cache_lookup,
                    wanted=wanted,
                    on_stage=partial(self._on_stage, step.name),
                )
            )
            self._add_progress(step.name)
            if reply.status.code == grpc.StatusCode.FAILED_PRECONDITION.value[0]:
                # The storage has evicted an input since its upload: send all of them once more.
                self._client.forget_uploads()
                if attempt == 0:
                    continue
                raise EngineRefusedError(
                    f"{self._client.endpoint.address} has lost a file that {step.name} reads:"
                    f" {reply.status.message}",
                    hint="its storage is too small for a build; enlarge it, and build again",
                )
            if reply.cached_result and await self._is_usable(reply.result):
                self._add_hit()
                return reply.result
            is_done = reply.status.code == 0 and reply.result.exit_code not in _KILLED
            if is_done and not reply.cached_result:
                self.runs += 1
                return reply.result
            reason = reply.status.message or f"exit status {reply.result.exit_code}"
        raise WorkerLostError(
            f"{step.name} was lost {_ATTEMPTS} times with its worker: {reason}",
            hint="most often the workers have too little memory for it",
        )

    def _on_stage(self, name: str, stage: int) -> None:
        if stage >= _EXECUTING:
            self._add_progress(name)
            self._executing.add(name)
            self._reports_begin = True
        elif stage == _QUEUED:
            # A step is also queued again if its worker was lost.
            self._executing.discard(name)
            if self._began_to_wait is None:
                self._began_to_wait = time.monotonic()

    def _add_progress(self, name: str) -> None:
        """Note that there is a worker; the time of waiting begins again."""
        self.is_taken = True
        self._executing.discard(name)
        self._began_to_wait = time.monotonic()

    async def _in_time(self, call: Coroutine[Any, Any, Any]) -> Any:
        """Wait for an action; no longer than some seconds if no worker takes any."""
        # The step's own task: one more for each action would cost more than the wait.
        task = asyncio.current_task()
        assert task is not None, "coroutines run in tasks"
        self._waiting.add(task)
        try:
            return await call
        except asyncio.CancelledError:
            # Otherwise the step is canceled.
            if task in self._timeouts:
                raise self._timeouts[task] from None
            raise
        finally:
            self._waiting.discard(task)

    async def _watch_workers(self) -> None:
        """End all actions if no worker takes any: one timer, though a thousand wait."""
        while True:
            await asyncio.sleep(_NO_WORKER_SECONDS / 10)
            since = self._began_to_wait
            # Servers that report no begin of an execution can't be told from idle ones.
            most = _BUSY_SECONDS if self._reports_begin else math.inf
            most = most if self.is_taken else _NO_WORKER_SECONDS
            waits = since is not None and time.monotonic() - since > most
            if not waits or self._executing:
                continue
            for task in self._waiting:
                self._timeouts[task] = EngineUnavailableError(
                    f"no worker of {self._client.endpoint.address} has taken a step in"
                    f" {most:.0f} s",
                    hint="start workers, or ask for others with --remote-property",
                )
                task.cancel()

    async def _read_output(self, result: Any) -> tuple[str, str]:
        texts = []
        for stream in ("stdout", "stderr"):
            raw = getattr(result, f"{stream}_raw")
            digest = read_digest(getattr(result, f"{stream}_digest"))
            if not raw and digest.size:
                raw = await self._client.download(digest)
            texts.append(raw.decode(errors="replace"))
        return texts[0], texts[1]

    async def _take_outputs(self, step: Step, spec: ActionSpec, result: Any) -> None:
        made = {PurePosixPath(file.path): file for file in result.output_files}
        for name, path in spec.outputs.items():
            file = made.get(name)
            if file is None or not file.digest.size_bytes:
                self._missing[step.name] = f"succeeded, but left no {path.name}"
                return
            digest = self._outputs[path] = read_digest(file.digest)
            if path not in self._wanted:
                continue
            # Servers may put small files into the result.
            is_inside = digest_bytes(file.contents) == digest
            blob = file.contents if is_inside else await self._client.download(digest)
            self.traffic.received += len(file.contents)
            if digest.size > _SMALL:
                await asyncio.to_thread(_write_output, path, blob)
            else:
                _write_output(path, blob)


def _programs(step: Step) -> set[str]:
    return {part.command.argv[0] for part in step.parts or (step,)}


def _write_output(path: Path, blob: bytes) -> None:
    # As the step's own program would; no program reads the file before the end of the step.
    with output_errors(path):
        overwrite_file(path, blob)


class RemoteStep:
    """A step on the farm."""

    def __init__(self, future: futures.Future[CompletedProcess]) -> None:
        self._future = future

    def kill(self, *, grace: float = 0.0) -> None:
        """Cancel the action."""
        del grace
        self._future.cancel()

    def resident_memory(self) -> int:
        """Return 0: the step takes no memory of this machine."""
        return 0


def _report(ended: Ended, future: futures.Future[CompletedProcess]) -> None:
    if future.cancelled():
        ended(CANCELED)
    else:
        ended(future.exception() or future.result())


def _worker_seconds(metadata: Any) -> float:
    """Return the seconds that a worker took; 0 if the server doesn't report them."""
    stages = ("input_fetch", "execution", "output_upload")
    times = (
        [_seconds(getattr(metadata, f"{name}_{end}_timestamp")) for end in ("start", "completed")]
        for name in stages
    )
    return sum(end - begin for begin, end in times if 0 < begin <= end)


def _seconds(timestamp: Any) -> float:
    return float(timestamp.seconds + timestamp.nanos / 1e9)


async def _new_client(endpoint: Endpoint, traffic: Traffic) -> ReapiClient:
    # In the loop's own thread: a channel belongs to the loop that makes it.
    return ReapiClient(endpoint, traffic)


def _platform(endpoint: Endpoint) -> Any:
    rows = (new_message("Property", name=name, value=value) for name, value in endpoint.properties)
    return new_message("Platform", properties=rows)


def _add_message(blobs: dict[Digest, bytes | Path], message: Any) -> Digest:
    blob = encode_message(message)
    digest = digest_bytes(blob)
    # The last one is the action's own, wherever equal bytes were before.
    blobs.pop(digest, None)
    blobs[digest] = blob
    return digest


def _add_tree(files: Mapping[PurePosixPath, Digest], blobs: dict[Digest, bytes | Path]) -> Digest:
    """Add the messages of the folders that hold the files; return the digest of the root.

    Args:
        files: digests by name.
        blobs: get the messages.
    """
    folders: dict[PurePosixPath, set[PurePosixPath]] = {PurePosixPath(): set()}
    for name in files:
        for child in (name, *name.parents):
            if child != child.parent:
                folders.setdefault(child.parent, set()).add(child)
    digests: dict[PurePosixPath, Digest] = {}
    # The deepest first: a folder's message has the digests of the folders in it.
    for folder in sorted(folders, key=lambda each: len(each.parts), reverse=True):
        inside = sorted(folders[folder])
        message = new_message(
            "Directory",
            files=[
                new_message("FileNode", name=child.name, digest=files[child].message())
                for child in inside
                if child in files
            ],
            directories=[
                new_message("DirectoryNode", name=child.name, digest=digests[child].message())
                for child in inside
                if child in digests
            ],
        )
        digests[folder] = _add_message(blobs, message)
    return digests[PurePosixPath()]
