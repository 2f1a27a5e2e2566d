"""Store things elsewhere beside other work, as long as there is room and time for it."""

from __future__ import annotations

import queue
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_AT_ONCE = 4
_MOST_BYTES = 256 << 20
"""Of what waits to be stored: a build that is faster than its remote store must not fill memory."""


class Uploads:
    """What is to be stored elsewhere, and the threads that do it.

    The threads don't keep the process from ending.

    Args:
        failed: is told whose upload failed, and how.
    """

    def __init__(self, failed: Callable[[str, Exception], None]) -> None:
        self._failed = failed
        self._jobs: queue.SimpleQueue[tuple[str, int, Callable[[], None]]] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._threads = 0
        self._left: dict[str, int] = {}
        self._bytes = 0
        self._given_up: set[str] = set()

    def add(self, name: str, size: int, work: Callable[[], None]) -> bool:
        """Begin to store something; False where too much is waiting already.

        Args:
            name: whose it is.
            size: bytes that it keeps in memory.
        """
        with self._changed:
            if self._bytes + size > _MOST_BYTES:
                return False
            self._bytes += size
            self._left[name] = self._left.get(name, 0) + 1
            if self._threads < _AT_ONCE:
                self._threads += 1
                threading.Thread(target=self._work, daemon=True).start()
        self._jobs.put((name, size, work))
        return True

    def give_up(self, name: str) -> bool:
        """Begin no more of this one's, and wait for none; False where that was so already."""
        with self._changed:
            new = name not in self._given_up
            self._given_up.add(name)
            self._changed.notify_all()
        return new

    def wait(self, seconds: float) -> tuple[str, ...]:
        """Wait until all is stored, but not longer; whose isn't."""
        end = time.monotonic() + seconds
        with self._changed:
            while unfinished := self._unfinished():
                rest = end - time.monotonic()
                if rest <= 0:
                    break
                self._changed.wait(rest)
        return unfinished

    def _unfinished(self) -> tuple[str, ...]:
        return tuple(
            name for name, left in self._left.items() if left and name not in self._given_up
        )

    def _work(self) -> None:
        while True:
            name, size, work = self._jobs.get()
            try:
                if name not in self._given_up:
                    work()
            except Exception as error:  # noqa: BLE001 - whatever a library raises
                self._failed(name, error)
            with self._changed:
                self._left[name] -= 1
                self._bytes -= size
                self._changed.notify_all()
