"""Replies of compilers to questions about themselves, remembered from process to process.

A GNU compiler's reply to ``-###`` follows from its own bytes, from the folders in which it looks
for its parts and their ``specs``, from those parts, and from a few variables. A reply is remembered
with the stamps of all these, and used while each stamp is the same.

What else may answer is asked each time: a script may look at anything, and clang reads
configuration files in places of its own. So is a compiler that looks at the machine (``native``).

While that reply is the same, so are those to ``-print-prog-name`` and, with the same folders in the
same places, to ``-E -v``.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import stat
from typing import TYPE_CHECKING

from archsplit.cache.entry import KeyComponent, compute_key
from archsplit.cache.file_digests import read_stamp
from archsplit.cache.usage import SETTLED_NS
from archsplit.compiler.direct_hit import hashed_environment
from archsplit.system.outputs import read_stored_file, store_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from archsplit.cache.file_digests import FileStamp

_GNU = "COLLECT_GCC="
"""A line of the reply that only GNU compilers give."""
_NATIVE = "=native"
_SPECS = "specs"


class ReplyCache:
    """The replies that are remembered.

    Args:
        folder: one of this machine's own; None to remember nothing.
        cwd: where compilers are asked.
    """

    def __init__(self, folder: Path | None, *, cwd: Path | str) -> None:
        self._folder = folder
        self._cwd = str(cwd)

    def reply_digest(self, query: str, environment: Mapping[str, str]) -> str | None:
        """Return the digest of the reply to a query; None where it must be asked."""
        found = self._read(query, environment)
        return None if found is None else found[0]

    def reply_stamps(
        self, query: str, environment: Mapping[str, str]
    ) -> dict[str, FileStamp | None] | None:
        """Return the stamps that a reply follows from, by path; None where it must be asked.

        The stamp of a path is None for a missing file.
        """
        found = self._read(query, environment)
        return None if found is None else found[1]

    def _read(
        self, query: str, environment: Mapping[str, str]
    ) -> tuple[str, dict[str, FileStamp | None]] | None:
        path = self._path(query, environment)
        if path is None:
            return None
        try:
            rows = json.loads(read_stored_file(path)[0])
            stamps = {path: _stamp(path) for path in rows["stamps"]}
            same = rows["stamps"] == {path: stamp and [*stamp] for path, stamp in stamps.items()}
            digest = rows["digest"]
        except (OSError, ValueError, TypeError, KeyError):
            return None
        return (digest, stamps) if same and isinstance(digest, str) else None

    def store(
        self,
        query: str,
        environment: Mapping[str, str],
        *,
        reply: str,
        digest: str,
        search: str,
        since: int,
    ) -> None:
        """Remember a reply, if it is known what the reply follows from.

        Args:
            reply: of the compiler.
            digest: of the reply.
            search: the reply to ``-print-search-dirs``.
            since: nanoseconds since 1970 at which the compiler was asked.
        """
        path = self._path(query, environment)
        # What such a compiler looks at is not known, and so has no stamps.
        if path is None or _GNU not in reply or _NATIVE in query:
            return
        program = shlex.split(query)[0]
        paths = [*_searched(program, environment), *_consulted(reply, search, self._cwd)]
        stamps = {path: _stamp(path) for path in paths}
        if any(stamp and max(stamp[2:4]) > since - SETTLED_NS for stamp in stamps.values()):
            return
        _write(path, {"digest": digest, "stamps": stamps})

    def recall(self, asked: str, query: str, environment: Mapping[str, str]) -> str | None:
        """Return the reply to another question; None where it must be asked.

        Args:
            asked: the question, such as ``gcc -print-prog-name=as``.
            query: whose remembered reply shows that the compiler is the same.
        """
        path, identity = self._path(asked, environment), self.reply_digest(query, environment)
        if path is None or identity is None:
            return None
        try:
            row = json.loads(read_stored_file(path)[0])
            folders = {folder: _folder_identity(folder) for folder in row["folders"]}
            same = row["identity"] == identity and row["folders"] == folders
            reply = row["reply"]
        except (OSError, ValueError, TypeError, KeyError):
            return None
        return reply if same and isinstance(reply, str) else None

    def remember(
        self,
        asked: str,
        query: str,
        environment: Mapping[str, str],
        *,
        reply: str,
        folders: Iterable[str],
        since: int,
    ) -> None:
        """Remember the reply to another question.

        Args:
            asked: see `recall`.
            query: see `recall`.
            reply: of the compiler.
            folders: the folders that the reply follows from, there or not.
            since: nanoseconds since 1970 at which the compiler was asked.
        """
        path, identity = self._path(asked, environment), self.reply_digest(query, environment)
        places = [os.path.join(self._cwd, folder) for folder in folders]  # noqa: PTH118 - as above
        # What has changed meanwhile may have done so after the reply.
        if path is None or identity is None or any(_has_changed(each, since) for each in places):
            return
        found = {each: _folder_identity(each) for each in places}
        _write(path, {"identity": identity, "folders": found, "reply": reply})

    def _path(self, query: str, environment: Mapping[str, str]) -> Path | None:
        if self._folder is None:
            return None
        parts = (
            KeyComponent("question", query),
            KeyComponent("folder", self._cwd),
            KeyComponent("PATH", environment.get("PATH", "")),
            *hashed_environment(environment),
        )
        return self._folder / f"answer-{compute_key(parts)}"


def _write(path: Path, row: Mapping[str, object]) -> None:
    with contextlib.suppress(OSError):
        store_file(path, json.dumps(row).encode())


def _folder_identity(path: str) -> str:
    """Return the identity of a folder, whatever is in it; "" for none."""
    try:
        status = os.stat(path)  # noqa: PTH116 - no pathlib in a hit
    except OSError:
        return ""
    return f"{status.st_dev} {status.st_ino} {stat.S_ISDIR(status.st_mode)}"


def _has_changed(path: str, since: int) -> bool:
    try:
        # A link may have been turned to another folder.
        both = (os.lstat(path), os.stat(path))  # noqa: PTH116 - as above
    except OSError:
        return os.path.lexists(path)
    return max(each.st_ctime_ns for each in both) > since - SETTLED_NS


def may_be_gnu(program: str, environment: Mapping[str, str]) -> bool:
    """Tell whether a program is an ELF executable, and so may be a GNU compiler."""
    found = shutil.which(program, path=environment.get("PATH", ""))
    try:
        with open(found or "", "rb", buffering=0) as file:  # noqa: PTH123 - no pathlib in a hit
            return file.read(4) == b"\x7fELF"
    except OSError:
        return False


def _searched(program: str, environment: Mapping[str, str]) -> Iterator[str]:
    """Yield the candidates of a program on the PATH, up to the existing one."""
    if "/" in program:
        yield program
        return
    found = shutil.which(program, path=environment.get("PATH", ""))
    for folder in environment.get("PATH", "").split(os.pathsep):
        place = os.path.join(folder, program)  # noqa: PTH118 - no pathlib in a hit
        yield place
        if place == found:
            return


def _consulted(reply: str, search: str, cwd: str) -> Iterable[str]:
    """Return the folders and files that a GNU compiler looks at before it replies."""
    folders: list[str] = []
    for line in search.splitlines():
        kind, _, names = line.partition(": ")
        listed = names.removeprefix("=").split(os.pathsep) if kind else []
        folders += [os.path.join(cwd, os.path.normpath(name)) for name in listed if name]  # noqa: PTH118
    # A file of that name, once it exists, changes what the driver does.
    specs = [os.path.join(folder, _SPECS) for folder in folders]  # noqa: PTH118
    parts = [word.strip('"') for word in reply.split() if word.strip('"').startswith("/")]
    return dict.fromkeys([*folders, *specs, *filter(os.path.isfile, parts)])


def _stamp(path: str) -> FileStamp | None:
    try:
        return read_stamp(path)
    except OSError:
        return None
