"""Whose turn it is among processes that wait for the same slots, by locked files."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING

from archsplit.system.file_lock import try_lock, unlock

if TYPE_CHECKING:
    from pathlib import Path

OPEN = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_POLL, LONGEST_POLL = 0.004, 0.1
"""Seconds between two looks of who is first in the queue; those behind look less often."""
_COURTESY = 0.06
"""Seconds that a free slot is left to somebody more urgent, who may be stopped."""
_EPOCH = 10**15
"""Keeps ranks positive."""
_DRAIN_AFTER = 10.0
"""Seconds that a step waits for memory before nobody else may start until it fits."""


class SlotQueue:
    """The processes that wait: the most urgent is first, and waiting makes more urgent.

    Each has a file, locked as long as it lives, whose name is its rank. Only one process at a time
    may call any method but `leave`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._name = ""
        self._descriptor = -1
        self._arrived = 0.0
        self._courteous_since: float | None = None

    def is_empty(self) -> bool:
        """Whether nobody waits, or only this process."""
        return set(os.listdir(self._folder)) <= {self._name}  # noqa: PTH208 - only names matter

    def wait(self, urgency: float) -> float:
        """Join the queue because no slot is free; return after how many seconds to look again."""
        self._courteous_since = None
        self._join(urgency)
        place = sorted(os.listdir(self._folder)).index(self._name)  # noqa: PTH208 - names sort
        return min(_POLL * (1 + place), LONGEST_POLL)

    def is_turn(self, urgency: float) -> bool:
        """Whether a free slot may be taken; if not, join the queue."""
        for name in sorted(os.listdir(self._folder)):  # noqa: PTH208 - names sort
            if name == self._name:
                break
            if self._is_alive(name):
                return self._is_courteous_enough(urgency)
        return True

    def leave(self) -> None:
        """Have nothing to wait for any more."""
        self._courteous_since = None
        # A signal may come between any two of these, and this may then be called again.
        name, self._name = self._name, ""
        if name:
            (self._folder / name).unlink(missing_ok=True)
            os.close(self._descriptor)

    def _join(self, urgency: float) -> None:
        now = time.monotonic()
        if not self._name:
            self._arrived = now
        rank = int((self._arrived - urgency) * 1000) + _EPOCH
        name = f"{rank:020d}-{os.getpid()}-{id(self)}"
        if not self._name:
            self._descriptor = os.open(self._folder / name, OPEN, 0o600)
            try_lock(self._descriptor)
        elif name != self._name:
            (self._folder / self._name).rename(self._folder / name)
        self._name = name

    def _is_courteous_enough(self, urgency: float) -> bool:
        self._join(urgency)
        now = time.monotonic()
        if self._courteous_since is None:
            self._courteous_since = now
        return now - self._courteous_since > _COURTESY

    def _is_alive(self, name: str) -> bool:
        path = self._folder / name
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(path, OPEN & ~os.O_CREAT)
            try:
                if not try_lock(descriptor):
                    return True
                path.unlink(missing_ok=True)
            finally:
                os.close(descriptor)
        return False


class DrainLock:
    """Lets a step that needs much memory have it, where others would always be quicker.

    While one process has the file locked, the others start nothing.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, OPEN, 0o600)
        self._is_ours = False
        self._since: float | None = None
        self._memory = 0

    def forbids(self) -> bool:
        """Whether another process waits for everybody else's steps to end."""
        if self._is_ours:
            return False
        if not try_lock(self._descriptor):
            return True
        unlock(self._descriptor)
        return False

    def refused(self, memory: int, *, at_once: bool) -> None:
        """A step of ours lacks memory; after a while, or at once, that is everybody's business."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
        self._memory = max(self._memory, memory)
        if (at_once or now - self._since > _DRAIN_AFTER) and not self._is_ours:
            self._is_ours = try_lock(self._descriptor)

    def granted(self, memory: int) -> None:
        """A step of ours has what it needs; if it is the one that waited, the others may go on."""
        if self._since is not None and memory >= self._memory:
            self._since, self._memory, self._is_ours = None, 0, False
            unlock(self._descriptor)

    def close(self) -> None:
        """Let the others go on."""
        os.close(self._descriptor)
