"""How long a process may be held up by others, however many of its threads wait at once."""

from __future__ import annotations

import threading
import time


class TimeBudget:
    """Seconds that are left to be waited.

    What counts is the time in which anything is waited for, not how many wait: threads that wait
    together lose no more than one that waits alone.

    Args:
        seconds: how many there are at first.
    """

    def __init__(self, seconds: float) -> None:
        self._most = seconds
        self._left = seconds
        self._waiting = 0
        self._since = 0.0
        self._lock = threading.Lock()

    @property
    def left(self) -> float:
        """How long may still be waited; 0 at least."""
        with self._lock:
            return max(0.0, self._left - self._running())

    def begin(self) -> None:
        """Somebody begins to wait."""
        with self._lock:
            if not self._waiting:
                self._since = time.monotonic()
            self._waiting += 1

    def end(self) -> None:
        """Somebody waits no more."""
        with self._lock:
            if self._waiting == 1:
                self._left -= self._running()
            self._waiting -= 1

    def give_back(self, seconds: float) -> None:
        """Waiting has saved so much time: that much may be waited again."""
        with self._lock:
            self._left = min(self._most, self._left + max(0.0, seconds))

    def _running(self) -> float:
        return time.monotonic() - self._since if self._waiting else 0.0
