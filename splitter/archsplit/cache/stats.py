"""Counts of hits and misses: each process appends one line, without locks."""

from __future__ import annotations

import contextlib
import json
import threading
from typing import TYPE_CHECKING, NamedTuple

from archsplit.cache.usage import STATISTICS_FOLDER, append_counts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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
        # A second call must not count them again.
        self._counts.clear()
        if not rows:
            return
        append_counts(folder, json.dumps(rows))


def read_counts(folder: Path) -> tuple[LookupCount, ...]:
    """Return the sums of a store's counts without damaged lines."""
    sums: dict[tuple[str, str, str], tuple[int, float]] = {}
    for row in _rows(folder / STATISTICS_FOLDER):
        number, seconds = sums.get(row[:3], (0, 0.0))
        sums[row[:3]] = (number + row.number, seconds + row.seconds)
    return tuple(LookupCount(*key, *value) for key, value in sorted(sums.items()))


def _rows(folder: Path) -> Iterator[LookupCount]:
    with contextlib.suppress(OSError):
        for path in sorted(folder.iterdir()):
            # A line may be torn where the disk was full.
            for line in path.read_text(errors="replace").splitlines():
                with contextlib.suppress(ValueError, TypeError):
                    yield from [_count(*row) for row in json.loads(line)]


def _count(
    step: object, target: object, tier: object, number: object, seconds: object
) -> LookupCount:
    if not (isinstance(number, int) and isinstance(seconds, (int, float))):
        raise TypeError("a count needs numbers")
    return LookupCount(str(step), str(target), str(tier), number, float(seconds))
