"""Choice of the pool for this process: make's jobserver, the user's shared pool, or a local one.

The client of GNU make's jobserver is here, too, for the fifo and the pipe style. Its input is
``MAKEFLAGS``; its output is a `TokenPool`, in which each running step but the first costs a token.
The protocol is in make's manual, "Sharing Job Slots with GNU make": a recipe starts with one slot
that needs no token. More slots are bytes read from a pipe, and the same bytes must be written back,
whatever happens.
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

_WORDS = ("--jobserver-auth=", "--jobserver-fds=")
_RETRY = 0.01
"""Seconds between two reads for a token; a step that ends wakes the scheduler anyway."""


_MOST_ROWS = 4096
"""Slot files for one machine where make counts the slots."""


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
    slots = _MOST_ROWS if jobserver is not None else jobs or cores
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
        writing: where tokens are put back; closed by `close`.
        jobs: the number of ``make -j``, or None where MAKEFLAGS has none.
    """

    def __init__(self, reading: int, writing: int, jobs: int | None) -> None:
        self.jobs = jobs
        self._reading = reading
        self._writing = writing
        self._tokens: list[bytes] = []
        self._free_used = False

    def acquire(self) -> bool:
        """Acquire one more slot; return False where no token is free now."""
        if not self._free_used:
            self._free_used = True
            return True
        with contextlib.suppress(BlockingIOError):
            # Never the end of the pipe, because this process has the other end open as well.
            self._tokens.append(os.read(self._reading, 1))
            return True
        return False

    def available(self) -> int:
        """Return the number of slots that are free now, for all clients together."""
        waiting = fcntl.ioctl(self._reading, termios.FIONREAD, bytes(4))
        return int.from_bytes(waiting, sys.byteorder) + (not self._free_used)

    def release(self) -> None:
        """Release an acquired slot; tokens go back first, the free slot last."""
        if self._tokens:
            os.write(self._writing, self._tokens.pop())
        else:
            self._free_used = False

    def close(self) -> None:
        """Write all tokens back and close the pipe."""
        while self._tokens:
            self.release()
        os.close(self._reading)
        os.close(self._writing)


class JobserverConnection(NamedTuple):
    """A jobserver, or the reason why it can't be used; "" where make has none."""

    jobserver: Jobserver | None
    reason: str


def connect_jobserver(environment: Mapping[str, str]) -> JobserverConnection:
    """Connect to the jobserver that ``MAKEFLAGS`` names."""
    words = environment.get("MAKEFLAGS", "").partition(" -- ")[0].split()
    named = [word.partition("=")[2] for word in words if word.startswith(_WORDS)]
    if not named:
        return JobserverConnection(None, "")
    try:
        # The manual: of several the last counts.
        return JobserverConnection(_opened(named[-1], _jobs(words)), "")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return JobserverConnection(None, f"make's jobserver {named[-1]} can't be used: {reason}")


def _opened(name: str, jobs: int | None) -> Jobserver:
    if name.startswith("fifo:"):
        path = name.removeprefix("fifo:")
        # Both ends from the start: a reader without a writer would see the end of the file.
        reading = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        _check_pipe(reading, path)
        return Jobserver(reading, os.dup(reading), jobs)
    read_end, write_end = _descriptors(name)
    # A new description of the same pipe: O_NONBLOCK on the inherited one would affect make.
    reading = os.open(f"/proc/self/fd/{read_end}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    return Jobserver(reading, os.dup(write_end), jobs)


def _descriptors(name: str) -> tuple[int, int]:
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


def _jobs(words: list[str]) -> int | None:
    numbers = [word[2:] for word in words if word.startswith("-j")]
    return int(numbers[-1]) if numbers and numbers[-1].isdigit() else None


class TokenPool:
    """A `Pool` with make's tokens as slots and another pool's memory."""

    def __init__(self, jobserver: Jobserver, memory: Pool, *, slots: int) -> None:
        self.slots = slots
        self._jobserver = jobserver
        self._memory = memory
        self._running = 0

    def acquire(self, request: PoolRequest) -> Grant | Denied:
        """See `Pool.acquire`."""
        if self._running >= self.slots or not self._jobserver.acquire():
            return Denied(WaitReason.SLOT, _RETRY)
        answer = self._memory.acquire(request)
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
        return self._memory.free_memory()

    def entries(self) -> list[PoolEntry]:
        """See `Pool.entries`."""
        return self._memory.entries()

    def _release(self, memory: Grant) -> None:
        """Release the memory and the token of a step that has ended."""
        memory.release()
        self._running -= 1
        self._jobserver.release()

    def close(self) -> None:
        """See `Pool.close`."""
        self._jobserver.close()
        self._memory.close()
