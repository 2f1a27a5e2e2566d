"""Signals that end a process, and a context that delays their handlers."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType


STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that ask a process to end."""


def restore_child_signal() -> None:
    """Let this process learn how its children ended, if its parent ignored SIGCHLD.

    Programs inherit that choice, from daemons and some schedulers. The kernel then keeps no exit
    status, and Python takes every child for one that ended well.
    """
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


@contextlib.contextmanager
def deferred_signals() -> Iterator[None]:
    """Call Python's handlers of `STOP_SIGNALS` only afterwards.

    An exception out of a handler, between the start of a program and its registration, would lose
    the program.
    """
    # Handlers run only in the main thread.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[tuple[int, FrameType | None]] = []
    before: dict[int, Callable[[int, FrameType | None], object]] = {}
    try:
        for stop in STOP_SIGNALS:
            handler = signal.getsignal(stop)
            if callable(handler):
                before[stop] = handler
                signal.signal(stop, lambda number, frame: received.append((number, frame)))
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number, frame in received:
            before[number](number, frame)
