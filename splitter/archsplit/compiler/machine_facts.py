"""Facts of this machine: replies of its compilers, and times of its files.

A reply is what a compiler prints about itself, as for ``gcc -###``; all processes share a cache of
replies. A direct record (`archsplit.compiler.direct_hit`) of another machine, which came with a
restored cache, has the times of its machine's files. It is used here, with the times of this
machine's files, if each file has the same content, and if the compilers give the same replies. In a
new container, many compilations start at once: one of them asks the compilers and reads the tools,
200 MB, and the others wait for its results.

A direct hit imports this module only for such records.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from typing import TYPE_CHECKING, NamedTuple

from archsplit.cache.entry import KeyComponent, compute_key, environment_components
from archsplit.cache.file_digests import add_rows, read_rows
from archsplit.cache.usage import (
    MODE,
    TOO_NEW_NS,
    current_files,
    has_changed,
    is_reliable,
    stat_text,
)
from archsplit.nvcc.variables import EPOCH, hashed_variables
from archsplit.system.file_lock import LockedFolder
from archsplit.system.outputs import read_stored_file, store_file
from archsplit.system.patterns import lazy_pattern

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    Record = Mapping[str, list[str]]
    """Sections of a direct record."""

PROGRAM_GROUP = "programs"
"""Group (a file of cached digests) of programs, which all requests share."""
_FILE_GROUP = "files"
"""Group of files outside of checkouts, which records of other machines name."""


_ABSOLUTE_QUERY = lazy_pattern(
    r"(?:[\w.+-]+|/\S*)(?: (?:-(?:I|B|isystem|iquote|idirafter) ?/\S*|-###|-print-[\w=+-]+|-[Ev]"
    r"|-m\d+|-x c(?:\+\+)?|/\S*))*"
)
"""A query to a compiler without a relative path."""
_PATHLESS_NAMES = ("LANG", "LC_", EPOCH)
"""Beginnings of the names of variables that have no paths."""


class StoredReply(NamedTuple):
    """A reply that is still right.

    Attributes:
        reply: the text, or its digest.
        file_stats: stats of the files that it depends on, by path; "" for a missing file.
    """

    reply: str
    file_stats: Mapping[str, str]


class ReplyCache:
    """Compilers' replies, cached by query and environment.

    Args:
        folder: a folder that only this machine uses; None to cache nothing.
        cwd: working folder of the queries.
    """

    def __init__(self, folder: Path | str | None, *, cwd: Path | str) -> None:
        self._folder = folder
        self._cwd = str(cwd)
        self._found: dict[str, StoredReply] = {}

    def recheck(self) -> None:
        """Check all files again: they may have changed since the last check."""
        self._found.clear()

    def find(self, query: str, environment: Mapping[str, str]) -> StoredReply | None:
        """Return the reply to a query; None if the compiler must be asked."""
        path = self._path(query, environment)
        if path is None or path in self._found:
            return self._found.get(path or "")
        try:
            row = json.loads(read_stored_file(path)[0])
            file_stats = {path: stat_text(path) for path in row["file_stats"]}
            folders = {folder: _folder_identity(folder) for folder in row["folders"]}
            is_same = (row["file_stats"], row["folders"]) == (file_stats, folders)
            reply = row["reply"]
        except (OSError, ValueError, TypeError, KeyError):
            return None
        found = StoredReply(reply, file_stats) if is_same and isinstance(reply, str) else None
        return found and self._found.setdefault(path, found)

    def store(
        self,
        query: str,
        environment: Mapping[str, str],
        reply: str,
        *,
        files: Iterable[str],
        folders: Iterable[str] = (),
        since: int,
    ) -> None:
        """Cache a reply.

        Args:
            files: files that the reply depends on, existing or missing.
            folders: folders on whose identity, not content, the reply depends.
            since: start of the query, in nanoseconds since 1970.
        """
        path = self._path(query, environment)
        file_stats = {file: stat_text(file) for file in files}
        paths = [os.path.join(self._cwd, folder) for folder in folders]
        # A file that has changed since the query may differ from what the compiler read.
        is_same = all(
            is_reliable(file_stat, since=since) for file_stat in file_stats.values() if file_stat
        )
        existing = filter(os.path.lexists, paths)
        if (
            path is None
            or not is_same
            or any(has_changed(each, since - TOO_NEW_NS) for each in existing)
        ):
            return
        found = {each: _folder_identity(each) for each in paths}
        row = {"reply": reply, "file_stats": file_stats, "folders": found}
        with contextlib.suppress(OSError):
            store_file(path, json.dumps(row).encode())

    def _path(self, query: str, environment: Mapping[str, str]) -> str | None:
        if self._folder is None:
            return None
        names, search = hashed_variables(environment), environment.get("PATH", "")
        # Without relative paths, the reply is the same in all folders.
        is_absolute = (
            _ABSOLUTE_QUERY.fullmatch(query) is not None
            and all(folder.startswith("/") for folder in search.split(os.pathsep))
            and all(name.startswith(_PATHLESS_NAMES) for name in names)
        )
        parts = (
            KeyComponent("query", query),
            KeyComponent("folder", "" if is_absolute else self._cwd),
            KeyComponent("PATH", search),
            *variable_components(environment),
        )
        return os.path.join(self._folder, f"reply-{compute_key(parts)}")


def variable_components(env: Mapping[str, str], **selection: bool) -> tuple[KeyComponent, ...]:
    """Return the variables of `hashed_variables`, as components of a key."""
    return environment_components(env, hashed_variables(env, **selection))


def _folder_identity(path: str) -> str:
    """Return device, inode and type of a folder, without its content; "" for none."""
    try:
        status = os.stat(path)
    except OSError:
        return ""
    return f"{status.st_dev} {status.st_ino} {stat.S_ISDIR(status.st_mode)}"


def adapt_record(
    record: Record,
    store: str,
    environment: Mapping[str, str],
    *,
    bases: Sequence[str],
    ask: Callable[[Record, str, Mapping[str, str]], None],
) -> dict[str, list[str]] | None:
    """Return a record of another machine with the times of this machine's files.

    Args:
        record: its sections.
        store: the folder of the store.
        environment: the invocation's.
        bases: the folders of ``base-dir``; times of files below them aren't cached for others.
        ask: repeats the record's queries, so that this machine's replies are cached.

    Returns:
        None if a file has another content, or if a compiler has another reply.
    """
    folder = os.path.join(store, "digests", os.uname().nodename)
    is_writable = environment.get(MODE, "on") == "on"
    with contextlib.ExitStack() as lock:
        # The first process of a new machine fills the cache of facts; the others wait.
        if not os.path.exists(f"{folder}/{_FILE_GROUP}"):
            lock.enter_context(LockedFolder(store))
        replies = ReplyCache(folder, cwd=record["machine"][1])
        queries = record["replies"][::2]
        if is_writable and None in (replies.find(query, environment) for query in queries):
            ask(record, store, environment)
        stored = [replies.find(query, environment) for query in queries]
        if [reply and reply.reply for reply in stored] != record["replies"][1::2]:
            return None
        stats = (pair for reply in stored if reply for pair in reply.file_stats.items())
        known = read_rows(f"{folder}/{PROGRAM_GROUP}") | read_rows(f"{folder}/{_FILE_GROUP}")
        texts: list[str] = []
        for path, digest in zip(record["files"][::3], record["files"][1::3], strict=True):
            row = known.get(path)
            # A file without a stat is read, and its content compared.
            file_stat = row[0] if isinstance(row, list) and row[1:] == [digest] else ""
            texts += (path, digest, str(file_stat))
        if (files := current_files(texts)) is None:
            return None
        inside = tuple(f"{base}/" for base in bases)
        rows = zip(files[::3], files[1::3], texts[2::3], files[2::3], strict=True)
        new = {
            path: (now, digest)
            for path, digest, was, now in rows
            if now not in {"", was} and not path.startswith(inside)
        }
        if new and is_writable:
            add_rows(f"{folder}/{_FILE_GROUP}", new)
    return {**record, "files": files, "compiler_files": [text for pair in stats for text in pair]}
