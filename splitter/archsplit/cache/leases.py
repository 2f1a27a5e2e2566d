"""Keep several processes, on one machine or many, from making the same thing at once.

A lease is a file that says who makes something. Whoever wants the same waits until the file is gone
or too old, or patience ends: then it makes the thing itself, which is never wrong, only slower.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_LOOK_SECONDS = 0.1
_DEAD = {"Z", "X"}


class Leases:
    """The leases of one store.

    Args:
        folder: where their files are.
        seconds: after which a lease counts for nothing, and how long to wait for one; 0 to do
            without leases.
    """

    def __init__(self, folder: Path, *, seconds: float) -> None:
        self._folder = folder
        self._seconds = seconds
        self._held: set[str] = set()

    def acquire(self, key: str) -> bool:
        """Say that this process makes it; False where another one does already."""
        if not self._seconds:
            return True
        path = self._folder / key
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            return not self._is_held(path) and self._take_over(key)
        except OSError:
            # Where nothing can be written, nobody can be waited for.
            return True
        self._held.add(key)
        # On a full disk it stays empty, which says that somebody has it, and not who.
        with contextlib.suppress(OSError):
            try:
                os.write(descriptor, f"{socket.gethostname()} {os.getpid()}".encode())
            finally:
                os.close(descriptor)
        return True

    def wait(self, key: str) -> bool:
        """Wait until nobody makes it any more; False when patience ended first."""
        path, end = self._folder / key, time.monotonic() + self._seconds
        while self._is_held(path):
            if time.monotonic() >= end:
                return False
            time.sleep(_LOOK_SECONDS)
        return True

    def release(self, key: str) -> None:
        """It is made, or won't be."""
        if key in self._held:
            self._held.discard(key)
            with contextlib.suppress(OSError):
                (self._folder / key).unlink()

    def release_all(self) -> None:
        """Nothing is made any more."""
        for key in tuple(self._held):
            self.release(key)

    @contextlib.contextmanager
    def hold(self, key: str) -> Iterator[bool]:
        """Have the lease for as long as the context lives; False where another process has it."""
        taken = self.acquire(key)
        try:
            yield taken
        finally:
            self.release(key)

    def _take_over(self, key: str) -> bool:
        # Two that do this at the same time may both make it, which is harmless.
        with contextlib.suppress(OSError):
            (self._folder / key).unlink()
        self._held.add(key)
        with contextlib.suppress(OSError):
            (self._folder / key).write_text(f"{socket.gethostname()} {os.getpid()}")
        return True

    def _is_held(self, path: Path) -> bool:
        try:
            # The clock of whoever wrote it may be wrong: an age that can't be counts for nothing.
            age = time.time() - path.stat().st_mtime
            host, _, process = path.read_text().partition(" ")
        except OSError:
            return False
        if not -self._seconds < age < self._seconds:
            return False
        return host != socket.gethostname() or not process.isdigit() or _runs(int(process))


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
        # One that was killed is still there until its parent has asked what became of it.
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except ProcessLookupError:
        return False
    except (OSError, IndexError):
        return True
    return state not in _DEAD
