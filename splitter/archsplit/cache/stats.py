"""Counts of hits and misses, and the log that explains misses.

Each process appends one line of counts, without locks. The miss log has a small file for each
source, with earlier key components or miss reasons. A file that can't be written or read counts as
missing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from typing import TYPE_CHECKING, NamedTuple

from archsplit.cache.local import sorted_names
from archsplit.cache.usage import STATISTICS_FOLDER, append_counts
from archsplit.system.outputs import read_stored_file, store_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from archsplit.cache.entry import KeyComponent

LOCAL_TIER = "local"
MISS_TIER = "miss"
WHOLE_STEP = "request"
"""Step of the lookups of whole compilations."""


class LookupCount(NamedTuple):
    """Number of lookups with one result.

    Attributes:
        step: ``cicc``, or `WHOLE_STEP`.
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
    for name in sorted_names(folder):
        with contextlib.suppress(OSError):
            # A full disk leaves a torn line.
            for line in read_stored_file(folder / name)[0].splitlines():
                with contextlib.suppress(ValueError, TypeError):
                    yield from [_count(*row) for row in json.loads(line)]


def _count(
    step: object, target: object, tier: object, number: object, seconds: object
) -> LookupCount:
    if not (isinstance(number, int) and isinstance(seconds, (int, float))):
        raise TypeError("a count needs numbers")
    return LookupCount(str(step), str(target), str(tier), number, float(seconds))


_MOST_RESULTS = 8
"""Results of one source whose components are kept."""
_COMPONENTS_FOLDER, _REASONS_FOLDER = "components", "miss-reasons"

ComponentDigests = tuple[tuple[str, str], ...]


class MissLog:
    """Log of components and reasons in a store's folder.

    Args:
        folder: the folder of the store.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def previous_components(self, subject: str) -> tuple[ComponentDigests, ...]:
        """Return the components of earlier results, the latest first."""
        rows = self._read(_COMPONENTS_FOLDER, subject)
        with contextlib.suppress(TypeError, ValueError):
            return tuple(tuple((str(name), str(value)) for name, value in row) for row in rows)
        return ()

    def add_components(self, subject: str, components: tuple[KeyComponent, ...]) -> None:
        """Add the components of a result."""
        newest = tuple((name, value) for name, value in components)
        # The same components once, at the front.
        others = [row for row in self.previous_components(subject) if row != newest]
        self._write(_COMPONENTS_FOLDER, subject, [newest, *others[: _MOST_RESULTS - 1]])

    def write_reasons(self, subject: str, lines: tuple[tuple[str, str], ...]) -> None:
        """Write the miss reasons of a subject: pairs of a target, or "", and a line."""
        self._write(_REASONS_FOLDER, subject, list(lines))

    def read_reasons(self, subject: str) -> tuple[tuple[str, str], ...]:
        """Return the last miss reasons of a subject."""
        rows = self._read(_REASONS_FOLDER, subject)
        with contextlib.suppress(TypeError, ValueError):
            return tuple((str(target), str(line)) for target, line in rows)
        return ()

    def _read(self, kind: str, subject: str) -> list[list[list[str]]]:
        try:
            rows = json.loads(read_stored_file(self._path(kind, subject))[0])
        except (OSError, ValueError):
            return []
        return rows if isinstance(rows, list) else []

    def _write(self, kind: str, subject: str, rows: object) -> None:
        with contextlib.suppress(OSError):
            store_file(self._path(kind, subject), json.dumps(rows).encode())

    def _path(self, kind: str, subject: str) -> Path:
        name = hashlib.sha256(subject.encode(errors="surrogateescape")).hexdigest()
        return self._folder / kind / name
