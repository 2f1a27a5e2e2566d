"""Counts of hits and misses: each process appends one line, without locks."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_FOLDER = "statistics"
LOCAL_TIER = "local"
MISS_TIER = "miss"


class LookupCount(NamedTuple):
    """Number of lookups with one result.

    Attributes:
        step: ``cicc``, or ``request`` for a whole compilation.
        target: ``sm_90``, or "".
        tier: the store of the hits, or `MISS_TIER`.
        number: number of lookups.
        seconds: CPU seconds saved by hits, or spent after misses.
    """

    step: str
    target: str
    tier: str
    number: int
    seconds: float


class CacheStats:
    """The counts of one process."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, str], tuple[int, float]] = {}
        self._lock = threading.Lock()

    def add(self, step: str, target: str, tier: str, seconds: float) -> None:
        """Add a lookup."""
        with self._lock:
            number, total = self._counts.get((step, target, tier), (0, 0.0))
            self._counts[step, target, tier] = (number + 1, total + seconds)

    def counts(self) -> tuple[LookupCount, ...]:
        """Return all counts, sorted."""
        return tuple(LookupCount(*key, *value) for key, value in sorted(self._counts.items()))

    def save(self, folder: Path) -> None:
        """Append the counts to the store's file and reset them; ignore a failed write."""
        rows = self.counts()
        self._counts.clear()
        if not rows:
            return
        month = time.strftime("%Y-%m", time.gmtime())
        path = folder / _FOLDER / f"{os.uname().nodename}-{month}"
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            try:
                os.write(descriptor, json.dumps(rows).encode() + b"\n")
            finally:
                os.close(descriptor)


def read_counts(folder: Path) -> tuple[LookupCount, ...]:
    """Return the sums of a store's counts without damaged lines."""
    sums: dict[tuple[str, str, str], tuple[int, float]] = {}
    for row in _rows(folder / _FOLDER):
        number, seconds = sums.get(row[:3], (0, 0.0))
        sums[row[:3]] = (number + row.number, seconds + row.seconds)
    return tuple(LookupCount(*key, *value) for key, value in sorted(sums.items()))


def _rows(folder: Path) -> Iterator[LookupCount]:
    with contextlib.suppress(OSError):
        for path in sorted(folder.iterdir()):
            for line in path.read_text(errors="replace").splitlines():
                with contextlib.suppress(ValueError, TypeError):
                    yield from [_count(*row) for row in json.loads(line)]


def _count(
    step: object, target: object, tier: object, number: object, seconds: object
) -> LookupCount:
    if not (isinstance(number, int) and isinstance(seconds, (int, float))):
        raise TypeError("a count needs numbers")
    return LookupCount(str(step), str(target), str(tier), number, float(seconds))
