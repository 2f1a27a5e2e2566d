"""Goals of the cache benchmark, compared with the measurements."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cache_bench.edits import EDITS, HARMLESS
from cache_bench.table import Goal
from cache_bench.tools import OURS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cache_bench.table import Row

_SHARE, _CPU = 0.10, 0.35
_HITS = ("warm", "touched", "elsewhere, by tar, shuffled")
_DEVICE = ("cicc", "ptxas")


def goals(rows: Sequence[Row]) -> Iterator[Goal]:
    """Yield each goal that something was measured for."""
    ours = {row.case: row for row in rows if row.tool == OURS}
    theirs = {row.case: row for row in rows if row.tool == "sccache"}
    warm, other = ours.get("CUB: warm"), theirs.get("CUB: warm")
    if warm and other:
        share = warm.took.wall / other.took.wall
        what = f"warm, the CUB file: at most {_SHARE} of sccache's wall"
        yield Goal(what=what, met=share <= _SHARE, found=f"{share:.3f}")
    if warm:
        cpu = warm.took.cpu
        what = f"warm, the CUB file: at most {_CPU} s of CPU"
        yield Goal(what=what, met=cpu <= _CPU, found=f"{cpu:.2f} s")
    for case, row in ours.items():
        yield from _steps(case, row)
    for name in EDITS:
        edit = ours.get(f"edit {name}")
        if edit is not None:
            what = f"edit {name}: rebuilt, as a fresh one"
            stale = [
                each.tool for each in rows if each.case == edit.case and each.verdict == "STALE"
            ]
            told = f"; stale: {', '.join(stale)}" if stale else ""
            yield Goal(what=what, met=edit.verdict == "rebuilt", found=edit.verdict + told)
    for name in HARMLESS:
        edit = ours.get(f"edit {name}")
        if edit is not None:
            what = f"edit {name}: nothing is compiled"
            yield Goal(what=what, met=edit.verdict == "known", found=edit.verdict)


def _steps(case: str, row: Row) -> Iterator[Goal]:
    """Yield the goals about the steps of a case."""
    ran = row.took.ran
    if case.endswith(_HITS):
        what = f"{case}: all of it known"
        met = "cache hit" in row.took.said
    elif case.endswith("a comment on top"):
        what, met = f"{case}: no device step runs", not any(map(_is_device, ran))
    elif case.endswith("one more plugin"):
        what, met = f"{case}: no step of a compilation runs", not ran
    else:
        return
    told = ", ".join(ran) if met else "; ".join(row.took.lines)
    yield Goal(what=what, met=met, found=told or "no step ran")


def _is_device(step: str) -> bool:
    return step.rpartition(": ")[2].startswith(_DEVICE)
