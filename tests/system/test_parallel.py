"""A map over threads in order, and searches of memory beside Python's own."""

from __future__ import annotations

import ctypes
import mmap
import signal
import threading
import traceback
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archsplit.system import parallel
from archsplit.system.parallel import (
    ThreadPool,
    are_equal,
    equal_copied,
    find_bytes,
    find_copied,
    map_on_cores,
    native_search,
)
from archsplit.system.units import BLOCK

if TYPE_CHECKING:
    from pathlib import Path


@given(
    data=st.binary(max_size=40),
    needle=st.binary(min_size=1, max_size=3),
    start=st.integers(0, 45),
    end=st.integers(0, 45),
)
def test_finds_as_python_does(data: bytes, needle: bytes, start: int, end: int) -> None:
    expected = data[start:end].find(needle)
    expected += start if expected >= 0 else 0
    for shortest in (parallel.SHORT_SEARCH, 1):
        # Short ranges are searched by Python; here, by the C library too.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(parallel, "SHORT_SEARCH", shortest)
            assert find_bytes(memoryview(data), needle, start, end) == expected
    assert find_copied(memoryview(data), needle, start, end) == expected


@given(first=st.binary(max_size=20), second=st.binary(max_size=20))
def test_compares_as_python_does(first: bytes, second: bytes) -> None:
    for one, other in ((first, second), (first, bytes(first))):
        assert are_equal(memoryview(one), memoryview(other)) == (one == other)
        assert equal_copied(memoryview(one), memoryview(other)) == (one == other)


def test_compares_more_than_a_block() -> None:
    data = bytes(BLOCK) + b"x"
    assert equal_copied(memoryview(data), memoryview(bytes(BLOCK) + b"x"))
    assert not equal_copied(memoryview(data), memoryview(bytes(BLOCK) + b"y"))


def test_mapped_file_is_searched(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(100_000) + b"here")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
        view = memoryview(mapping)
        assert find_bytes(view, b"here", 0, len(view)) == 100_000
        assert find_bytes(view[1:], b"here", 7, 100_001) == -1
        # The address was given back: a mapping with exports can't be closed.
        view.release()


def test_without_memmem_python_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    assert native_search() == (find_copied, equal_copied)


def test_maps_in_order_and_begins_with_the_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "available_cores", lambda: 2)
    both = threading.Barrier(2, timeout=60)
    begun: list[int] = []

    def work(item: int) -> int:
        begun.append(item)
        if item >= 8:
            both.wait()
        return item * 10

    assert map_on_cores(work, list(range(10)), weight=lambda item: item) == list(range(0, 100, 10))
    assert set(begun[:2]) == {8, 9}


def test_the_first_error_is_raised_and_nothing_more_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "available_cores", lambda: 2)

    def fail(item: int) -> int:
        raise ValueError(item)

    with pytest.raises(ValueError, match=r"^0$"):
        map_on_cores(fail, list(range(50)))


def test_an_error_of_an_earlier_item_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "available_cores", lambda: 2)
    begun = []

    def fail(item: int) -> int:
        begun.append(item)
        raise ValueError(item)

    with pytest.raises(ValueError, match=r"^0$") as raised:
        map_on_cores(fail, list(range(50)), weight=lambda item: item)
    # An error that refers to itself keeps what its callers have open.
    frames = [frame for frame, _ in traceback.walk_tb(raised.value.__traceback__)]
    [ours] = [frame for frame in frames if frame.f_code is map_on_cores.__code__]
    assert not ours.f_locals["errors"]
    assert sorted(begun) == list(range(50))


@pytest.mark.parametrize("permitted", [0, 1, 2])
def test_fewer_threads_than_cores_do_all_work(
    monkeypatch: pytest.MonkeyPatch, permitted: int
) -> None:
    monkeypatch.setattr(parallel, "available_cores", lambda: 4)
    started: list[threading.Thread] = []
    start = threading.Thread.start

    def limited_start(thread: threading.Thread) -> None:
        if len(started) == permitted:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited_start)
    calls: list[int] = []

    def work(item: int) -> int:
        calls.append(item)
        return -item

    assert map_on_cores(work, list(range(100))) == [-item for item in range(100)]
    assert sorted(calls) == list(range(100))


@pytest.mark.parametrize("moment", ["start", "join"])
def test_a_thread_is_awaited_after_ctrl_c(monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    done: list[bool] = []
    ending = threading.Event()
    signals = [signal.SIGINT]
    start, join = threading.Thread.start, threading.Thread.join

    def interrupt(now: str) -> None:
        if now == moment and signals:
            signal.raise_signal(signals.pop())

    def interrupted_start(thread: threading.Thread) -> None:
        start(thread)
        interrupt("start")

    def interrupted_join(thread: threading.Thread, timeout: float | None = None) -> None:
        interrupt("join")
        ending.set()
        join(thread, timeout)

    monkeypatch.setattr(threading.Thread, "start", interrupted_start)
    monkeypatch.setattr(threading.Thread, "join", interrupted_join)
    try:
        with pytest.raises(KeyboardInterrupt), ThreadPool(1) as pool:
            pool.submit(lambda: done.append(ending.wait()))
        assert done == [True]
    finally:
        ending.set()


def test_one_core_needs_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "available_cores", lambda: 1)
    threads = map_on_cores(lambda _: threading.current_thread(), [1, 2])
    assert set(threads) == {threading.current_thread()}
