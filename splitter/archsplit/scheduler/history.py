"""What steps took in earlier builds: a small file per group of steps, which may get lost."""

from __future__ import annotations

import contextlib
import json
import re
import zlib
from typing import TYPE_CHECKING

from archsplit.scheduler.estimates import StepEstimate
from archsplit.system.fs import store_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from archsplit.scheduler.graph import Graph
    from archsplit.scheduler.outcome import FinishedStep, Outcome

_SCHEMA = 1
_MOST_STEPS = 4096
_MOST_FILES = 4096


class History:
    """The durations and peaks of one group's steps, read at the first question.

    Nothing depends on it but speed: a file that can't be read counts as none, and one that can't
    be written stays away.

    Args:
        folder: where the files of all groups are; made when something is saved.
        group: what is built again and again with the same steps, such as the path of a source.
    """

    def __init__(self, folder: Path, group: str) -> None:
        self._group = group
        self._path = folder / _file_name(group)
        self._known: dict[str, StepEstimate] | None = None

    @property
    def estimates(self) -> Mapping[str, StepEstimate]:
        """What is known of each step, by its key."""
        if self._known is None:
            self._known = self._read()
        return self._known

    def update(self, graph: Graph, outcome: Outcome) -> None:
        """Take in what a run's steps took, and save it."""
        # Read again, for another process may have saved something in between.
        known = self._known = self._read()
        for one in outcome.finished:
            key = graph.steps[one.position].key
            if key and one.attempts and not one.fault:
                # The last ones are kept, so what is no longer built gets forgotten.
                known[key] = merge_estimates(known.pop(key, None), measure_step(one))
        with contextlib.suppress(OSError):
            self._write(dict(list(known.items())[-_MOST_STEPS:]))

    def _read(self) -> dict[str, StepEstimate]:
        try:
            document = json.loads(self._path.read_bytes())
            if (document["schema"], document["group"]) != (_SCHEMA, self._group):
                return {}
            return {str(key): _known(*row) for key, row in document["steps"].items()}
        except (OSError, ValueError, TypeError, LookupError, AttributeError):
            return {}

    def _write(self, known: Mapping[str, StepEstimate]) -> None:
        document = {"schema": _SCHEMA, "group": self._group, "steps": known}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if not self._path.exists():
            _make_place(self._path.parent)
        store_file(self._path, json.dumps(document, separators=(",", ":")).encode())


def _make_place(folder: Path) -> None:
    """Forget the groups that weren't built for the longest time, when there are too many."""
    files = list(folder.glob("*.json"))
    if len(files) >= _MOST_FILES:
        files.sort(key=lambda path: path.stat().st_mtime)
        for path in files[: len(files) // 4]:
            path.unlink(missing_ok=True)


def measure_step(one: FinishedStep) -> StepEstimate:
    """What a step took, as if it had run on one core."""
    seconds = one.seconds if one.cores == 1 else one.cpu_seconds
    return StepEstimate(round(seconds, 3), one.peak_memory)


def merge_estimates(old: StepEstimate | None, new: StepEstimate) -> StepEstimate:
    """Add a measurement: durations follow halfway, memory follows at once up and slowly down."""
    if old is None:
        return new
    memory = max(new.memory, old.memory - (old.memory - new.memory) // 4)
    return StepEstimate(round((old.seconds + new.seconds) / 2, 3), memory)


def _known(seconds: object, memory: object) -> StepEstimate:
    if not isinstance(seconds, (int, float)) or not isinstance(memory, int):
        raise TypeError("a step's row is damaged")
    if not (0 <= seconds < float("inf")) or memory < 0:
        raise ValueError("a step's row is damaged")
    return StepEstimate(float(seconds), memory)


def _file_name(group: str) -> str:
    readable = re.sub(r"[^A-Za-z0-9_.-]+", "-", group)[-60:].lstrip(".-")
    return f"{readable}-{zlib.crc32(group.encode(errors='surrogateescape')):08x}.json"
