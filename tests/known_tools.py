"""Digests of the toolkit's and the host compiler's programs, read once a run.

Each test has an empty store, and cicc, ptxas, nvcc and cc1plus have 180 MB: their SHA-256 was half
of the CPU time of tests that compile small sources.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import TYPE_CHECKING

from archsplit.cache import file_digests, usage

if TYPE_CHECKING:
    from pathlib import Path

FOLDERS: list[Path] = []
"""Folder of this run, once it is known."""
_LEAST_SIZE = 1_000_000
"""Size of a tool in bytes; files that tests write are smaller."""


def remember_tools(folder: Path) -> None:
    """Keep the digests of large files in a folder, for all processes of the run."""
    FOLDERS.append(folder)
    read = usage.file_digest
    # Tests mount file systems of their own, whose numbers come again.
    devices = {os.stat(each).st_dev for each in (folder, sys.prefix, "/usr/bin")}  # noqa: PTH116

    def digest(path: str) -> str:
        words = _identity(path)
        if words is None or words[0] not in devices:
            return read(path)
        place = folder / "-".join(map(str, words))
        # A link, because it is never there in part.
        with contextlib.suppress(OSError):
            return str(place.readlink())
        found = read(path)
        if _identity(path) == words:
            with contextlib.suppress(FileExistsError):
                place.symlink_to(found)
        return found

    vars(file_digests)["file_digest"] = digest


def _identity(path: str) -> tuple[int, ...] | None:
    """Return what changes with a file's content; None for a small or a new file."""
    status = os.stat(path)  # noqa: PTH116 (its errors are the digest's own)
    times = (status.st_mtime_ns, status.st_ctime_ns)
    if status.st_size < _LEAST_SIZE or max(times) > time.time_ns() - usage.TOO_NEW_NS:
        return None
    return (status.st_dev, status.st_ino, status.st_size, *times)
