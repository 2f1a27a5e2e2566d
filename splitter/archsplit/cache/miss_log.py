"""Small notes about what was looked for, so that a miss can be explained later."""

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
"""The folder of what is kept."""

ComponentDigests = tuple[tuple[str, str], ...]


class MissLog:
    """Notes in a store's folder; what can't be written or read isn't there.

    Args:
        folder: the store's.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def previous_components(self, subject: str) -> tuple[ComponentDigests, ...]:
        """What the latest results about a subject depended on, the latest first."""
        rows = self._read("subjects", subject)
        with contextlib.suppress(TypeError, ValueError):
            return tuple(tuple((str(name), str(value)) for name, value in row) for row in rows)
        return ()

    def add_components(self, subject: str, parts: tuple[KeyComponent, ...]) -> None:
        """A result about a subject depends on this."""
        here = tuple((part.name, part.value) for part in parts)
        others = [row for row in self.previous_components(subject) if row != here]
        self._write("subjects", subject, [here, *others[: _MOST - 1]])

    def write_reasons(self, subject: str, lines: tuple[tuple[str, str], ...]) -> None:
        """Write down what was found out about a subject: a target, or "", and a line, of each."""
        self._write("told", subject, list(lines))

    def read_reasons(self, subject: str) -> tuple[tuple[str, str], ...]:
        """What was written down last about a subject."""
        rows = self._read("told", subject)
        with contextlib.suppress(TypeError, ValueError):
            return tuple((str(target), str(line)) for target, line in rows)
        return ()

    def write_recording(self, name: str, content: bytes) -> None:
        """Keep some bytes by the name of a file; what was kept by that name before is lost."""
        self._put(self._folder / RECORDINGS_FOLDER / name, content)

    def recording_names(self) -> tuple[str, ...]:
        """The names of what is kept, sorted."""
        # A name that begins with a point is one that is being written.
        names = sorted_names(self._folder / RECORDINGS_FOLDER)
        return tuple(name for name in names if not name.startswith("."))

    def read_recording(self, name: str) -> bytes | None:
        """What is kept by a name, or None where it's gone."""
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
