"""The programs of a dask worker's actions: none outlives its action or its worker.

dask can't stop a function that runs in a thread: a canceled action would keep its program, and with
it a slot of the machine, to the program's end. `ProgramPlugin` is told of each change of an action,
and kills the program of one that no build wants any more.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from distributed import Reschedule, WorkerPlugin, get_worker
from distributed.utils import sync
from distributed.worker import thread_state

from archsplit.cache.file_digests import FileDigests
from archsplit.errors import InterruptedByUserError
from archsplit.remote.dask_worker import run_action, select_files
from archsplit.system.process import SubprocessRunner

if TYPE_CHECKING:
    from archsplit.remote.dask_worker import DaskAction, DaskResult


_lock = threading.Lock()


class ProgramPlugin(WorkerPlugin):  # type: ignore[misc] # the library has no types
    """Runs the programs of one worker, and kills the programs of canceled actions."""

    name = "archsplit-programs"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runners: dict[object, SubprocessRunner] = {}
        self._unwanted: set[object] = set()
        # Each action checks its tools, which are hundreds of megabytes.
        self._digests = FileDigests(None)

    def transition(self, key: object, start: str, finish: str, **more: object) -> None:
        """Kill the program of an action that was canceled; called by the worker's event loop."""
        del more
        with self._lock:
            if finish == "forgotten":
                self._unwanted.discard(key)
            # A function that ends by itself leads to "memory" or "error".
            if (start, finish) != ("executing", "released"):
                return
            # Its thread may not have started the program yet.
            self._unwanted.add(key)
            runner = self._runners.get(key)
        if runner is not None:
            runner.cancel()

    def teardown(self, worker: object) -> None:
        """Kill all programs, because the worker ends."""
        del worker
        with self._lock:
            runners = list(self._runners.values())
        for runner in runners:
            runner.cancel()

    def run(self, key: object, action: DaskAction, made: list[DaskResult]) -> DaskResult:
        """Run an action.

        Raises:
            Reschedule: it was canceled; the scheduler starts it again if it is wanted elsewhere.
        """
        runner = SubprocessRunner()
        with self._lock:
            self._runners[key] = runner
            if key in self._unwanted:
                runner.cancel()
        try:
            return run_action(action, made, runner, digests=self._digests)
        except InterruptedByUserError:
            raise Reschedule from None
        finally:
            with self._lock:
                del self._runners[key]
                self._unwanted.discard(key)


def run_on_worker(action: DaskAction, made: list[DaskResult]) -> DaskResult:
    """Run an action in the thread of a dask worker; see `run_action`."""
    try:
        worker = get_worker()
    except ValueError:
        return run_action(action, made)
    return _find_plugin(worker).run(thread_state.key, action, made)


def read_result(key: object, names: list[str], dask_worker: Any) -> DaskResult | None:
    """Return a result with some of its files; None on a worker that has none.

    dask calls the function in the worker's event loop, so that it waits for no slot.
    """
    result: DaskResult | None = dask_worker.data.get(key)
    return None if result is None else select_files(result, names)


def _find_plugin(worker: Any) -> ProgramPlugin:
    """Return the plugin of a worker; one that `archsplit remote worker` has not started gets it."""
    with _lock:
        if ProgramPlugin.name not in worker.plugins:
            # In the worker's event loop, which calls all plugins.
            sync(worker.loop, worker.plugin_add, plugin=ProgramPlugin(), name=ProgramPlugin.name)
        plugin: ProgramPlugin = worker.plugins[ProgramPlugin.name]
        return plugin
