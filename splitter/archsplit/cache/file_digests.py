"""SHA-256 of files, without a second read of unchanged ones.

A digest is cached with the file's size, inode and times, only for this machine. It is not cached
for a file that changed shortly before it was read: a second change might not show in its times.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import TYPE_CHECKING, Any

from archsplit.cache.usage import file_digest, is_reliable, stat_text
from archsplit.system.outputs import read_stored_file, store_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_MOST_ROWS = 20_000


class FileDigests:
    """Digests of files, cached from process to process.

    Args:
        folder: folder of the cached digests; None to cache nothing.

    Attributes:
        folder: folder of this machine's digests; None to cache nothing.
        began: nanoseconds since 1970; no file was compared with its digest before this time.
    """

    def __init__(self, folder: Path | None) -> None:
        self.began = time.time_ns()
        self.folder = None if folder is None else folder / os.uname().nodename
        self._cached: dict[str, tuple[str, str]] = {}
        self._new: dict[str, dict[str, tuple[str, str]]] = {}
        self._checked: dict[str, str | None] = {}

    def load(self, group: str) -> None:
        """Load the cached digests of a group; a damaged file counts as empty."""
        if self.folder is None:
            return
        with contextlib.suppress(ValueError, TypeError):
            for path, (file_stat, digest) in read_rows(self.folder / group).items():
                self._cached[path] = (str(file_stat), str(digest))

    def digest(self, path: str, *, group: str) -> str | None:
        """Return the digest of a file, or None for one that can't be read.

        Args:
            path: absolute path.
            group: name of the file in which the digest is cached.
        """
        if path not in self._checked:
            self._checked[path] = self._find(path, group)
        return self._checked[path]

    def recheck(self) -> None:
        """Check all files again: they may have changed since the last check."""
        self._checked.clear()

    def save(self) -> None:
        """Write the new digests; what can't be written is computed again next time."""
        if self.folder is None:
            return
        for group, rows in self._new.items():
            add_rows(self.folder / group, rows)
        self._new.clear()

    def _find(self, path: str, group: str) -> str | None:
        try:
            file_stat = stat_text(path)
            known = self._cached.get(path)
            if file_stat and known is not None and known[0] == file_stat:
                return known[1]
            digest = file_digest(path)
        except OSError:
            return None
        # The file changed while it was read: the hashed bytes are unknown.
        if not file_stat or stat_text(path) != file_stat:
            return None
        if is_reliable(file_stat, since=time.time_ns()):
            self._new.setdefault(group, {})[path] = self._cached[path] = (file_stat, digest)
        return digest


def read_rows(path: Path | str) -> dict[str, Any]:
    """Return the rows of a file by name; a damaged file counts as empty."""
    try:
        rows = json.loads(read_stored_file(path)[0])
    except (OSError, ValueError):
        return {}
    return rows if isinstance(rows, dict) else {}


def add_rows(path: Path | str, rows: Mapping[str, object], *, most: int = _MOST_ROWS) -> None:
    """Add rows to a file; keep the newest ones, and ignore a failed write."""
    # Another process may have stored rows since they were read.
    merged = {**read_rows(path), **rows}
    # The newest last: old ones are of files that are gone.
    kept = dict(list(merged.items())[-most:])
    with contextlib.suppress(OSError):
        store_file(path, json.dumps(kept).encode())
