"""Wheels that were downloaded as inputs: a folder of the cache, bounded like the store itself.

In: the folder of the cache. The wheels have names of their own and are no entries of the store, so
they are counted and evicted apart: at most the cache's maximum size together, the least recently
used first. The last use is a file's time of access, which is set here, because many file systems
don't keep it. The time of the change stays: pip compares files by their content.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, NamedTuple

from archsplit.cache.local import EvictionResult

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_FOLDER = "wheels"


class _Download(NamedTuple):
    used: int
    path: str
    size: int


def downloads_folder(cache: Path) -> Path:
    """Return the folder of the wheels in a cache; it may not exist."""
    return cache / _FOLDER


def mark_download(path: Path) -> None:
    """Note that a wheel is in use now."""
    # A folder of another user serves its wheels too; whoever owns it trims it.
    with contextlib.suppress(OSError):
        os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))


def downloads_size(cache: Path) -> tuple[int, int]:
    """Return the number of wheels and their bytes."""
    sizes = [each.size for each in _downloads(cache)]
    return len(sizes), sum(sizes)


def trim_downloads(cache: Path, *, maximum: int, keep: Path | None = None) -> EvictionResult:
    """Remove the least recently used wheels until the others fit.

    A wheel that is read meanwhile stays readable for its reader.

    Args:
        maximum: bytes of all wheels together; 0 removes all.
        keep: a wheel that stays, whatever its size.
    """
    found = sorted(_downloads(cache))
    total = remaining = sum(each.size for each in found)
    removed = 0
    for each in found:
        if remaining <= maximum:
            break
        if keep is not None and each.path == str(keep):
            continue
        with contextlib.suppress(OSError):
            os.unlink(each.path)  # noqa: PTH108 - a text, as scandir gives it
            remaining, removed = remaining - each.size, removed + 1
    return EvictionResult(
        files=len(found) - removed, size=remaining, removed=removed, freed=total - remaining
    )


def _downloads(cache: Path) -> Iterator[_Download]:
    with contextlib.suppress(OSError), os.scandir(downloads_folder(cache)) as items:
        for item in items:
            # Folders are downloads that still run.
            with contextlib.suppress(OSError):
                if item.name.endswith(".whl") and item.is_file(follow_symlinks=False):
                    status = item.stat(follow_symlinks=False)
                    used = max(status.st_atime_ns, status.st_mtime_ns)
                    yield _Download(used, item.path, status.st_size)
