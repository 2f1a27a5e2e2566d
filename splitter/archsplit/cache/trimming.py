"""Keep a store below its size: what wasn't used for longest goes first."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from archsplit.cache.local import StoreKind, sorted_names
from archsplit.system.file_lock import try_lock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_DOWN_TO = 0.9
"""Of the maximum: so that the next pass isn't due at once."""
_PASS_SECONDS = 300.0
_PASS_SHARE = 0.05
_LEFT_SECONDS = 3600.0
"""Age of a temporary file or a lease whose process must be dead."""
_MARK = "trimmed"
_OTHERS = ("direct", "lease", "digests", "subjects", "told", "statistics", "repeatable", "away")


class _File(NamedTuple):
    used: float
    path: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionResult:
    """What a pass left and took: numbers of files, and bytes."""

    files: int
    size: int
    removed: int
    freed: int


def is_eviction_due(folder: Path, *, written: int, maximum: int) -> bool:
    """Whether a pass should be made by a process that has stored ``written`` bytes."""
    if written > maximum * _PASS_SHARE:
        return True
    try:
        return written > 0 and time.time() - (folder / _MARK).stat().st_mtime > _PASS_SECONDS
    except OSError:
        return written > 0


def evict(folder: Path, *, maximum: int) -> EvictionResult | None:
    """Make a pass; None when another process is at it, or none can be made.

    Nobody who reads or writes is held up: what is removed while it's read can be read to the end.
    """
    with contextlib.suppress(OSError), (folder / _MARK).open("w") as mark:
        if not try_lock(mark.fileno()):
            return None
        os.utime(folder / _MARK)
        return _trim(folder, maximum)
    return None


def _trim(folder: Path, maximum: int) -> EvictionResult:
    files = sorted(_files(folder))
    total = sum(file.size for file in files)
    limit = total if total <= maximum else int(maximum * _DOWN_TO)
    left, removed = total, 0
    for file in files:
        if left <= limit:
            break
        with contextlib.suppress(FileNotFoundError):
            os.unlink(file.path)  # noqa: PTH108 - strings, for there may be a million
        left, removed = left - file.size, removed + 1
    return EvictionResult(
        files=len(files) - removed, size=left, removed=removed, freed=total - left
    )


def store_size(folder: Path) -> tuple[int, int]:
    """How many files there are, and their bytes."""
    sizes = [file.size for file in _files(folder)]
    return len(sizes), sum(sizes)


def _files(folder: Path) -> Iterator[_File]:
    """Every file, with when it was used last; what killed processes left is removed."""
    places = [*(kind.value for kind in StoreKind), *_OTHERS]
    for place in places:
        yield from _below(folder / place)


def _below(place: Path) -> Iterator[_File]:
    with contextlib.suppress(OSError), os.scandir(place) as rows:
        for row in rows:
            with contextlib.suppress(OSError):
                status = row.stat(follow_symlinks=False)
                if row.is_dir(follow_symlinks=False):
                    yield from _below(place / row.name)
                elif _is_left(place, row.name, status.st_mtime):
                    os.unlink(row.path)  # noqa: PTH108 - see `_trim`
                else:
                    yield _File(status.st_mtime, row.path, status.st_size)


def _is_left(place: Path, name: str, written: float) -> bool:
    unfinished = name.startswith(".") or place.name == "lease"
    return unfinished and time.time() - written > _LEFT_SECONDS


def clear_store(folder: Path) -> tuple[int, int]:
    """Remove everything that is a store's; how many files, and their bytes."""
    files = list(_files(folder))
    for file in files:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(file.path)  # noqa: PTH108 - see `_trim`
    for place in [*(kind.value for kind in StoreKind), *_OTHERS]:
        for name in sorted_names(folder / place):
            with contextlib.suppress(OSError):
                (folder / place / name).rmdir()
    return len(files), sum(file.size for file in files)
