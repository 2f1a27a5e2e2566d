"""The use of a store, and the times of files, by which changes show.

Counts are appended to one file of a machine and month, without locks. Each hit of the compiler
wrapper needs this module, so it imports nothing that Python's start hasn't imported.
"""

from __future__ import annotations

import os
import stat
import time

from archsplit.cache.sealed_blob import sha256_digest
from archsplit.system.mounts import device_identity

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MODE = "ARCHSPLIT_CACHE"
"""Variable with the mode of the cache."""
STATISTICS_FOLDER = "statistics"
TOUCH_SECONDS = 3600.0
"""Least seconds between two updates of a file's last use: each is a write."""


def append_counts(folder: Path | str, line: str) -> None:
    """Append a line to the store's file of counts; ignore a failed write."""
    statistics = os.path.join(folder, STATISTICS_FOLDER)
    month = time.strftime("%Y-%m", time.gmtime())
    path = os.path.join(statistics, f"{os.uname().nodename}-{month}")
    # A FIFO would wait for a reader.
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK
    try:
        try:
            descriptor = os.open(path, flags, 0o666)
        except FileNotFoundError:
            os.makedirs(statistics, exist_ok=True)
            descriptor = os.open(path, flags, 0o666)
        try:
            os.write(descriptor, f"{line}\n".encode())
        finally:
            os.close(descriptor)
    except OSError:
        # Counts are for people: no build stops for them.
        return


def mark_used(path: Path | str, last_used: float | None = None) -> None:
    """Update a file's time of last use if that is over an hour ago.

    Args:
        last_used: the old time in seconds since 1970; None to read it from the file.
    """
    try:
        before = os.stat(path).st_mtime if last_used is None else last_used
        if time.time() - before > TOUCH_SECONDS:
            os.utime(path)
    except OSError:
        # Another user's store, or a read-only one: only its owner evicts.
        return


_BLOCK = 1 << 18
"""Bytes per read of a tool."""
TOO_NEW_NS = 2_000_000_000
"""Age of a file from which its times show each change: clocks of file systems are coarse."""


def stat_text(path: str) -> str:
    """Return a file's size, inode, times and file system, which change when the file does.

    A link counts as its target. "" stands for a missing file.
    """
    try:
        status = os.stat(path)
    except OSError:
        return ""
    return (
        f"{status.st_size} {status.st_ino} {status.st_mtime_ns} {status.st_ctime_ns}"
        f" {device_identity(status.st_dev)}"
    )


def reliable_stat(path: str, *, since: int) -> str:
    """Return the stat of a file; "" for one that may change without a new stat.

    Args:
        since: nanoseconds since 1970 at which, or after which, the file was read.
    """
    file_stat = stat_text(path)
    return file_stat if file_stat and is_reliable(file_stat, since=since) else ""


def is_reliable(file_stat: str, *, since: int) -> bool:
    """Return True if each later change of a file changes its stat; see `reliable_stat`."""
    _, _, modified, changed, identity = map(int, file_stat.split())
    # A change shortly before the read may have left the same times as one after it. A negative
    # identity is this process's own.
    return max(modified, changed) < since - TOO_NEW_NS and identity >= 0


_SLACK_NS = 20_000_000
"""A file system's times may lag behind the clock by a tick."""


def has_changed(path: str, since: int) -> bool:
    """Return True if a file may have changed since a time, or is gone."""
    try:
        status = os.lstat(path)
        newest = max(status.st_mtime_ns, status.st_ctime_ns)
        # A link may have been turned to a file that is old.
        if stat.S_ISLNK(status.st_mode):
            status = os.stat(path)
            newest = max(newest, status.st_mtime_ns, status.st_ctime_ns)
    except OSError:
        return True
    return newest > since - _SLACK_NS


def current_files(files: Sequence[str]) -> list[str] | None:
    """Return files with their present times; None if a content has changed.

    Args:
        files: of each file its path, digest and stat, one after the other.
    """
    since = time.time_ns()
    file_stats = list(map(stat_text, files[::3]))
    if file_stats == files[2::3] and all(file_stats):
        return [*files]
    current: list[str] = []
    known = zip(files[::3], files[1::3], files[2::3], file_stats, strict=True)
    for path, digest, file_stat, now in known:
        if now != file_stat or not now:
            # "" is the digest of a file that wasn't there.
            if (_digest(path) if now else "") != digest or stat_text(path) != now:
                return None
            current += (path, digest, reliable_stat(path, since=since))
        else:
            current += (path, digest, now)
    return current


def _digest(path: str) -> str:
    try:
        return file_digest(path)
    except OSError:
        return ""


def file_digest(path: str) -> str:
    """Return the SHA-256 of a file's content, as hexadecimal digits.

    Raises:
        OSError: the file can't be read.
    """
    with open(path, "rb", buffering=0) as file:
        if os.fstat(file.fileno()).st_size <= _BLOCK:
            return sha256_digest(file.read()).hex()
        from hashlib import sha256

        # A tool has 90 MB, and new memory for each of them takes as long as to hash it.
        digest, block = sha256(), memoryview(bytearray(_BLOCK))
        while size := file.readinto(block):
            digest.update(block[:size])
        return digest.hexdigest()
