"""The times of files, which show a change without a read.

Each hit of the compiler wrapper needs this module, so it imports nothing that Python's start hasn't
imported.
"""

from __future__ import annotations

import os

SETTLED_NS = 2_000_000_000
"""Age of a file from which its times show each change: clocks of file systems are coarse."""


def stamp_text(path: str) -> str:
    """Return a file's size, inode, times and device, which change when the file does; "" for none.

    A link counts as its target.
    """
    try:
        status = os.stat(path)
    except OSError:
        return ""
    return (
        f"{status.st_size} {status.st_ino} {status.st_mtime_ns} {status.st_ctime_ns}"
        f" {status.st_dev}"
    )


def settled_stamp(path: str, *, since: int) -> str:
    """Return the stamp of a file; "" for one that may have changed since without a new stamp.

    Args:
        since: nanoseconds since 1970 at which, or after which, the file was read.
    """
    stamp = stamp_text(path)
    if not stamp:
        return ""
    _, _, modified, changed, _ = map(int, stamp.split())
    # A change shortly before the read may have left the same times as one after it.
    return stamp if max(modified, changed) < since - SETTLED_NS else ""
