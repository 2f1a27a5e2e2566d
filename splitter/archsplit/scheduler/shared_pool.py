"""Pool that all processes of one user on one machine share: locked files, no daemon.

Each slot is a file; the process that has it locked (flock) has the slot, and has written the step's
memory into the file. The kernel unlocks the files of a process that ends, however it ends.

    folder/lock                  held while the slots are read: one process at a time
    folder/slot-0 … slot-N       a file for each slot: locked = in use; reserved, resident, started;
                                 further files are for processes that waited long
    folder/waiting/RANK-PID-ID   a file for each waiting process; the most urgent one sorts first
    folder/drain                 locked by a process that needs the memory of all others
"""

from __future__ import annotations

import contextlib
import os
import time
from functools import partial
from typing import TYPE_CHECKING

from archsplit.scheduler.pool import ALL_MEMORY, Denied, Grant, PoolEntry, WaitReason
from archsplit.system.file_lock import lock, try_lock, unlock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from archsplit.scheduler.pool import MemoryBudget, PoolRequest

LOCK_FILE_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_POLL_SECONDS, MAX_POLL_SECONDS = 0.004, 0.1
"""Seconds between two reads of the queue; only the first process reads it that often."""
_PATIENCE_SECONDS, _MOST_PATIENCE = 0.1, 8.0
"""Seconds of waiting after which reads get rarer, in proportion, and how much rarer.

A read takes 0.3 to 2 ms of CPU time. Five processes that waited for one core took half of another.
"""
_YIELD_SECONDS = 0.06
"""Seconds that a free slot is left to a more urgent process.

No longer, because that process may be stopped.
"""
_RANK_OFFSET = 10**15
"""Offset that keeps ranks positive."""
_DRAIN_AFTER_SECONDS = 10.0
"""Seconds that a step waits for memory before all other starts have to wait."""
_LONGEST_WAIT_SECONDS = 10.0
"""Seconds after which a process that runs nothing takes a slot beyond their number.

One command at a time is what nvcc itself runs, however busy the machine is.
"""
_RETRY_SECONDS = 0.02
_QUEUE_FOLDER = "waiting"
_ENTRY_FORMAT = "{:020d} {:020d} {:020d}"
_ENTRY_BYTES = 62


