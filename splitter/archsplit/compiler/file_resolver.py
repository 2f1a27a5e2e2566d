"""File lookup as compilers do it, and comparison with an entry of a manifest.

In: an entry with digests of files and programs. Out: whether all are unchanged, and whether no new
file would be read in place of one.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, NamedTuple, Protocol

from archsplit.cache.entry import KeyComponent
from archsplit.compiler.direct_hit import is_readable_header, shadow_candidates

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from archsplit.cache.entry import ManifestEntry
    from archsplit.cache.file_digests import FileDigests

INCLUDE_PREFIX = "<include>/"
"""Prefix of paths that are relative to the include folders."""
PROGRAM_GROUP = "programs"
"""The group of the digests of programs, which all requests share."""
VARIABLE_PREFIX = "$"
"""Prefix of environment variables among the programs of a manifest entry."""
_SLACK_NS = 20_000_000
"""A file system's times may lag behind the clock by a tick."""


class ReplySource(Protocol):
    """Replies of compilers to questions about themselves."""

    def reply_digest(self, query: str, environment: Mapping[str, str]) -> str | None:
        """Return the digest of the reply to a query; None where there is none."""


class FileResolver(NamedTuple):
    """Rules by which names become files.

    A named tuple and no dataclass, as all records of the way to a hit: importing `dataclasses`
    alone takes 9 ms of the 50 that a hit may take.

    Attributes:
        cwd: what relative paths are relative to.
        environment: what variables are, ``PATH`` among them.
        includes: the folders for includes, in the order of the search.
        digests: of files.
        group: what digests are remembered with.
        tools: has the replies of compilers; None where no query is expected.
    """

    cwd: Path | str
    environment: Mapping[str, str]
    digests: FileDigests
    group: str
    includes: tuple[str, ...] = ()
    tools: ReplySource | None = None

    def resolve(self, spelled: str) -> str:
        """The absolute path of a file; where it would be, if it isn't there."""
        # Relative to an include folder, so that another checkout has the same row.
        if spelled.startswith(INCLUDE_PREFIX):
            name = spelled.removeprefix(INCLUDE_PREFIX)
            places = [os.path.join(self.cwd, folder, name) for folder in self.includes]  # noqa: PTH118
            return next(filter(os.path.exists, places), name)
        return os.path.join(self.cwd, spelled)  # noqa: PTH118 - thousands: a Path each would cost more

    def normalize(self, spelled: str) -> str:
        """The same without ``..``, to compare it: where links are, it may lead elsewhere."""
        return os.path.normpath(self.resolve(spelled))

    def digest(self, spelled: str) -> str | None:
        """The digest of a file, or None where there's none."""
        return self.digests.digest(self.resolve(spelled), group=self.group)

    def tool_digest(self, spelled: str) -> str | None:
        """The digest of a tool of the compiler, which is saved for all requests."""
        # nvcc has 30 MB, and many requests are of sources that are compiled once.
        return self.digests.digest(self.resolve(spelled), group=PROGRAM_GROUP)

    def program_digest(self, name: str) -> str | None:
        """The digest of a program, or None where it isn't found.

        Also the value of a variable (see `VARIABLE_PREFIX`), and the digest of a program's reply
        (see `archsplit.compiler.tool_identity.identity_query`).
        """
        if name.startswith(VARIABLE_PREFIX):
            return self.environment.get(name.removeprefix(VARIABLE_PREFIX))
        # A query to a compiler, not a program's name.
        if " " in name:
            return None if self.tools is None else self.tools.reply_digest(name, self.environment)
        path = shutil.which(name, path=self.environment.get("PATH", ""))
        return (
            None
            if path is None
            else self.digests.digest(os.path.realpath(path), group=PROGRAM_GROUP)
        )

    def is_current(self, row: ManifestEntry) -> bool:
        """Return True if all files and programs of a manifest entry are unchanged."""
        files = all(self.digest(path) == digest for path, digest in row.files)
        programs = all(self.program_digest(name) == digest for name, digest in row.programs)
        return files and programs and self.shadowing_files(row) == row.beside

    def shadowing_files(self, row: ManifestEntry) -> tuple[str, ...]:
        """Return files that could be read in place of these; see `ManifestEntry.beside`.

        As it would be spelled, so that another checkout has the same. A folder, or a link that
        leads nowhere, is never read, and what it becomes may be.
        """
        # A file that was read shadows nothing: its digest is compared.
        found = {*self.shadow_candidates(row)} - {path for path, _ in row.files}
        return tuple(sorted(path for path in found if is_readable_header(self.resolve(path))))

    def shadow_candidates(self, row: ManifestEntry) -> Iterator[str]:
        """Yield existing and missing paths that could be read in place of these files."""
        folders = [(folder, self.resolve(folder)) for folder in row.folders]
        for folder, name in shadow_candidates(folders, row.names):
            yield f"{folder}/{name}" if folder else name

    def changes(self, row: ManifestEntry) -> Iterator[KeyComponent]:
        """Yield what differs from a manifest entry, with its current value; "" for nothing."""
        for path, digest in row.files:
            if (now := self.digest(path)) != digest:
                yield KeyComponent(f"file {path}", now or "")
        for name, digest in row.programs:
            if (now := self.program_digest(name)) != digest:
                yield KeyComponent(f"program {name}", now or "")
        for path in sorted(set(self.shadowing_files(row)) ^ set(row.beside)):
            yield KeyComponent(f"file {path}", "it could be read in place of another one")


def has_changed(path: str, since: int) -> bool:
    """Return True if a file may have changed since a time, or is gone."""
    try:
        # A link may have been turned to a file that is old.
        both = (os.lstat(path), os.stat(path))  # noqa: PTH116 - thousands: a Path each would cost more
    except OSError:
        return True
    return max(max(each.st_mtime_ns, each.st_ctime_ns) for each in both) > since - _SLACK_NS
