"""Durations and peaks of steps in earlier builds, as .ninja_log has them: a file per group.

The scheduler reads estimates from here and stores measurements after each run. Only speed depends
on the history, so a lost or damaged file counts as empty.
"""

from __future__ import annotations

import contextlib
import json
import re
import zlib
from typing import TYPE_CHECKING

from archsplit.scheduler.outcome import file_size
from archsplit.scheduler.schedule import StepEstimate
from archsplit.system.outputs import read_stored_file, store_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from archsplit.scheduler.graph import Graph
    from archsplit.scheduler.outcome import FinishedStep, Outcome

_SCHEMA = 1
_MOST_STEPS = 4096
_MOST_FILES = 4096


class History:
    """The durations and peaks of one group's steps, read on first use.

    A file that can't be read counts as empty; a file that can't be written is left out.

    Args:
        folder: the folder of all groups' files; made on the first write.
        group: name of the steps that share a file, such as the path of their source.
    """

    def __init__(self, folder: Path, group: str) -> None:
        self._group = group
        self._path = folder / _file_name(group)
        self._known: dict[str, StepEstimate] | None = None

    @property
    def estimates(self) -> Mapping[str, StepEstimate]:
        """Return the estimates by step key."""
        if self._known is None:
            self._known = self._read()
        return self._known

    def update(self, graph: Graph, outcome: Outcome) -> None:
        """Add the measurements of a run and write the file."""
        # Read again: another process may have written the file in between.
        known = self._known = self._read()
        for one in outcome.finished:
            step = graph.steps[one.position]
            # The farm had the result: nothing was measured.
            is_hit = one.worker_seconds == 0
            if step.key and one.attempts and not one.fault and not is_hit:
                # Moved to the end, because only the last rows are kept: unused keys get lost.
                old = known.pop(step.key, None)
                known[step.key] = merge_estimates(old, measure_step(one, step.writes))
        with contextlib.suppress(OSError):
            self._write(dict(list(known.items())[-_MOST_STEPS:]))

    def _read(self) -> dict[str, StepEstimate]:
        try:
            document = json.loads(read_stored_file(self._path)[0])
            # The file name has a short checksum, so two groups may share it.
            if (document["schema"], document["group"]) != (_SCHEMA, self._group):
                return {}
            return {str(key): _parse_row(*row) for key, row in document["steps"].items()}
        except (OSError, ValueError, TypeError, LookupError, AttributeError):
            return {}

    def _write(self, known: Mapping[str, StepEstimate]) -> None:
        document = {"schema": _SCHEMA, "group": self._group, "steps": known}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # Only a new group can exceed the limit.
        if not self._path.exists():
            _evict_groups(self._path.parent)
        store_file(self._path, json.dumps(document, separators=(",", ":")).encode())


def _evict_groups(folder: Path) -> None:
    """Delete the least recently built quarter of the groups if there are too many."""
    files = list(folder.glob("*.json"))
    if len(files) >= _MOST_FILES:
        files.sort(key=lambda path: path.stat().st_mtime)
        for path in files[: len(files) // 4]:
            path.unlink(missing_ok=True)


def measure_step(one: FinishedStep, writes: Iterable[Path] = ()) -> StepEstimate:
    """Return the measurements of a finished step.

    Args:
        one: the step; its seconds are those on one core.
        writes: its outputs.
    """
    if one.worker_seconds is not None:
        # Its outputs may have stayed there.
        return StepEstimate(round(one.worker_seconds, 3), one.peak_memory)
    seconds = one.seconds if one.cores == 1 else one.cpu_seconds
    return StepEstimate(round(seconds, 3), one.peak_memory, tuple(map(file_size, writes)))


def merge_estimates(old: StepEstimate | None, new: StepEstimate) -> StepEstimate:
    """Blend a measurement into an estimate: memory rises at once and falls slowly."""
    if old is None:
        return new
    falling = old.memory - (old.memory - new.memory) // 4
    # No farm measures memory.
    memory = max(new.memory, falling) if new.memory else old.memory
    seconds = round((old.seconds + new.seconds) / 2, 3)
    return StepEstimate(seconds, memory, new.sizes or old.sizes)


def _parse_row(seconds: object, memory: object, sizes: object = ()) -> StepEstimate:
    if not isinstance(seconds, (int, float)) or not isinstance(memory, int):
        raise TypeError("a step's row is damaged")
    if not (0 <= seconds < float("inf")) or memory < 0:
        raise ValueError("a step's row is damaged")
    # Rows of earlier versions have no sizes.
    if not isinstance(sizes, (list, tuple)) or not all(isinstance(size, int) for size in sizes):
        raise TypeError("a step's sizes are damaged")
    return StepEstimate(float(seconds), memory, tuple(sizes))


def _file_name(group: str) -> str:
    readable = re.sub(r"[^A-Za-z0-9_.-]+", "-", group)[-60:].lstrip(".-")
    return f"{readable}-{zlib.crc32(group.encode(errors='surrogateescape')):08x}.json"
