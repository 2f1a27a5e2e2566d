"""Leases: no two processes, on one machine or many, make the same result.

A lease is a file with host and pid of the process that makes a result. Another process waits until
the file is gone or too old, or its time is up. Then it makes the result itself: never wrong, only
slower.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_POLL_SECONDS = 0.1
_DEAD = {"Z", "X"}


class Leases:
    """The leases of one store.

    Args:
        folder: folder of the lease files.
        seconds: lifetime of a lease, and longest wait for one; 0 for no leases.
    """

    def __init__(self, folder: Path, *, seconds: float) -> None:
        self._folder = folder
        self._seconds = seconds
        self._held: set[str] = set()

    def acquire(self, key: str) -> bool:
        """Acquire a lease; return False if another process holds it."""
        if not self._seconds:
            return True
        path = self._folder / key
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            return not self._is_held(path) and self._take_over(key)
        except OSError:
            # In a folder that can't be written no process can have a lease.
            return True
        self._held.add(key)
        # On a full disk the file stays empty: a lease without a known holder.
        with contextlib.suppress(OSError):
            try:
                os.write(descriptor, f"{os.uname().nodename} {os.getpid()}".encode())
            finally:
                os.close(descriptor)
        return True

    def wait(self, key: str) -> bool:
        """Wait for the end of a lease; return False if the time was up first."""
        path, end = self._folder / key, time.monotonic() + self._seconds
        while self._is_held(path):
            if time.monotonic() >= end:
                return False
            time.sleep(_POLL_SECONDS)
        return True

    def release(self, key: str) -> None:
        """Release a lease."""
        if key in self._held:
            self._held.discard(key)
            with contextlib.suppress(OSError):
                (self._folder / key).unlink()

    def release_all(self) -> None:
        """Release all leases of this process."""
        for key in tuple(self._held):
            self.release(key)

    @contextlib.contextmanager
    def hold(self, key: str) -> Iterator[bool]:
        """Hold a lease within a context; False if another process holds it."""
        taken = self.acquire(key)
        try:
            yield taken
        finally:
            self.release(key)

    def _take_over(self, key: str) -> bool:
        # Two processes may do this at the same time and both make the result: harmless.
        with contextlib.suppress(OSError):
            (self._folder / key).unlink()
        self._held.add(key)
        with contextlib.suppress(OSError):
            (self._folder / key).write_text(f"{os.uname().nodename} {os.getpid()}")
        return True

    def _is_held(self, path: Path) -> bool:
        try:
            # Another machine's clock may be wrong: a lease from the future is void.
            age = time.time() - path.stat().st_mtime
            host, _, process = path.read_text().partition(" ")
        except OSError:
            return False
        if not -self._seconds < age < self._seconds:
            return False
        return host != os.uname().nodename or not process.isdigit() or _is_running(int(process))


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
        # A killed process stays a zombie until its parent has reaped it.
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except ProcessLookupError:
        return False
    except (OSError, IndexError):
        return True
    return state not in _DEAD
