"""Advisory locks on open files, which end with their process.

The package ``filelock`` isn't used: it imports asyncio, 50 ms of CPU in each start of the compiler
wrapper where ``fcntl`` takes none, and it locks paths: the pool needs the descriptors of files that
carry data, and private folders lock themselves.

A module of its own, because everything below the file helpers may need it.
"""

from __future__ import annotations

import fcntl


def try_lock(descriptor: int) -> bool:
    """Lock a file; return False where another open file has it locked.

    Raises:
        OSError: the file system (some NFS) knows no locks.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock(descriptor: int) -> None:
    """Lock a file, however long that takes.

    Raises:
        OSError: the file system (some NFS) knows no locks.
    """
    fcntl.flock(descriptor, fcntl.LOCK_EX)


def unlock(descriptor: int) -> None:
    """Let others have the lock; closing the file does so too."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)
