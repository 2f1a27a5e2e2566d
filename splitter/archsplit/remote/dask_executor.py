"""An executor that runs steps on the workers of a dask scheduler.

In: steps that declare all that they open. Out: exits, and the files that the caller wants here.
Only ready steps are submitted, one future for each. Results stay on the workers until the last step
that reads them has ended; dask makes a lost worker's results again. The checks of a cluster run one
action on each of its workers.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from distributed import CancelledError, Client, KilledWorker, Worker
from distributed.security import Security

from archsplit.errors import EngineRefusedError, EngineUnavailableError, WorkerLostError
from archsplit.remote.action import (
    OTHER_TOOLS_STATUS,
    TOOLS_FILE,
    PathMap,
    action_spec,
    failed_part,
    other_tools_error,
    probe_step,
)
from archsplit.remote.dask_programs import ProgramPlugin, read_result, run_on_worker
from archsplit.remote.dask_worker import DaskAction, DaskResult, select_files
from archsplit.remote.farm_executor import CANCELED, FarmExecutor
from archsplit.scheduler.executor import DaemonThreads
from archsplit.system.fs import write_file
from archsplit.system.process import CompletedProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path, PurePosixPath

    from typing_extensions import Unpack

    from archsplit.remote.action import ActionSpec, ToolFile
    from archsplit.remote.endpoint import DaskEndpoint
    from archsplit.remote.farm_executor import ExecutorSettings
    from archsplit.scheduler.executor import Ended
    from archsplit.scheduler.graph import Graph, Step

_THREADS = 8
"""Results that are taken at a time."""
_NOBODY_SECONDS = 30
"""Seconds without a reply after which a scheduler, or its workers, count as gone."""


class DaskExecutor(FarmExecutor):
    """Runs steps on the workers of the scheduler at an endpoint.

    Args:
        endpoint: the scheduler, with TLS.
        graph: the steps that will be started.
        settings: see `ExecutorSettings`.

    Attributes:
        dashboard: address of the scheduler's own pages; "" for a scheduler without them.
    """

    def __init__(
        self, endpoint: DaskEndpoint, *, graph: Graph, **settings: Unpack[ExecutorSettings]
    ) -> None:
        super().__init__(**settings)
        self._endpoint = endpoint
        self._lock = threading.Lock()
        self._futures: dict[Path, Any] = {}
        self._readers: dict[Path, int] = {}
        for step in graph.steps:
            for path in step.reads:
                self._readers[path] = self._readers.get(path, 0) + 1
        self._running: dict[str, Ended] = {}
        self._closing = threading.Event()
        self._threads = DaemonThreads(_THREADS)
        self._client = connect_to_scheduler(endpoint)
        has_pages = "dashboard" in self._client.scheduler_info()["services"]
        self.dashboard: str = self._client.dashboard_link if has_pages else ""
        threading.Thread(target=self._watch_workers, daemon=True).start()

    def start(self, step: Step, *, cores: int, ended: Ended) -> DaskStep:
        """See `Executor.start`."""
        spec = action_spec(step, self._paths, self._tools(step), cores=cores)
        made = {name: path for name, path in spec.inputs.items() if path in self._futures}
        action = plain_action(spec, made)
        self.traffic.sent += sum(map(len, action["files"].values()))
        parents = {id(future): future for future in map(self._futures.__getitem__, made.values())}
        priority = -self._priorities.get(step.name, 0)
        # Not pure: a key by content would pickle all files, and no step is submitted twice.
        result = self._client.submit(
            run_on_worker, action, list(parents.values()), priority=priority, pure=False
        )
        running = DaskStep(result)
        self._running[step.name] = ended
        end = partial(self._end, step, spec.outputs, running)
        # The library calls all clients' functions in one thread, which must not wait for a file.
        result.add_done_callback(lambda _: self._threads.call(end))
        return running

    def close(self) -> None:
        """See `Executor.close`."""
        self._closing.set()
        self._threads.close()
        self._futures.clear()
        with contextlib.suppress(Exception):
            self._client.close(timeout=_NOBODY_SECONDS)

    def _end(self, step: Step, outputs: Mapping[PurePosixPath, Path], running: DaskStep) -> None:
        """Take a result and pass its exit on; called in a thread."""
        done: CompletedProcess | BaseException
        try:
            done = CANCELED if running.is_canceled else self._done(step, outputs, running.result)
        # The library raises one of these for each future of a lost connection.
        except (CancelledError, asyncio.CancelledError, OSError):
            done = self._scheduler_gone_error()
        except BaseException as error:  # noqa: BLE001 - raised again by `GraphRunner`
            done = error
        self._report_end(step.name, done)

    def _report_end(self, name: str, done: CompletedProcess | BaseException) -> None:
        # A step that waits for workers is canceled after its error: its end is reported once.
        ended = self._running.pop(name, None)
        if ended is not None:
            ended(done)

    def _watch_workers(self) -> None:
        """Fail all steps if no worker is left for some time; dask itself waits for new ones."""
        since = time.monotonic()
        while not self._closing.wait(_NOBODY_SECONDS / 10):
            try:
                has_workers = bool(self._client.nthreads())
            # The scheduler has gone: its futures report that.
            except Exception:  # noqa: BLE001 - the library has many for it
                return
            if has_workers or not self._running:
                since = time.monotonic()
            elif time.monotonic() - since > _NOBODY_SECONDS:
                for name in list(self._running):
                    self._report_end(name, _no_worker_error(self._endpoint))

    def _scheduler_gone_error(self) -> EngineUnavailableError:
        return EngineUnavailableError(
            f"{self._endpoint.address} is gone, and all running steps with it",
            hint="start the scheduler and its workers again, and build again",
        )

    def _done(
        self, step: Step, outputs: Mapping[PurePosixPath, Path], result: Any
    ) -> CompletedProcess:
        if result.status == "cancelled":
            raise self._scheduler_gone_error()
        # Waits for a result that was lost with its worker: it is made again.
        error = result.exception()
        if isinstance(error, KilledWorker):
            raise WorkerLostError(
                f"{step.name} was lost with each worker that ran it",
                hint="most often the workers have too little memory for it",
            )
        if error is not None:
            raise error
        names = [str(name) for name, path in outputs.items() if path in self._wanted]
        done = self._read(result, names)
        if done["returncode"] == OTHER_TOOLS_STATUS:
            raise other_tools_error(step.name, done["stdout"], self._endpoint.address)
        if done["returncode"] == 0:
            self._take_outputs(step, outputs, result, done)
        with self._lock:
            self.runs += 1
            self.traffic.received += sum(map(len, done["files"].values()))
        part, stderr = failed_part(done["stderr"])
        return CompletedProcess(
            returncode=done["returncode"],
            stdout=done["stdout"],
            stderr=stderr,
            failed_part=part,
            seconds=done["seconds"],
        )

    def _read(self, result: Any, names: list[str]) -> DaskResult:
        """Return a result with the files of these names."""
        # A task would wait for a slot of the worker, behind compilers that run for minutes.
        with contextlib.suppress(OSError, KeyError):
            places = self._client.who_has([result])[result.key]
            found = self._client.run(read_result, result.key, names, workers=places[:1])
            done: DaskResult | None = next(iter(found.values()), None)
            if done is not None:
                return done
        # The worker has gone with the result: it is made again, and comes as a whole.
        return select_files(result.result(), names)

    def _take_outputs(
        self, step: Step, outputs: Mapping[PurePosixPath, Path], result: Any, done: DaskResult
    ) -> None:
        for name, path in outputs.items():
            size = done["sizes"].get(str(name))
            if not size:
                self._missing[step.name] = f"succeeded, but left no {path.name}"
                return
            if path in self._wanted:
                content = done["files"].get(str(name), b"")
                if len(content) != size:
                    address = self._endpoint.address
                    raise EngineRefusedError(f"{address} returned damaged bytes of {path.name}")
                write_file(path, content)
        with self._lock:
            for path in outputs.values():
                if self._readers.get(path):
                    self._futures[path] = result
            # A worker keeps a file as long as a step is left that reads it.
            for path in step.reads:
                self._readers[path] -= 1
                if not self._readers[path]:
                    self._futures.pop(path, None)


class DaskStep:
    """A step on a worker.

    Attributes:
        result: the future of its result.
        is_canceled: True after `kill`.
    """

    def __init__(self, result: Any) -> None:
        self.result = result
        self.is_canceled = False

    def kill(self, *, grace: float = 0.0) -> None:
        """Cancel the step; `ProgramPlugin` kills its program."""
        del grace
        # The end of a canceled step doesn't mean that the scheduler is lost.
        self.is_canceled = True
        # A client whose scheduler has gone can't send it.
        with contextlib.suppress(Exception):
            self.result.cancel()

    def resident_memory(self) -> int:
        """Return 0: the step takes no memory of this machine."""
        return 0


def plain_action(spec: ActionSpec, made: Mapping[PurePosixPath, Path]) -> DaskAction:
    """Return an action as plain data, with the content of its files.

    Args:
        spec: the action.
        made: inputs that other actions make.
    """
    # The worker compares the tools itself, and reads them once.
    files = {str(name): text for name, text in spec.texts.items() if name != TOOLS_FILE}
    files |= {
        str(name): path.read_bytes() for name, path in spec.inputs.items() if name not in made
    }
    return {
        "argv": list(spec.argv),
        "environment": dict(spec.environment),
        "files": files,
        "inputs": [str(name) for name in made],
        "outputs": [str(name) for name in spec.outputs],
        "tools": dict(spec.tools),
    }


def dask_security(endpoint: DaskEndpoint) -> Security:
    """Return the library's settings for encrypted connections only."""
    certificate, key = str(endpoint.certificate), str(endpoint.key)
    return Security(
        tls_ca_file=str(endpoint.certificates),
        tls_client_cert=certificate,
        tls_client_key=key,
        tls_worker_cert=certificate,
        tls_worker_key=key,
        require_encryption=True,
    )


