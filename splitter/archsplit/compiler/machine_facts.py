"""Facts about this machine's compilers and files, remembered from process to process.

A record of another machine, which came with a restored cache, has that machine's times. It is used
here, with the times of this machine's files, if each file has the same content, and if the
compilers give the same replies, which this machine remembers.

The way to a hit imports this module for such records only.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from typing import TYPE_CHECKING, NamedTuple

from archsplit.cache.entry import KeyComponent, compute_key, environment_parts
from archsplit.cache.file_digests import add_rows, read_rows
from archsplit.cache.usage import (
    MODE,
    TOO_NEW_NS,
    current_files,
    has_changed,
    is_reliable,
    stat_text,
)
from archsplit.nvcc.variables import hashed_variables
from archsplit.system.outputs import read_stored_file, store_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

PROGRAM_GROUP = "programs"
"""Group of the digests of programs, which all requests share."""
_FILE_GROUP = "files"
"""Group of the digests of files outside of checkouts, which records of other machines name."""


class StoredReply(NamedTuple):
    """A reply that is still right.

    Attributes:
        reply: the text, or its digest.
        file_stats: by path; "" for a missing file.
    """

    reply: str
    file_stats: Mapping[str, str]


class ReplyCache:
    """Compilers' replies, remembered by query and environment.

    Args:
        folder: one of this machine's own; None to remember nothing.
        cwd: where compilers are asked.
    """

    def __init__(self, folder: Path | str | None, *, cwd: Path | str) -> None:
        self._folder = folder
        self._cwd = str(cwd)

    def find(self, query: str, environment: Mapping[str, str]) -> StoredReply | None:
        """Return the reply to a query; None if the compiler must be asked."""
        path = self._path(query, environment)
        if path is None:
            return None
        try:
            row = json.loads(read_stored_file(path)[0])
            file_stats = {path: stat_text(path) for path in row["file_stats"]}
            folders = {folder: _folder_identity(folder) for folder in row["folders"]}
            is_same = (row["file_stats"], row["folders"]) == (file_stats, folders)
            reply = row["reply"]
        except (OSError, ValueError, TypeError, KeyError):
            return None
        return StoredReply(reply, file_stats) if is_same and isinstance(reply, str) else None

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
        """Remember a reply.

        Args:
            files: those that the reply follows from, there or not.
            folders: those whose identity, not content, the reply follows from.
            since: nanoseconds since 1970 at which the compiler was asked.
        """
        path = self._path(query, environment)
        file_stats = {file: stat_text(file) for file in files}
        places = [os.path.join(self._cwd, folder) for folder in folders]
        # What has changed meanwhile may have done so after the reply.
        is_same = all(
            is_reliable(file_stat, since=since) for file_stat in file_stats.values() if file_stat
        )
        there = filter(os.path.lexists, places)
        if (
            path is None
            or not is_same
            or any(has_changed(each, since - TOO_NEW_NS) for each in there)
        ):
            return
        found = {each: _folder_identity(each) for each in places}
        row = {"reply": reply, "file_stats": file_stats, "folders": found}
        with contextlib.suppress(OSError):
            store_file(path, json.dumps(row).encode())

    def _path(self, query: str, environment: Mapping[str, str]) -> str | None:
        if self._folder is None:
            return None
        parts = (
            KeyComponent("query", query),
            KeyComponent("folder", self._cwd),
            KeyComponent("PATH", environment.get("PATH", "")),
            *variable_components(environment),
        )
        return os.path.join(self._folder, f"reply-{compute_key(parts)}")


def variable_components(env: Mapping[str, str], **selection: bool) -> tuple[KeyComponent, ...]:
    """Return the variables of `hashed_variables`, as components of a key."""
    return environment_parts(env, hashed_variables(env, **selection))


def _folder_identity(path: str) -> str:
    """Return the identity of a folder, whatever is in it; "" for none."""
    try:
        status = os.stat(path)
    except OSError:
        return ""
    return f"{status.st_dev} {status.st_ino} {stat.S_ISDIR(status.st_mode)}"


def adapt_record(
    record: Mapping[str, list[str]],
    store: str,
    environment: Mapping[str, str],
    *,
    bases: Sequence[str],
) -> dict[str, list[str]] | None:
    """Return a record of another machine with the times of this machine's files.

    Args:
        record: its sections.
        store: the folder of the store.
        environment: the invocation's.
        bases: checkouts, whose files no other record names.

    Returns:
        None if a file has another content, or if a compiler has another reply or must be asked.
    """
    folder = os.path.join(store, "digests", os.uname().nodename)
    replies = ReplyCache(folder, cwd=record["machine"][1])
    stored = [replies.find(query, environment) for query in record["replies"][::2]]
    if [reply and reply.reply for reply in stored] != record["replies"][1::2]:
        return None
    pairs = (pair for reply in stored if reply for pair in reply.file_stats.items())
    known = read_rows(f"{folder}/{PROGRAM_GROUP}") | read_rows(f"{folder}/{_FILE_GROUP}")
    texts: list[str] = []
    for path, digest in zip(record["files"][::3], record["files"][1::3], strict=True):
        row = known.get(path)
        # A file without a stat is read, and its content compared.
        file_stat = row[0] if isinstance(row, list) and row[1:] == [digest] else ""
        texts += (path, digest, str(file_stat))
    files = current_files(texts)
    if files is None:
        return None
    inside = tuple(f"{base}/" for base in bases)
    new = {
        path: (file_stat, digest)
        for path, digest, was, file_stat in zip(
            files[::3], files[1::3], texts[2::3], files[2::3], strict=True
        )
        if file_stat not in {"", was} and not path.startswith(inside)
    }
    if new and environment.get(MODE, "on") == "on":
        add_rows(f"{folder}/{_FILE_GROUP}", new)
    return {**record, "files": files, "compiler_files": [text for pair in pairs for text in pair]}
