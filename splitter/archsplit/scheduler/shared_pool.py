"""Whose turn it is among processes that wait for the same slots, by locked files.

A pool that all processes of one user on one machine share, by locked files, without a daemon.

Each slot is a file in a folder: who has it locked (flock) has the slot, and has written how much
memory goes with it. The kernel unlocks the files of a process that ends or is killed.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING

from archsplit.scheduler.pool import ALL_MEMORY, Denied, PoolEntry, WaitReason
from archsplit.system.file_lock import lock, try_lock, unlock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from archsplit.scheduler.pool import Grant, MemoryBudget, PoolRequest

LOCK_FILE_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_POLL, MAX_POLL_SECONDS = 0.004, 0.1
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

    def join(self, urgency: float) -> float:
        """Join the queue because no slot is free; return after how many seconds to look again."""
        self._courteous_since = None
        self._join(urgency)
        place = sorted(os.listdir(self._folder)).index(self._name)  # noqa: PTH208 - names sort
        return min(_POLL * (1 + place), MAX_POLL_SECONDS)

    def is_first(self, urgency: float) -> bool:
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
            self._descriptor = os.open(self._folder / name, LOCK_FILE_FLAGS, 0o600)
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
            descriptor = os.open(path, LOCK_FILE_FLAGS & ~os.O_CREAT)
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
        self._descriptor = os.open(path, LOCK_FILE_FLAGS, 0o600)
        self._is_ours = False
        self._since: float | None = None
        self._memory = 0

    def is_locked_by_others(self) -> bool:
        """Whether another process waits for everybody else's steps to end."""
        if self._is_ours:
            return False
        if not try_lock(self._descriptor):
            return True
        unlock(self._descriptor)
        return False

    def request(self, memory: int, *, at_once: bool) -> None:
        """A step of ours lacks memory; after a while, or at once, that is everybody's business."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
        self._memory = max(self._memory, memory)
        if (at_once or now - self._since > _DRAIN_AFTER) and not self._is_ours:
            self._is_ours = try_lock(self._descriptor)

    def release(self, memory: int) -> None:
        """A step of ours has what it needs; if it is the one that waited, the others may go on."""
        if self._since is not None and memory >= self._memory:
            self._since, self._memory, self._is_ours = None, 0, False
            unlock(self._descriptor)

    def close(self) -> None:
        """Let the others go on."""
        os.close(self._descriptor)


_RETRY = 0.02
_WAITING = "waiting"
_ROW = "{:020d} {:020d} {:020d}"
_ROW_BYTES = 62


class SharedPool:
    """See `archsplit.scheduler.pool.Pool`; used by one thread.

    All processes should agree on ``slots``: each looks at the first so many files only.

    Args:
        folder: made when it is not there; for this user alone.

    Raises:
        OSError: the folder can't be used, or is another user's, or its files can't be locked.
    """

    def __init__(self, folder: Path, slots: int, budget: MemoryBudget) -> None:
        if slots < 1:
            raise ValueError("at least one slot is needed")
        _make_private(folder)
        _make_private(folder / _WAITING)
        self.slots = slots
        self._budget = budget
        self._folder = folder
        self._files: list[int] = []
        self._own: dict[int, PoolEntry] = {}
        self._lock = os.open(folder / "lock", LOCK_FILE_FLAGS, 0o600)
        self._drain = DrainLock(folder / "drain")
        self._queue = SlotQueue(folder / _WAITING)
        with self._locked():
            # Some file systems know no locks: now is the time to say so.
            pass

    def acquire(self, request: PoolRequest) -> Grant | Denied:
        """See `Pool.take`."""
        try:
            return self._take(request)
        except FileNotFoundError:
            # Somebody has cleaned up; what others hold of the old files is over some day.
            _make_private(self._folder)
            _make_private(self._folder / _WAITING)
            return Denied(WaitReason.TURN, _RETRY)

    def idle_slots(self) -> int:
        """See `Pool.idle`."""
        with self._locked():
            return self.slots - len(self._look()[1]) if self._queue.is_empty() else 0

    def free_memory(self) -> int:
        """See `Pool.room`."""
        return self._budget.free_memory(self.entries())

    def entries(self) -> list[PoolEntry]:
        """See `Pool.rows`."""
        with self._locked():
            return self._look()[1]

    def close(self) -> None:
        """See `Pool.close`."""
        self._queue.leave()
        self._drain.close()
        for descriptor in (*self._files, self._lock):
            os.close(descriptor)
        self._files.clear()
        self._own.clear()

    def entry(self, number: int) -> PoolEntry:
        """What is written for a slot of ours."""
        return self._own[number]

    def write_entry(self, number: int, row: PoolEntry) -> None:
        """Write for the others what goes with a slot of ours."""
        self._own[number] = row
        with contextlib.suppress(OSError):
            # On a full disk only this is lost: how much memory we need.
            os.pwrite(self._files[number], _ROW.format(*row).encode(), 0)

    def release_slot(self, number: int) -> None:
        """Let others have a slot of ours."""
        del self._own[number]
        unlock(self._files[number])

    def _take(self, request: PoolRequest) -> Grant | Denied:
        with self._locked():
            free, rows = self._look()
            if not free:
                retry = self._queue.join(request.urgency)
                # Slots that are all ours become free by nobody else.
                return Denied(
                    WaitReason.SLOT, MAX_POLL_SECONDS if len(self._own) == self.slots else retry
                )
            if not self._queue.is_first(request.urgency):
                return Denied(WaitReason.TURN, _RETRY)
            # Who waits for memory must not keep others from the slots.
            self._queue.leave()
            if self._drain.is_locked_by_others():
                return Denied(WaitReason.MEMORY, _RETRY, request.memory)
            if short := self._budget.shortage(request.memory, rows):
                self._drain.request(request.memory, at_once=request.memory >= ALL_MEMORY)
                return Denied(WaitReason.MEMORY, _RETRY, short)
            self._drain.release(request.memory)
            return self._granted(request.memory, free[0])

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        # Nobody holds this one for longer than it takes to look at some files.
        lock(self._lock)
        try:
            yield
        finally:
            unlock(self._lock)

    def _look(self) -> tuple[list[int], list[PoolEntry]]:
        """Slots that are free, and what all running steps hold."""
        free, rows = [], []
        number = 0
        while number < self.slots and self._is_there(number):
            if number in self._own:
                rows.append(self._own[number])
            elif try_lock(self._files[number]):
                unlock(self._files[number])
                free.append(number)
            else:
                rows.append(_read_row(self._files[number]))
            number += 1
        if number < self.slots:
            # One of those that were never needed, which have no file: each costs time at each look.
            free.append(number)
        return free, rows

    def _is_there(self, number: int) -> bool:
        if number == len(self._files):
            with contextlib.suppress(FileNotFoundError):
                self._files.append(os.open(self._slot(number), LOCK_FILE_FLAGS & ~os.O_CREAT))
        return number < len(self._files)

    def _slot(self, number: int) -> Path:
        return self._folder / f"slot-{number}"

    def _granted(self, memory: int, number: int) -> Grant:
        if number == len(self._files):
            self._files.append(os.open(self._slot(number), LOCK_FILE_FLAGS, 0o600))
        try_lock(self._files[number])
        self.write_entry(number, PoolEntry(memory, 0, time.monotonic_ns()))
        return _SharedGrant(self, number)


class _SharedGrant:
    def __init__(self, pool: SharedPool, number: int) -> None:
        self._pool = pool
        self._number = number

    @property
    def entry(self) -> PoolEntry:
        return self._pool.entry(self._number)

    def update_resident(self, resident: int) -> None:
        self._pool.write_entry(self._number, self.entry._replace(resident=resident))

    def release(self) -> None:
        self._pool.release_slot(self._number)


def _read_row(descriptor: int) -> PoolEntry:
    try:
        return PoolEntry(*map(int, os.pread(descriptor, _ROW_BYTES, 0).split()))
    except (ValueError, TypeError):
        # Its holder couldn't write it.
        return PoolEntry(0, 0, 0)


def _make_private(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    if folder.is_symlink() or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionError(None, "it is not this user's alone", str(folder))
