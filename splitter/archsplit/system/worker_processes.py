"""A map over forked processes, for work that holds the interpreter lock.

In: a function and its items; out: the results, in the items' order. Only indexes of items and
pickled results go through pipes: a forked process has the function and the items already.

    parent: writes all indexes ─► one pipe ─► each worker takes the next index
            results by index   ◄─ one pipe for each worker

No item is lost: where a worker fails or dies, the parent calls the function itself, so an error
has the same type and text as without processes. A worker ends with its parent, even if that one is
killed. Processes are used only where the caller permits it by a `WorkerProcesses`, and where they
are worth it: on more than two cores, and for enough work. A process with other threads can't fork
safely, so it uses threads.

``ProcessPoolExecutor`` isn't used: a worker that dies takes all results along, workers wait forever
after their parent was killed, and with a start method that needs no fork each one imports this
package again (0.3 s), and the user's program too.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import pickle
import selectors
import signal
import struct
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, NoReturn, TypeVar

from archsplit.system.parallel import map_on_cores
from archsplit.system.resources import SystemMemory, available_cores
from archsplit.system.signals import deferred_signals
from archsplit.system.units import BLOCK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_MOST_WORKERS = 16
_WORKER_MEMORY = 64 << 20
"""Bytes that must be available for each worker; most hold 20 MB of their own."""
_ENOUGH_THREADS = 2
"""Cores on which threads are as fast: there, searches and hashes of one run beside another."""
_LEAST_WORK = 64 << 20
"""Bytes from which on processes are faster: they are read in the time that forking takes."""

_INDEX = struct.Struct("<I")
_MOST_TASKS = 8192
"""Indexes that a pipe holds before anybody reads, with room to spare."""
_FRAME = struct.Struct("<IQ")
"""The index of an item and the bytes of its pickled result."""
_FAILED = (1 << 64) - 1
"""In place of the bytes of a result: the function has raised an error."""
_PARENT_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG. Source: ``linux/prctl.h``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerProcesses:
    """Permission to fork worker processes.

    Attributes:
        pause: a context in which no display has a thread.
        advance: called with the bytes of each finished item, and with the bytes of all.
    """

    pause: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext
    advance: Callable[[int, int], object] = lambda *_: None


def map_in_processes(
    function: Callable[[_Item], _Result],
    items: Sequence[_Item],
    weight: Callable[[_Item], int],
    workers: WorkerProcesses | None,
    codec: Codec[_Item, _Result] | None = None,
) -> list[_Result]:
    """Return the results of a function for all items, in their order.

    Args:
        function: called in processes, and again in this one for items without a result; its first
            error, in the items' order, is raised. What it changes in memory is lost.
        items: the arguments.
        weight: the bytes of work of an item. The largest begin first.
        workers: None for threads.
        codec: the form in which results go through pipes.
    """
    codec = codec or Codec()
    weights = [weight(item) for item in items]
    shown, whole = workers or WorkerProcesses(), sum(weights)

    def call(index: int) -> _Result:
        result = function(items[index])
        shown.advance(weights[index], whole)
        return result

    done: dict[int, _Result] = {}
    # The pipe of indexes is filled before anybody reads.
    if workers is not None and whole >= _LEAST_WORK and len(items) <= _MOST_TASKS:
        order = sorted(range(len(items)), key=lambda index: -weights[index])
        # Without a file descriptor for the next pipe, threads do what is left.
        with (
            contextlib.suppress(OSError),
            _started_workers(
                lambda index: codec.encode(function(items[index])), order, workers
            ) as pool,
        ):
            for index, content in pool.results():
                done[index] = codec.decode(items[index], content)
                shown.advance(weights[index], whole)
    # All of them without processes; after a failure, for its error.
    rest = [index for index in range(len(items)) if index not in done]
    more = map_on_cores(call, rest, lambda index: weights[index])
    done.update(zip(rest, more, strict=True))
    return [done[index] for index in range(len(items))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Codec(Generic[_Item, _Result]):
    """Conversions of a result to bytes, in a worker, and back, for its item."""

    encode: Callable[[_Result], bytes] = pickle.dumps
    # From a process of our own, which a fork made.
    decode: Callable[[_Item, memoryview], _Result] = lambda _, content: pickle.loads(content)  # noqa: S301


class _Pool:
    """Forked processes that take indexes from one pipe.

    Args:
        work: called with an index; returns the bytes of a result.
        tasks: the pipe of indexes; its other end is closed.
    """

    def __init__(self, work: Callable[[int], bytes], tasks: int) -> None:
        self._work, self._tasks = work, tasks
        self._pipes: dict[int, int] = {}
        self._ended: set[int] = set()

    def fork(self, count: int) -> None:
        """Start workers: as many as the system permits."""
        parent = os.getpid()
        for _ in range(count):
            reader, writer = os.pipe()
            try:
                pid = os.fork()
            except OSError:
                # Too many processes, or no memory: those that run do all of the work.
                os.close(reader)
                os.close(writer)
                return
            if pid == 0:
                self._run_worker(parent, writer)
            os.close(writer)
            self._pipes[reader] = pid

    def results(self) -> Iterator[tuple[int, memoryview]]:
        """Yield finished items; after a failure, no other item begins."""
        with selectors.DefaultSelector() as selector:
            for reader in self._pipes:
                selector.register(reader, selectors.EVENT_READ, bytearray())
            while selector.get_map():
                for key, _ in selector.select():
                    block = os.read(key.fd, BLOCK)
                    key.data.extend(block)
                    yield from self._finished(key.data)
                    if not block:
                        selector.unregister(key.fd)
                        self._ended.add(self._pipes[key.fd])

    def _finished(self, received: bytearray) -> Iterator[tuple[int, memoryview]]:
        """Yield the whole results at the start of received bytes, and remove them."""
        while len(received) >= _FRAME.size:
            index, size = _FRAME.unpack_from(received)
            if size == _FAILED:
                self._drop_tasks()
                size = 0
            elif len(received) < _FRAME.size + size:
                return
            else:
                with memoryview(received)[_FRAME.size : _FRAME.size + size] as content:
                    yield index, content
            del received[: _FRAME.size + size]

    def _drop_tasks(self) -> None:
        while os.read(self._tasks, BLOCK):
            pass

    def close(self) -> None:
        """End all workers, also those at work."""
        for reader, pid in self._pipes.items():
            os.close(reader)
            # After Ctrl-C no thread waits for results. The number of a worker that has ended may be
            # another process's by now.
            if pid not in self._ended:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            # If SIGCHLD is ignored, no process is left to wait for.
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        os.close(self._tasks)

    def _run_worker(self, parent: int, writer: int) -> NoReturn:
        """Do tasks until none is left. Nothing of the parent is flushed or cleaned up here."""
        try:
            _end_with_parent(parent)
            # Where memory runs out, the kernel ends a worker, whose work the parent can do.
            with contextlib.suppress(OSError):
                Path("/proc/self/oom_score_adj").write_text("1000")
            # Ctrl-C reaches the whole group of processes; the parent ends the workers.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            for stop in (signal.SIGTERM, signal.SIGHUP):
                signal.signal(stop, signal.SIG_DFL)
            _close_files(keep={0, 1, 2, self._tasks, writer})
            # Collecting objects of the parent would copy their pages.
            gc.freeze()
            while task := os.read(self._tasks, _INDEX.size):
                _write_result(writer, _INDEX.unpack(task)[0], self._work)
        finally:
            os._exit(0)


def _close_files(*, keep: set[int]) -> None:
    """Close what the parent had open: a lock on a file would last as long as a worker does."""
    # Without /proc, files stay open until the worker ends.
    with contextlib.suppress(OSError):
        for descriptor in {int(one.name) for one in Path("/proc/self/fd").iterdir()} - keep:
            # The descriptor of the folder itself is closed already.
            with contextlib.suppress(OSError):
                os.close(descriptor)


def _write_result(writer: int, index: int, work: Callable[[int], bytes]) -> None:
    try:
        content = work(index)
    # Of any kind: the parent calls the function again, and raises what it raises there.
    except BaseException:  # noqa: BLE001
        frame = memoryview(_FRAME.pack(index, _FAILED))
    else:
        frame = memoryview(_FRAME.pack(index, len(content)) + content)
    while frame:
        frame = frame[os.write(writer, frame) :]


def _end_with_parent(parent: int) -> None:
    """Let the kernel end this process when its parent ends, in whatever way."""
    ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    # The parent may have ended before that call.
    if os.getppid() != parent:
        os._exit(0)


@contextlib.contextmanager
def _started_workers(
    work: Callable[[int], bytes], order: Sequence[int], workers: WorkerProcesses
) -> Iterator[_Pool]:
    """Fork workers, and end them afterwards; a pool without any gives no results."""
    tasks, writer = os.pipe()
    pool = _Pool(work, tasks)
    try:
        # A user with many pipes gets small ones. What doesn't fit is done without processes.
        os.set_blocking(writer, False)
        os.write(writer, b"".join(map(_INDEX.pack, order)))
        os.close(writer)
        cores = available_cores()
        count = min(len(order), cores, _MOST_WORKERS, SystemMemory().available() // _WORKER_MEMORY)
        # An exception out of a handler would lose a process that was just forked.
        with workers.pause(), deferred_signals():
            # One item has nothing to be shared.
            if cores > _ENOUGH_THREADS and count > 1 and _can_fork():
                pool.fork(count)
        yield pool
    finally:
        pool.close()


def _can_fork() -> bool:
    """Return True if a forked process may go on: no lock is held by a thread that it lacks."""
    # Elsewhere, libraries of the system start threads of their own.
    return sys.platform == "linux" and threading.active_count() == 1
