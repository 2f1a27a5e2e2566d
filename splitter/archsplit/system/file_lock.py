"""Advisory locks on open files; the kernel releases them at the end of the process.

The package ``filelock`` isn't used: it imports asyncio, 50 ms of CPU in each start of the compiler
wrapper where ``fcntl`` takes none, and it locks paths: the pool needs the descriptors of files that
carry data, and private folders lock themselves.
"""

from __future__ import annotations

import fcntl
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path


def try_lock(descriptor: int) -> bool:
    """Lock a file; return False if another process or open file holds the lock.

    Raises:
        OSError: the file system (some NFS) has no locks.
    """
    try:
        # flock, not lockf: its locks belong to the open file, not to the process, so threads
        # exclude each other too.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock(descriptor: int) -> None:
    """Lock a file; block until the lock is free.

    Raises:
        OSError: the file system (some NFS) has no locks.
    """
    fcntl.flock(descriptor, fcntl.LOCK_EX)


def unlock(descriptor: int) -> None:
    """Release the lock, as closing the file does."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)


class LockedFolder:
    """A lock on a folder, except on a file system without locks; the entry waits for it.

    Raises:
        OSError: the folder can't be opened.
    """

    def __init__(self, folder: Path | str) -> None:
        # The folder itself, so no file is left in it.
        self._descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)

    def __enter__(self) -> None:
        try:
            lock(self._descriptor)
        except OSError:
            pass

    def __exit__(self, *error: object) -> None:
        os.close(self._descriptor)
