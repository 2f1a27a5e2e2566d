"""Goals of the nvcc benchmark, compared with the measurements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nvcc_bench.builds import FAT_LIBRARY, LEARNED, LIBRARIES, ONE_PROCESS, WHEELS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nvcc_bench.runs import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A number that must not be above its limit."""

    what: str
    value: float
    limit: float

    @property
    def met(self) -> bool:
        """True if the value is within the limit."""
        return self.value <= self.limit


def single_file(rows: Sequence[Row], limit: float) -> Iterator[Goal]:
    """Compare the wall time of archsplit with its fastest peer."""
    ours = _of(rows, LEARNED)
    peers = [row for row in rows if not row.ours and not row.trouble]
    if ours and peers:
        best = min(peers, key=lambda row: row.wall)
        what = f"{ours.case}: wall against the best peer ({best.build})"
        yield Goal(what=what, value=ours.wall / best.wall, limit=limit)


def many_files(rows: Sequence[Row], *, critical_path: float, cores: int) -> Iterator[Goal]:
    """Compare the wall time with the least that a schedule can take, and with the best peer."""
    peers = [row for row in rows if not row.ours and not row.trouble]
    for name in (f"make -j, {LEARNED}", ONE_PROCESS):
        ours = _of(rows, name)
        if not ours:
            continue
        floor = max(critical_path, ours.cpu / cores)
        what = f"{ours.case}: {name}: wall against max(critical path {critical_path:.1f} s,"
        what += f" CPU seconds / cores {ours.cpu / cores:.1f} s)"
        yield Goal(what=what, value=ours.wall / floor, limit=1.10)
        if peers:
            best = min(peers, key=lambda row: row.wall)
            what = f"{ours.case}: {name}: wall against the best peer ({best.build})"
            yield Goal(what=what, value=ours.wall / best.wall, limit=1.0)


def split(rows: Sequence[Row]) -> Iterator[Goal]:
    """Compare the CPU seconds of the wheels with one fat library, and with one build a target."""
    ours = _of(rows, WHEELS)
    for name, limit in ((FAT_LIBRARY, 1.05), (LIBRARIES, 0.65)):
        peer = _of(rows, name)
        if ours and peer:
            what = f"{ours.case}: CPU against {name}"
            yield Goal(what=what, value=ours.cpu / peer.cpu, limit=limit)


def _of(rows: Sequence[Row], name: str) -> Row | None:
    found = (row for row in rows if row.build == name and not row.trouble)
    return next(found, None)
