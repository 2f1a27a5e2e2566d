"""The journal of the changes to an index; a line is never changed.

The index itself is queried each time; nothing depends on the journal alone. The journal adds the
facts that an index doesn't list: the names that are new since yesterday, also of other releases,
and the time before which the index wants no request. It has names, digests and times, and no
credentials.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from archsplit.errors import DiskFullError, OutputError
from archsplit.index.retry import utc_text
from archsplit.system.file_lock import try_lock
from archsplit.system.fs import sync_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from archsplit.index.retry import Clock

PUBLISH_JOURNAL_SCHEMA = 1

REGISTERING, UPLOADING, UPLOADED, FAILED, LIVE = (
    *("registering", "uploading", "uploaded"),
    *("failed", "live"),
)
"""The events of a journal; ``registering`` is the first upload to a project that wasn't there."""


def journal_file(folder: Path, index: str) -> Path:
    """Return the path of an index's journal."""
    # The digest makes the name unique; the host is for people who look into the folder.
    host = re.sub(r"[^a-z0-9.-]", "", urlsplit(index).hostname or "")
    return folder / f"{host}-{hashlib.sha256(index.encode()).hexdigest()[:8]}.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishJournal:
    """The journal of one index, held by one process."""

    path: Path
    clock: Clock = field(repr=False)

    def add(self, event: str, **facts: object) -> None:
        """Add a line; it is on the disk when this returns.

        Raises:
            OutputError: the line can't be written.
            DiskFullError: no space is left.
        """
        now = utc_text(self.clock.now())
        line = json.dumps(
            {"schema": PUBLISH_JOURNAL_SCHEMA, "time": now, "event": event, **facts}, sort_keys=True
        )
        with _journal_errors(self.path):
            descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                _write(descriptor, _missing_line_break(descriptor) + line.encode() + b"\n")
                # The index counts a name as used even if this process dies before the line is on
                # the disk.
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


@contextlib.contextmanager
def held_journal(path: Path, clock: Clock) -> Iterator[PublishJournal]:
    """Lock a journal for one process; a killed process releases the lock.

    Raises:
        OutputError: another process publishes there, or the folder can't be written.
    """
    with _journal_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # A lock file of its own: the user may move or remove the journal.
        descriptor = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _lock(descriptor, path)
        _begin(path)
        yield PublishJournal(path=path, clock=clock)
    finally:
        os.close(descriptor)


def registered(path: Path) -> Mapping[str, datetime]:
    """Return the times of registrations and attempts; none without a journal.

    An unreadable line was torn by a crash; the index itself shows the result of that upload.
    """
    try:
        lines = path.read_bytes().splitlines()
    # The first release has no journal.
    except OSError:
        return {}
    found: dict[str, datetime] = {}
    for line in lines:
        with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
            row = json.loads(line)
            # Also an attempt without a result counts: the index may have registered the name.
            if row["event"] == REGISTERING:
                found[str(row["project"])] = _time(row["time"])
    return found


@contextlib.contextmanager
def _journal_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # A full disk has its own exit code, because another folder doesn't help with it.
        kind = DiskFullError if error.errno in {errno.ENOSPC, errno.EDQUOT} else OutputError
        raise kind(
            f"can't write the journal {path}: {error.strerror}",
            hint="set ARCHSPLIT_STATE_DIR to a folder that can be written",
        ) from error


def _time(text: str) -> datetime:
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S%z")


def _missing_line_break(descriptor: int) -> bytes:
    """Return a line break if a crash cut off the last line."""
    size = os.fstat(descriptor).st_size
    return b"\n" if size and os.pread(descriptor, 1, size - 1) != b"\n" else b""


def _write(descriptor: int, content: bytes) -> None:
    while content:
        # A nearly full disk or a signal can make a write short.
        content = content[os.write(descriptor, content) :]


def _begin(path: Path) -> None:
    """Create a journal, and sync its folder: a power cut must not lose the file's name."""
    if path.exists():
        return
    with _journal_errors(path):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
        sync_folder(path.parent)


def _lock(descriptor: int, path: Path) -> None:
    try:
        is_ours = try_lock(descriptor)
    except OSError:
        # Some network file systems know no locks; the index refuses a second file of one name.
        return
    if not is_ours:
        raise OutputError(
            f"another archsplit publishes to the same index (it holds {path.with_suffix('.lock')})",
            hint="wait for its end, and run the same command again",
        )
