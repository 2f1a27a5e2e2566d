"""Count hits and misses: each process appends one line, and nobody waits for anybody."""

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
MISS_TIER = "miss"


class LookupCount(NamedTuple):
    """How often something was looked for, and what came of it.

    Attributes:
        step: ``cicc``, or ``request`` for a whole compilation.
        target: ``sm_90``, or "".
        tier: where it was found, or `MISS_TIER`.
        number: how often.
        seconds: CPU seconds that were saved; of misses, that were spent.
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
        """Count one more."""
        with self._lock:
            number, total = self._counts.get((step, target, tier), (0, 0.0))
            self._counts[step, target, tier] = (number + 1, total + seconds)

    def counts(self) -> tuple[LookupCount, ...]:
        """All counts, sorted."""
        return tuple(LookupCount(*key, *value) for key, value in sorted(self._counts.items()))

    def save(self, folder: Path) -> None:
        """Append them to the store's statistics, and begin again; what can't be written is lost."""
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
    """The sums of all that was counted in a store; damaged lines are left out."""
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
