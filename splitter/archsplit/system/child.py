"""One child process: read what it says, wait for it, measure it, kill all of its group."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from typing import NamedTuple

_BLOCK = 1 << 16
_LOOK_SECONDS = 0.02
"""How often to look whether a child has ended while something else keeps its pipes open."""


class ExitStatus(NamedTuple):
    """What a child left: exit status (negative: a signal), output, and what it used.

    Attributes:
        cpu_seconds: of itself and of the descendants that were waited for.
        peak_memory: bytes of the biggest process among them; never less than what this process
            itself has used at most, because Linux counts the moment before ``exec``.
    """

    returncode: int
    stdout: bytes
    stderr: bytes
    cpu_seconds: float
    peak_memory: int


class Child:
    """A process that leads its own group; waited for by one thread, killed by any.

    Args:
        pid: the process, which nobody else waits for.
        stdout: the reading end of its standard output; closed by `wait`.
        stderr: the same for its standard error.
    """

    def __init__(self, pid: int, stdout: int, stderr: int) -> None:
        self.pid = pid
        self._streams: dict[int, list[bytes]] = {stdout: [], stderr: []}
        # The lock keeps the number of a process that is gone from being signalled.
        self._lock = threading.Lock()
        self._reaped = False
        self._killed = False

    def wait(self) -> ExitStatus:
        """Read to the end, and reap; the child is gone afterwards, whatever happens."""
        try:
            self._read()
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        except BaseException:
            self.kill(grace=0)
            raise
        finally:
            for stream in self._streams:
                os.close(stream)
            status, usage = self._reap()
        stdout, stderr = (b"".join(blocks) for blocks in self._streams.values())
        return ExitStatus(
            returncode=os.waitstatus_to_exitcode(status),
            stdout=stdout,
            stderr=stderr,
            cpu_seconds=usage.ru_utime + usage.ru_stime,
            peak_memory=usage.ru_maxrss * 1024,
        )

    def kill(self, *, grace: float) -> None:
        """End the whole group: SIGTERM, and SIGKILL after ``grace`` seconds; at once if that is 0.

        With SIGTERM compilers remove their temporary files.
        """
        with self._lock:
            self._killed = True
            self._signal(signal.SIGTERM if grace else signal.SIGKILL)
        if grace:
            timer = threading.Timer(grace, self.kill, kwargs={"grace": 0})
            timer.daemon = True
            timer.start()

    def has_ended(self) -> bool:
        """Whether it is only waiting to be reaped; it must not have been."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _read(self) -> None:
        poll = select.poll()
        for stream in self._streams:
            os.set_blocking(stream, False)
            poll.register(stream, select.POLLIN)
        still_open, look = len(self._streams), time.monotonic() + _LOOK_SECONDS
        while still_open:
            # Asked before reading: what a dead child has said is in the pipes by now.
            ended = time.monotonic() >= look and self.has_ended()
            for stream, _ in poll.poll(0 if ended else _LOOK_SECONDS * 1000):
                if not self._take(stream):
                    poll.unregister(stream)
                    still_open -= 1
            if ended:
                # Something that it has started in the background keeps the pipes open.
                return

    def _take(self, stream: int) -> bool:
        """Read what is there, a pipe's whole content at most; False at the end."""
        for _ in range(1 << 4):
            try:
                block = os.read(stream, _BLOCK)
            except BlockingIOError:
                return True
            if not block:
                return False
            self._streams[stream].append(block)
        return True

    def _reap(self) -> tuple[int, os.struct_rusage]:  # type: ignore[name-defined]
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        with self._lock:
            if self._killed:
                # Those of its group that didn't heed SIGTERM must not outlive it.
                self._signal(signal.SIGKILL)
            self._reaped = True
            _, status, usage = os.wait4(self.pid, 0)
        return status, usage

    def _signal(self, signum: int) -> None:
        if not self._reaped:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signum)
