"""Records of another machine, which came with a restored cache.

A record has the times of its machine's files. It is used here, with the times of this machine's
files, if each file has the same content, and if the compilers give the same replies. In a new
container, many compilations start at once: one of them asks the compilers and reads the tools,
200 MB, and the others wait for what it remembers.

The way to a hit imports this module for such records only.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from archsplit.cache.file_digests import FileDigests, add_rows, read_rows
from archsplit.cache.usage import MODE, current_files
from archsplit.compiler.machine_facts import PROGRAM_GROUP, ReplyCache
from archsplit.system.file_lock import LockedFolder

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_FILE_GROUP = "files"
"""Group of the digests of files outside of checkouts, which records of other machines name."""


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
        None if a file has another content, or if a compiler has another reply.
    """
    folder = os.path.join(store, "digests", os.uname().nodename)
    is_writable = environment.get(MODE, "on") == "on"
    with contextlib.ExitStack() as turn:
        if not os.path.exists(f"{folder}/{_FILE_GROUP}"):
            turn.enter_context(LockedFolder(store))
        replies = ReplyCache(folder, cwd=record["machine"][1])
        queries = record["replies"][::2]
        stored = [replies.find(query, environment) for query in queries]
        if is_writable and None in stored:
            _ask(record, store, environment)
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
        files = current_files(texts)
        if files is None:
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


def _ask(record: Mapping[str, list[str]], store: str, environment: Mapping[str, str]) -> None:
    """Ask compilers, so that this machine remembers their replies."""
    # Imported late: one process of a machine asks.
    from pathlib import Path  # noqa: PLC0415

    from archsplit.compiler.tool_identity import ToolIdentities  # noqa: PLC0415
    from archsplit.errors import ArchsplitError  # noqa: PLC0415
    from archsplit.system.process import SubprocessRunner  # noqa: PLC0415
    from archsplit.system.signals import restore_child_signal  # noqa: PLC0415

    restore_child_signal()
    digests = FileDigests(Path(store) / "digests")
    cwd = Path(record["machine"][1])
    tools = ToolIdentities(runner=SubprocessRunner(), digests=digests, cwd=cwd)
    with contextlib.suppress(ArchsplitError):
        for query in record["replies"][::2]:
            tools.reply_digest(query, environment)
