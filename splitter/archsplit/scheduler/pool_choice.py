"""Choice of the pool for this process: make's jobserver, the user's shared pool, or a local one.

The client of GNU make's jobserver is here, too, for the fifo and the pipe style. Its input is
``MAKEFLAGS``; its output is a `TokenPool`, in which each running step but the first needs a token.
The protocol is in make's manual, "Sharing Job Slots with GNU make": each command has one implicit
slot, which needs no token. Tokens are bytes read from a pipe, and the same bytes must be written
back, also after a failure.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import sys
import termios
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from archsplit.scheduler.pool import Denied, Grant, LocalPool, MemoryBudget, WaitReason
from archsplit.scheduler.shared_pool import SharedPool
from archsplit.system.resources import available_cores

if TYPE_CHECKING:
    from collections.abc import Mapping

    from archsplit.scheduler.pool import Pool, PoolEntry, PoolRequest

_JOBSERVER_FLAGS = ("--jobserver-auth=", "--jobserver-fds=")
_RETRY_SECONDS = 0.01
"""Seconds between two reads for a token; a step that ends wakes the scheduler anyway."""
_MOST_SLOT_FILES = 4096
"""Slot files of a machine if make counts the slots."""


class PoolChoice(NamedTuple):
    """A pool, and lines about better pools that can't be used, with the reasons."""

    pool: Pool
    notes: tuple[str, ...]


def runtime_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder that all processes of one user on one machine share."""
    if runtime := environment.get("XDG_RUNTIME_DIR"):
        return Path(runtime) / "archsplit"
    return Path("/tmp") / f"archsplit-{os.getuid()}"  # noqa: S108 - the pool checks its owner


def find_pool(
    environment: Mapping[str, str],
    *,
    jobs: int | None,
    memory: int | None,
    folder: Path | None = None,
) -> PoolChoice:
    """Connect to make's jobserver if there is one, else to the user's shared pool.

    Memory is shared among all processes of the user in both cases.

    Args:
        jobs: most steps at a time; None for the number of cores. Also the most tokens that this
            process takes of make's.
        memory: most bytes for all steps together; None for no limit but the system's.
        folder: the folder of the slots; None for `runtime_folder`.
    """
    cores = available_cores()
    budget = MemoryBudget(limit=memory)
    jobserver, reason = connect_jobserver(environment)
    notes = [reason] if reason else []
    # make counts the jobs; the folder of slots then only shares memory among processes.
    slots = _MOST_SLOT_FILES if jobserver is not None else jobs or cores
    pool: Pool
    folder = folder or runtime_folder(environment)
    try:
        pool = SharedPool(folder, slots, budget)
    # A read-only or foreign folder costs sharing, not the build.
    except OSError as error:
        where = error.filename or folder
        notes.append(f"not shared with other processes: {where}: {error.strerror}")
        pool = LocalPool(slots, budget)
    if jobserver is not None:
        pool = TokenPool(jobserver, pool, slots=jobs or jobserver.jobs or cores)
    return PoolChoice(pool, tuple(notes))


class Jobserver:
    """The pipe with make's tokens; made by `connect_jobserver`.

    Args:
        reading: a descriptor that reads without blocking; closed by `close`.
        writing: a descriptor to put tokens back; closed by `close`.
        jobs: the number of ``make -j``, or None if MAKEFLAGS has none.
    """

    def __init__(self, reading: int, writing: int, jobs: int | None) -> None:
        self.jobs = jobs
        self._reading = reading
        self._writing = writing
        self._tokens: list[bytes] = []
        self._is_implicit_slot_used = False

    def acquire(self) -> bool:
        """Acquire one more slot; return False if no token is free now."""
        if not self._is_implicit_slot_used:
            self._is_implicit_slot_used = True
            return True
        with contextlib.suppress(BlockingIOError):
            # Never the end of the pipe, because this process has the other end open as well.
            self._tokens.append(os.read(self._reading, 1))
            return True
        return False

    def available(self) -> int:
        """Return the number of slots that are free now, for all clients together."""
        waiting = fcntl.ioctl(self._reading, termios.FIONREAD, bytes(4))
        return int.from_bytes(waiting, sys.byteorder) + (not self._is_implicit_slot_used)

    def release(self) -> None:
        """Release an acquired slot; tokens first, the implicit slot last."""
        if self._tokens:
            os.write(self._writing, self._tokens.pop())
        else:
            self._is_implicit_slot_used = False

    def close(self) -> None:
        """Write all tokens back and close the pipe."""
        while self._tokens:
            self.release()
        os.close(self._reading)
        os.close(self._writing)


class JobserverConnection(NamedTuple):
    """A jobserver, or the reason why it can't be used; "" if make has none."""

    jobserver: Jobserver | None
    reason: str


