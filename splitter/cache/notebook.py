"""Small notes about what was looked for, so that a miss can be explained later."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from splitter.cache.parts import Part

_MOST = 8

Parts = tuple[tuple[str, str], ...]


class Notebook:
    """Notes in a store's folder; what can't be written or read isn't there.

    Args:
        folder: the store's.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def earlier(self, subject: str) -> tuple[Parts, ...]:
        """What the latest results about a subject depended on, the latest first."""
        rows = self._read("subjects", subject)
        with contextlib.suppress(TypeError, ValueError):
            return tuple(tuple((str(name), str(value)) for name, value in row) for row in rows)
        return ()

    def add(self, subject: str, parts: tuple[Part, ...]) -> None:
        """A result about a subject depends on this."""
        here = tuple((part.name, part.value) for part in parts)
        others = [row for row in self.earlier(subject) if row != here]
        self._write("subjects", subject, [here, *others[: _MOST - 1]])

    def tell(self, subject: str, lines: tuple[tuple[str, str], ...]) -> None:
        """Write down what was found out about a subject: a target, or "", and a line, of each."""
        self._write("told", subject, list(lines))

    def told(self, subject: str) -> tuple[tuple[str, str], ...]:
        """What was written down last about a subject."""
        rows = self._read("told", subject)
        with contextlib.suppress(TypeError, ValueError):
            return tuple((str(target), str(line)) for target, line in rows)
        return ()

    def _read(self, kind: str, subject: str) -> list[list[list[str]]]:
        try:
            rows = json.loads(self._path(kind, subject).read_bytes())
        except (OSError, ValueError):
            return []
        return rows if isinstance(rows, list) else []

    def _write(self, kind: str, subject: str, rows: object) -> None:
        path = self._path(kind, subject)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(rows))
            temporary.replace(path)

    def _path(self, kind: str, subject: str) -> Path:
        name = hashlib.sha256(subject.encode(errors="surrogateescape")).hexdigest()
        return self._folder / kind / name
