"""Advisory locks on open files; the kernel releases them at the end of the process.

The package ``filelock`` isn't used: it imports asyncio, 50 ms of CPU in each start of the compiler
wrapper where ``fcntl`` takes none, and it locks paths: the pool needs the descriptors of files that
carry data, and private folders lock themselves.

A small module of its own, because the pool and the file helpers both need it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
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


@contextlib.contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Lock a folder; block until the lock is free.

    On a file system without locks the folder is not locked.

    Raises:
        OSError: the folder can't be opened.
    """
    # The folder itself, so no file is left in it.
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):
            lock(descriptor)
        yield
    finally:
        os.close(descriptor)