def connect_to_scheduler(endpoint: DaskEndpoint) -> Client:
    """Return a connection to a scheduler that has a worker.

    Raises:
        EngineUnavailableError: it does not reply, or has no worker.
    """
    try:
        client = Client(
            endpoint.address,
            security=dask_security(endpoint),
            timeout=_NOBODY_SECONDS,
            set_as_default=False,
        )
    except (OSError, TimeoutError, asyncio.TimeoutError) as error:
        raise _no_reply_error(endpoint, error) from error
    try:
        client.wait_for_workers(1, timeout=_NOBODY_SECONDS)
    except (TimeoutError, asyncio.TimeoutError):  # two classes before Python 3.11
        client.close()
        raise _no_worker_error(endpoint) from None
    return client


def _no_reply_error(endpoint: DaskEndpoint, error: Exception) -> EngineUnavailableError:
    return EngineUnavailableError(
        f"{endpoint.address} has not replied for {_NOBODY_SECONDS} s: {error}",
        hint="check the address, the certificates and the scheduler",
    )


def _no_worker_error(endpoint: DaskEndpoint) -> EngineUnavailableError:
    return EngineUnavailableError(
        f"{endpoint.address} has no worker",
        hint=f"start some: archsplit remote worker {endpoint.address}",
    )


def run_dask_worker(endpoint: DaskEndpoint, *, jobs: int, folder: Path) -> None:
    """Run a worker until its scheduler ends.

    Args:
        endpoint: the scheduler.
        jobs: most steps at a time.
        folder: for temporary files.

    Raises:
        EngineUnavailableError: the scheduler does not reply.
    """

    async def serve() -> None:
        worker = Worker(
            endpoint.address,
            nthreads=jobs,
            security=dask_security(endpoint),
            local_directory=str(folder),
            # Steps are child processes: their memory doesn't count as the worker's.
            memory_limit=0,
            dashboard=False,
            # Without a dashboard, dask still serves pages without TLS.
            dashboard_address="127.0.0.1:0",
            death_timeout=_NOBODY_SECONDS,
            plugins=(ProgramPlugin(),),
        )
        async with worker:
            # Slurm and Kubernetes send it first; programs have sessions of their own, and would
            # run on.
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGTERM, lambda: loop.create_task(worker.close()))
            await worker.finished()

    try:
        asyncio.run(serve())
    except (OSError, TimeoutError, asyncio.TimeoutError) as error:
        raise _no_reply_error(endpoint, error) from error