def connect_jobserver(environment: Mapping[str, str]) -> JobserverConnection:
    """Connect to the jobserver that ``MAKEFLAGS`` names."""
    words = environment.get("MAKEFLAGS", "").partition(" -- ")[0].split()
    named = [word.partition("=")[2] for word in words if word.startswith(_JOBSERVER_FLAGS)]
    if not named:
        return JobserverConnection(None, "")
    try:
        # make's manual: if there are several, the last counts.
        return JobserverConnection(_open_jobserver(named[-1], _job_count(words)), "")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return JobserverConnection(None, f"make's jobserver {named[-1]} can't be used: {reason}")


def _open_jobserver(name: str, jobs: int | None) -> Jobserver:
    if name.startswith("fifo:"):
        path = name.removeprefix("fifo:")
        # Both ends from the start: a reader without a writer would see the end of the file.
        reading = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        _check_pipe(reading, path)
        return Jobserver(reading, os.dup(reading), jobs)
    read_end, write_end = _parse_descriptors(name)
    # A new description of the same pipe: O_NONBLOCK on the inherited one would affect make.
    reading = os.open(f"/proc/self/fd/{read_end}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    return Jobserver(reading, os.dup(write_end), jobs)


def _parse_descriptors(name: str) -> tuple[int, int]:
    numbers = [int(text) for text in name.split(",") if text.isascii() and text.isdigit()]
    if len(numbers) != 2:  # noqa: PLR2004 - one to read from, one to write to
        raise ValueError("make has switched it off")
    read_end, write_end = numbers
    try:
        same = os.path.sameopenfile(read_end, write_end)
        modes = [fcntl.fcntl(each, fcntl.F_GETFL) & os.O_ACCMODE for each in numbers]
    except OSError:
        raise ValueError("make has closed it; begin the recipe's line with +") from None
    _check_pipe(read_end, f"descriptor {read_end}")
    if not same or modes[0] == os.O_WRONLY or modes[1] == os.O_RDONLY:
        # Without + make closes the descriptors, and their numbers may name other files by now.
        raise ValueError(f"{name} are not the two ends of a pipe; begin the recipe's line with +")
    return read_end, write_end


def _check_pipe(descriptor: int, name: str) -> None:
    if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        raise ValueError(f"{name} is not a pipe")


def _job_count(words: list[str]) -> int | None:
    numbers = [word[2:] for word in words if word.startswith("-j")]
    return int(numbers[-1]) if numbers and numbers[-1].isdigit() else None


class TokenPool:
    """A `Pool` with make's tokens as slots and another pool's memory."""

    def __init__(self, jobserver: Jobserver, memory_pool: Pool, *, slots: int) -> None:
        self.slots = slots
        self._jobserver = jobserver
        self._memory_pool = memory_pool
        self._running = 0

    def acquire(self, request: PoolRequest) -> Grant | Denied:
        """See `Pool.acquire`."""
        if self._running >= self.slots or not self._jobserver.acquire():
            return Denied(WaitReason.SLOT, _RETRY_SECONDS)
        answer = self._memory_pool.acquire(request)
        if isinstance(answer, Denied):
            self._jobserver.release()
            return answer
        self._running += 1
        return Grant(
            answer.entry,
            release=partial(self._release, answer),
            publish=lambda entry: answer.update_resident(entry.resident),
        )

    def idle_slots(self) -> int:
        """See `Pool.idle_slots`."""
        return min(self.slots - self._running, self._jobserver.available())

    def free_memory(self) -> int:
        """See `Pool.free_memory`."""
        return self._memory_pool.free_memory()

    def entries(self) -> list[PoolEntry]:
        """See `Pool.entries`."""
        return self._memory_pool.entries()

    def _release(self, grant: Grant) -> None:
        """Release the memory and the token of a step that has ended."""
        grant.release()
        self._running -= 1
        self._jobserver.release()

    def close(self) -> None:
        """See `Pool.close`."""
        self._jobserver.close()
        self._memory_pool.close()
