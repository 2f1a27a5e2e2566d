"""Miss log: earlier key components of each source, by which a miss can be explained.

A folder of small files beside the store. Input are key components, miss reasons and recordings of
commands; output are the same, by source. What can't be written or read counts as missing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from typing import TYPE_CHECKING

from archsplit.cache.local import sorted_names
from archsplit.system.fs import store_file

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.cache.keys import KeyComponent

_MOST = 8
RECORDINGS_FOLDER = "repeatable"
"""Folder of the recordings."""

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
        rows = self._read("subjects", subject)
        with contextlib.suppress(TypeError, ValueError):
            return tuple(tuple((str(name), str(value)) for name, value in row) for row in rows)
        return ()

    def add_components(self, subject: str, parts: tuple[KeyComponent, ...]) -> None:
        """Add the components of a result."""
        here = tuple((part.name, part.value) for part in parts)
        # The same components once, at the front.
        others = [row for row in self.previous_components(subject) if row != here]
        self._write("subjects", subject, [here, *others[: _MOST - 1]])

    def write_reasons(self, subject: str, lines: tuple[tuple[str, str], ...]) -> None:
        """Write the miss reasons of a subject: pairs of a target, or "", and a line."""
        self._write("told", subject, list(lines))

    def read_reasons(self, subject: str) -> tuple[tuple[str, str], ...]:
        """Return the last miss reasons of a subject."""
        rows = self._read("told", subject)
        with contextlib.suppress(TypeError, ValueError):
            return tuple((str(target), str(line)) for target, line in rows)
        return ()

    def write_recording(self, name: str, content: bytes) -> None:
        """Write a recording, and replace an earlier one of this name."""
        self._put(self._folder / RECORDINGS_FOLDER / name, content)

    def recording_names(self) -> tuple[str, ...]:
        """Return the names of all recordings, sorted."""
        # A name with a leading dot is a file that is being written.
        names = sorted_names(self._folder / RECORDINGS_FOLDER)
        return tuple(name for name in names if not name.startswith("."))

    def read_recording(self, name: str) -> bytes | None:
        """Return a recording, or None for a missing one."""
        try:
            return (self._folder / RECORDINGS_FOLDER / name).read_bytes()
        except OSError:
            return None

    def _read(self, kind: str, subject: str) -> list[list[list[str]]]:
        try:
            rows = json.loads(self._path(kind, subject).read_bytes())
        except (OSError, ValueError):
            return []
        return rows if isinstance(rows, list) else []

    def _write(self, kind: str, subject: str, rows: object) -> None:
        self._put(self._path(kind, subject), json.dumps(rows).encode())

    def _put(self, path: Path, content: bytes) -> None:
        with contextlib.suppress(OSError):
            store_file(path, content)

    def _path(self, kind: str, subject: str) -> Path:
        name = hashlib.sha256(subject.encode(errors="surrogateescape")).hexdigest()
        return self._folder / kind / name