class DaskChecks:
    """The checks of one cluster; see `ReapiChecks`."""

    def __init__(
        self, endpoint: DaskEndpoint, *, tools: tuple[ToolFile, ...], folder: Path
    ) -> None:
        self._endpoint = endpoint
        self._tools = tools
        paths = PathMap(folder / "root", folder / "private")
        step = probe_step(folder / "root", folder / "private")
        self._action = plain_action(action_spec(step, paths, tools), made={})
        self._client: Any = None

    def checks(self) -> Iterator[tuple[str, Callable[[], str]]]:
        """Yield the checks in the order in which a build needs them."""
        yield "scheduler", self._connect
        yield "execution", self._execute

    def close(self) -> None:
        """Close the connection; actions that wait are canceled."""
        if self._client is not None:
            self._client.close(timeout=_NOBODY_SECONDS)

    def _connect(self) -> str:
        self._client = connect_to_scheduler(self._endpoint)
        threads = self._client.nthreads()
        return f"workers: {len(threads)}; steps at a time: {sum(threads.values())}"

    def _execute(self) -> str:
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
        return f"the tools are the same on each worker; files: {len(self._tools)}"

    def _check_end(self, worker: str, done: DaskResult) -> None:
        if done["returncode"] == OTHER_TOOLS_STATUS:
            raise other_tools_error("the check", done["stdout"], worker)
        if done["returncode"] != 0 or not all(map(done["sizes"].get, self._action["outputs"])):
            raise EngineRefusedError(
                f"an action on worker {worker} failed, or left no file; exit status"
                f" {done['returncode']}: {done['stderr']}",
                hint="workers need sh, sha256sum, mkdir and cat",
            )