class SlotQueue:
    """Queue of the processes that wait for a slot, by urgency and time of waiting.

    Each process has a file, locked while the process lives, whose name is its rank. Only one
    process at a time may call a method other than `leave`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._name = ""
        self._descriptor = -1
        self._arrived = 0.0
        self._yielding_since: float | None = None

    def seconds_waited(self) -> float:
        """Return the seconds since this process joined the queue; 0 if it is not in it."""
        return time.monotonic() - self._arrived if self._name else 0.0

    def is_empty(self) -> bool:
        """Return True if no other process waits."""
        return set(os.listdir(self._folder)) <= {self._name}  # noqa: PTH208 - only names matter

    def join(self, urgency: float) -> float:
        """Join the queue; return the seconds until the next attempt."""
        self._yielding_since = None
        self._update_rank(urgency)
        place = sorted(os.listdir(self._folder)).index(self._name)  # noqa: PTH208 - names sort
        patience = min(max(1.0, self.seconds_waited() / _PATIENCE_SECONDS), _MOST_PATIENCE)
        # Squared: each reading costs CPU time that steps of others could use.
        return min(_POLL_SECONDS * (1 + place) ** 2 * patience, MAX_POLL_SECONDS)

    def is_first(self, urgency: float) -> bool:
        """Return True if this process may take a free slot; else join the queue."""
        for name in sorted(os.listdir(self._folder)):  # noqa: PTH208 - names sort
            if name == self._name:
                break
            if self._is_alive(name):
                return self._has_yielded_long_enough(urgency)
        return True

    def leave(self) -> None:
        """Leave the queue."""
        self._yielding_since = None
        # A signal may come between any two of these lines, and `leave` be called again.
        name, self._name = self._name, ""
        if name:
            (self._folder / name).unlink(missing_ok=True)
            os.close(self._descriptor)

    def _update_rank(self, urgency: float) -> None:
        now = time.monotonic()
        if not self._name:
            self._arrived = now
        rank = int((self._arrived - urgency) * 1000) + _RANK_OFFSET
        name = f"{rank:020d}-{os.getpid()}-{id(self)}"
        if not self._name:
            self._descriptor = os.open(self._folder / name, LOCK_FILE_FLAGS, 0o600)
            try_lock(self._descriptor)
        elif name != self._name:
            (self._folder / self._name).rename(self._folder / name)
        self._name = name

    def _has_yielded_long_enough(self, urgency: float) -> bool:
        self._update_rank(urgency)
        now = time.monotonic()
        if self._yielding_since is None:
            self._yielding_since = now
        return now - self._yielding_since > _YIELD_SECONDS

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
    """Lock by which a big step gets memory that small steps would always take first.

    While one process has the file locked, the others start nothing.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, LOCK_FILE_FLAGS, 0o600)
        self._is_ours = False
        self._since: float | None = None
        self._memory = 0

    def is_locked_by_others(self) -> bool:
        """Return True if another process waits for the end of all other steps."""
        if self._is_ours:
            return False
        if not try_lock(self._descriptor):
            return True
        unlock(self._descriptor)
        return False

    def request(self, memory: int, *, at_once: bool) -> None:
        """Lock out other processes for a step that lacks memory, at once or later."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
        self._memory = max(self._memory, memory)
        if (at_once or now - self._since > _DRAIN_AFTER_SECONDS) and not self._is_ours:
            self._is_ours = try_lock(self._descriptor)

    def release(self, memory: int) -> None:
        """Unlock if the step that got its memory is the one that waited."""
        if self._since is not None and memory >= self._memory:
            self._since, self._memory, self._is_ours = None, 0, False
            unlock(self._descriptor)

    def close(self) -> None:
        """Close the file, which unlocks it."""
        os.close(self._descriptor)


class SharedPool:
    """A `Pool` of locked files.

    All processes should agree on ``slots``: each reads that many files only.

    Args:
        folder: made if it is missing; only this user may have access.

    Raises:
        OSError: the folder can't be used, belongs to another user, or has no file locks.
    """

    def __init__(self, folder: Path, slots: int, budget: MemoryBudget) -> None:
        if slots < 1:
            raise ValueError("at least one slot is needed")
        _make_private(folder)
        _make_private(folder / _QUEUE_FOLDER)
        self.slots = slots
        self._budget = budget
        self._folder = folder
        self._files: list[int] = []
        self._own: dict[int, PoolEntry] = {}
        self._lock = os.open(folder / "lock", LOCK_FILE_FLAGS, 0o600)
        self._drain = DrainLock(folder / "drain")
        self._queue = SlotQueue(folder / _QUEUE_FOLDER)
        self._has_waited_long = False
        with self._locked():
            # Some file systems have no locks: they fail here, and the caller takes another pool.
            pass

    def acquire(self, request: PoolRequest) -> Grant | Denied:
        """See `Pool.acquire`."""
        try:
            return self._acquire_locked(request)
        except FileNotFoundError:
            # The folder was deleted; locks on the deleted files end with their holders.
            _make_private(self._folder)
            _make_private(self._folder / _QUEUE_FOLDER)
            return Denied(WaitReason.TURN, _RETRY_SECONDS)

    def idle_slots(self) -> int:
        """See `Pool.idle_slots`."""
        with self._locked():
            if not self._queue.is_empty():
                return 0
            return max(0, self.slots - len(self._read_slots()[1]))

    def free_memory(self) -> int:
        """See `Pool.free_memory`."""
        return self._budget.free_memory(self.entries())

    def entries(self) -> list[PoolEntry]:
        """See `Pool.entries`."""
        with self._locked():
            return self._read_slots()[1]

    def close(self) -> None:
        """See `Pool.close`."""
        self._queue.leave()
        self._drain.close()
        for descriptor in (*self._files, self._lock):
            os.close(descriptor)
        self._files.clear()
        self._own.clear()

    def write_entry(self, number: int, entry: PoolEntry) -> None:
        """Write the entry of an own slot for the other processes."""
        self._own[number] = entry
        with contextlib.suppress(OSError):
            # A full disk costs only the entry: others then count no memory for the step.
            os.pwrite(self._files[number], _ENTRY_FORMAT.format(*entry).encode(), 0)

    def release_slot(self, number: int) -> None:
        """Release an own slot."""
        del self._own[number]
        unlock(self._files[number])

    def _acquire_locked(self, request: PoolRequest) -> Grant | Denied:
        with self._locked():
            free, entries, extra = self._read_slots()
            if not free and self._may_exceed():
                free = [extra]
            elif not free:
                retry = self._queue.join(request.urgency)
                # If all slots are this process's own, no other process can free one.
                has_all = self._own.keys() >= {*range(self.slots)}
                return Denied(WaitReason.SLOT, None if has_all else retry)
            elif not self._queue.is_first(request.urgency):
                return Denied(WaitReason.TURN, _RETRY_SECONDS)
            # A process that waits for memory must not keep others from the slots.
            self._queue.leave()
            if self._drain.is_locked_by_others():
                return Denied(WaitReason.MEMORY, _RETRY_SECONDS, request.memory)
            if short := self._budget.shortage(request.memory, entries):
                self._drain.request(request.memory, at_once=request.memory >= ALL_MEMORY)
                return Denied(WaitReason.MEMORY, _RETRY_SECONDS, short)
            self._drain.release(request.memory)
            return self._make_grant(request.memory, free[0])

    def _may_exceed(self) -> bool:
        """Return True if this process may run one step beyond the slots."""
        # A process waits only once: a small compilation has ten steps, and each would wait again.
        if self._queue.seconds_waited() > _LONGEST_WAIT_SECONDS:
            self._has_waited_long = True
        return self._has_waited_long and not self._own

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        # Held only while some small files are read, so the wait for it is short.
        lock(self._lock)
        try:
            yield
        finally:
            unlock(self._lock)

    def _read_slots(self) -> tuple[list[int], list[PoolEntry], int]:
        """Return the free slots, the entries of running steps, and a number beyond the slots."""
        unused: list[int] = []
        entries: list[PoolEntry] = []
        number = 0
        while self._has_file(number):
            if number in self._own:
                entries.append(self._own[number])
            elif try_lock(self._files[number]):
                unlock(self._files[number])
                unused.append(number)
            else:
                entries.append(_read_entry(self._files[number]))
            number += 1
        # The first that was never used: it has no file yet.
        unused.append(number)
        free = [each for each in unused if each < self.slots]
        return free, entries, next((each for each in unused if each >= self.slots), self.slots)

    def _has_file(self, number: int) -> bool:
        if number == len(self._files):
            with contextlib.suppress(FileNotFoundError):
                self._files.append(os.open(self._slot(number), LOCK_FILE_FLAGS & ~os.O_CREAT))
        return number < len(self._files)

    def _slot(self, number: int) -> Path:
        return self._folder / f"slot-{number}"

    def _make_grant(self, memory: int, number: int) -> Grant:
        if number == len(self._files):
            self._files.append(os.open(self._slot(number), LOCK_FILE_FLAGS, 0o600))
        try_lock(self._files[number])
        entry = PoolEntry(memory, 0, time.monotonic_ns())
        self.write_entry(number, entry)
        return Grant(
            entry, partial(self.release_slot, number), publish=partial(self.write_entry, number)
        )


def _read_entry(descriptor: int) -> PoolEntry:
    try:
        return PoolEntry(*map(int, os.pread(descriptor, _ENTRY_BYTES, 0).split()))
    except (ValueError, TypeError):
        # The holder could not write its entry, for example on a full disk.
        return PoolEntry(0, 0, 0)


def _make_private(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    if folder.is_symlink() or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionError(None, "it is not a private folder of this user", str(folder))
