"""Work on all cores: a map over threads, and reads of memory that let other threads run.

In: a function and its items, or memory and the bytes to find; out: results in the items' order, or
an offset. Threads help where the interpreter lock is released: while files are read and written,
while they are hashed, and in `find_bytes` and `are_equal`. `bytes.find` would hold the lock, and
copy each block of a mapped file first; two views are compared by Python number by number, twenty
times slower than memory.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from archsplit.system.resources import available_cores
from archsplit.system.signals import deferred_signals
from archsplit.system.units import BLOCK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

    Search = Callable[[memoryview, bytes, int, int], int]
    Comparison = Callable[[memoryview, memoryview], bool]
    _Block = bytes | bytearray | memoryview

_Args = ParamSpec("_Args")
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_MAX_THREADS = 4
"""Threads at a time. An environment of 7.8 GB took 7.7 s with 2, 9.3 with 4 and 11.0 with 16: more
of them wait for the interpreter lock, and each one holds a block or two of a file."""


class ThreadPool(ThreadPoolExecutor):
    """Threads that are all waited for, even if Ctrl-C comes while one of them starts.

    An exception out of a signal's handler would leave a thread that its pool doesn't know. Such a
    thread would still write files when their folder is removed.
    """

    def submit(
        self, function: Callable[_Args, _Result], /, *arguments: _Args.args, **named: _Args.kwargs
    ) -> Future[_Result]:
        """Begin a call in a thread; handlers of signals run afterwards."""
        with deferred_signals():
            return super().submit(function, *arguments, **named)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT002 - as in the base
        """End the threads; a second Ctrl-C drops what has not begun."""
        try:
            super().shutdown(wait, cancel_futures=cancel_futures)
        except BaseException:
            super().shutdown(cancel_futures=True)
            raise


def map_on_cores(
    function: Callable[[_Item], _Result],
    items: Sequence[_Item],
    weight: Callable[[_Item], int] = lambda _: 0,
    *,
    most: int = _MAX_THREADS,
) -> list[_Result]:
    """Return the results of a function for all items, in their order.

    Args:
        function: called in threads; its first error, in the items' order, is raised.
        items: the arguments.
        weight: the size of an item. The largest begin first, so that no big one is last.
        most: threads at a time; more than the default only for what hashes, reads and writes.
    """
    threads = min(len(items), available_cores(), most)
    if threads <= 1:
        return [function(item) for item in items]
    waiting = deque(sorted(range(len(items)), key=lambda index: -weight(items[index])))
    done: dict[int, _Result] = {}
    errors: dict[int, Exception] = {}

    def call(index: int) -> None:
        # After an error nothing more begins but earlier items, whose error would come first.
        if index > min(list(errors), default=index):
            return
        try:
            done[index] = function(items[index])
        except Exception as error:  # noqa: BLE001 - any error is raised below
            errors[index] = error

    _call_in_threads(call, waiting, threads)
    try:
        if errors:
            raise errors[min(errors)]
    finally:
        # An error's traceback has this frame: the cycle would keep the caller's files open.
        errors.clear()
    return [done[index] for index in range(len(items))]


def _call_in_threads(call: Callable[[int], None], waiting: deque[int], threads: int) -> None:
    """Call a function with all indexes, in as many threads as the system permits."""

    def work() -> None:
        while waiting:
            # Another thread may take the last one at the same time.
            with contextlib.suppress(IndexError):
                call(waiting.popleft())

    with ThreadPool(threads) as pool:
        jobs: list[Future[None]] = []
        try:
            # The threads before an error do all of the work.
            with contextlib.suppress(RuntimeError):
                for _ in range(threads):
                    jobs.append(pool.submit(work))  # noqa: PERF401 - for the same reason
            if not jobs:
                work()
            for job in jobs:
                job.result()
        finally:
            # After Ctrl-C nothing more begins; what runs is waited for.
            waiting.clear()


class BlockSinks:
    """Functions that take a content block by block, each in a thread of its own.

    Each function has one block at most, while the caller makes the next block: memory stays bounded
    if a function is slower. The first error of a function is raised by the next call.
    """

    def __init__(self, *sinks: Callable[[_Block], object]) -> None:
        self._sinks = sinks
        self._workers = ThreadPool(len(sinks))
        self._pending: list[Future[object]] = []

    def feed(self, block: _Block) -> None:
        """Begin to hand a block over; it must stay as it is."""
        self.wait()
        self._pending = [self._workers.submit(sink, block) for sink in self._sinks]

    def wait(self) -> None:
        """Wait until the functions have taken the last block."""
        pending, self._pending = self._pending, []
        for each in pending:
            each.result()

    def close(self) -> None:
        """End the threads."""
        self._workers.shutdown()


SHORT_SEARCH = 1 << 14
"""Bytes that are searched at once while the interpreter lock is held."""


class _Buffer(ctypes.Structure):
    """The ``Py_buffer`` of Python's stable interface."""

    _fields_ = (
        ("address", ctypes.c_void_p),
        ("owner", ctypes.py_object),
        ("size", ctypes.c_ssize_t),
        ("item_size", ctypes.c_ssize_t),
        ("is_read_only", ctypes.c_int),
        ("dimensions", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


@contextlib.contextmanager
def _address(data: memoryview) -> Iterator[int]:
    """Yield the address of memory, which stays where it is meanwhile.

    Of read-only memory too: nothing else of ctypes has the address of a file mapped for reads.
    """
    buffer = _Buffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(data), ctypes.byref(buffer), 0)
    try:
        yield buffer.address
    finally:
        ctypes.pythonapi.PyBuffer_Release(ctypes.byref(buffer))


def find_copied(data: memoryview, needle: bytes, start: int, end: int) -> int:
    """Return the offset of bytes in a range of memory, or -1; the interpreter lock is held."""
    found = data[start:end].tobytes().find(needle)
    return found if found < 0 else start + found


def equal_copied(first: memoryview, second: memoryview) -> bool:
    """Return True if two ranges of memory are equal; the interpreter lock is held."""
    # In blocks, for the memory; as bytes, because views are compared number by number.
    return len(first) == len(second) and all(
        first[at : at + BLOCK].tobytes() == second[at : at + BLOCK].tobytes()
        for at in range(0, len(first), BLOCK)
    )


def native_search() -> tuple[Search, Comparison]:
    """Return `find_bytes` and `are_equal` of the C library, or of Python where it has none."""
    try:
        # `CDLL` releases the interpreter lock during a call, and `pythonapi` keeps it.
        library = ctypes.CDLL(None)
        memmem, memcmp = library.memmem, library.memcmp
        with _address(memoryview(b"-")):
            pass
    # On Windows the C library has no `memmem`, and other interpreters have no `pythonapi`.
    except (AttributeError, OSError, TypeError):
        return find_copied, equal_copied
    memmem.restype = ctypes.c_void_p
    memmem.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t)
    memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)

    def search(data: memoryview, needle: bytes, start: int, end: int) -> int:
        start, end = max(0, start), min(end, len(data))
        # An empty range has no address; a short one takes less time than the call.
        if end - start < SHORT_SEARCH:
            return find_copied(data, needle, start, end)
        with _address(data) as first:
            found = memmem(first + start, end - start, needle, len(needle))
        return -1 if found is None else int(found) - first

    def compare(first: memoryview, second: memoryview) -> bool:
        if len(first) != len(second) or not len(first):
            return len(first) == len(second)
        with _address(first) as one, _address(second) as other:
            return not memcmp(one, other, len(first))

    return search, compare


find_bytes, are_equal = native_search()
"""The offset of bytes in a range of memory, or -1; and a comparison of two ranges.

Other threads run meanwhile.
"""
