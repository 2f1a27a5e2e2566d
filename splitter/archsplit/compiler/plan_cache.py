"""Replies of the programs that a plan queries, kept from plan to plan.

For each source, a plan needs nvcc's list of commands (``--dryrun``) and the preprocessor's list of
included files. Both follow from content, so that a second plan starts no program:

    dry run   the command, nvcc and its profile, the host compiler, the variables
    listing   the command, the host compiler, the variables; each file that was read, and each name
              under which a new file would be read in place of one

A changed header makes the listings of its sources invalid, but no dry run. Replies have absolute
paths and are quick to make, so that they are in the local store alone. A listing that doesn't
follow from content (``__TIMESTAMP__``, ``.incbin``, ``-imacros``) is made anew in each plan.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.cache.cache import Cache
from archsplit.cache.entry import CacheEntry, KeyComponent, compute_key
from archsplit.cache.local import sorted_names
from archsplit.compiler.direct_hit import EPOCH
from archsplit.compiler.file_resolver import PROGRAM_GROUP, FileResolver
from archsplit.compiler.include_scan import HeaderFacts, ObservedReads, TextScans, describe_reads
from archsplit.compiler.keys import has_unsupported_flags
from archsplit.compiler.preprocessed import (
    from_placeholder,
    include_markers,
    included_files,
    to_placeholder,
)
from archsplit.compiler.tool_identity import ToolIdentities, script_target
from archsplit.nvcc.depfile import parse_depfile

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from archsplit.cache.config import Settings
    from archsplit.cache.entry import ManifestEntry
    from archsplit.system.process import Command, Runner

_GROUP = "planning"
"""The group of the digests of sources and headers; the sources of a recipe share most headers."""
_REPLY = "reply"
_SEARCH_LINE = re.compile(r"^#\$ PATH=.*$", re.MULTILINE)
_SEARCH_MARK = "\0archsplit:path\0"
_UNMARKED = ("-imacros", "--imacros")
"""Flags that include a file without a marker in the preprocessed text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRunQuery:
    """A query for nvcc's commands of one source.

    Attributes:
        argv: the dry run, with a fixed name in place of the private folder's.
        compiler: the host compiler; nvcc has it print its macros.
        source: the source, relative to the working directory.
        folder: the private folder of the source.
    """

    argv: tuple[str, ...]
    compiler: str
    source: str
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ListingQuery:
    """A query for the files that one source includes.

    Attributes:
        step: nvcc's own command, from which the listing's command is made.
        command: the preprocessor's command; it writes the next two files.
        rule: a depfile of the user's headers.
        text: the preprocessed source, whose markers name all headers.
        folder: the private folder of the source.
    """

    step: tuple[str, ...]
    command: Command
    rule: Path
    text: Path
    folder: Path


class PlanCache:
    """The replies of earlier plans; several threads may share it.

    Args:
        settings: of the compile cache.
        runner: starts compilers that are queried for their version and folders.
        cwd: the working directory of all commands.
        environment: of the dry runs; the folder for temporary files doesn't count.
        foreign: folders whose headers nobody edits: the system's and the toolkit's.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        runner: Runner,
        cwd: Path,
        environment: Mapping[str, str],
        foreign: tuple[str, ...],
    ) -> None:
        mine = replace(settings, remote=(), min_seconds=0.0, min_size=0)
        # A build opens the same store for its objects, and reports its troubles then.
        self._cache = Cache(mine, warn=lambda _: None)
        digests = self._cache.digests
        for group in (PROGRAM_GROUP, _GROUP):
            digests.load(group)
        self._tools = ToolIdentities(runner=runner, digests=digests, cwd=cwd)
        self._cwd = cwd
        self._environment = environment
        self._foreign = foreign
        self._scans = TextScans(headers=HeaderFacts(digests.folder, foreign=foreign))

    def close(self) -> None:
        """Write the data for the next plan."""
        self._scans.save()
        self._cache.close()

    def find_dryrun(self, query: DryRunQuery) -> str | None:
        """Return nvcc's commands as it would print them; None for an unknown query."""
        parts = self._dryrun_parts(query)
        found = None if parts is None else self._cache.find(parts)
        text = None if found is None else found.entry.files.get(_REPLY)
        if text is None:
            return None
        reply = from_placeholder(text, str(query.folder)).decode(errors="surrogateescape")
        return reply.replace(_SEARCH_MARK, self._environment.get("PATH", ""))

    def store_dryrun(self, query: DryRunQuery, reply: str) -> None:
        """Store the commands that nvcc has printed."""
        parts = self._dryrun_parts(query)
        portable = without_search_path(reply, self._environment.get("PATH", ""))
        if parts is not None and portable is not None:
            text = to_placeholder(portable.encode(errors="surrogateescape"), str(query.folder))
            self._cache.store(CacheEntry(components=parts, files={_REPLY: text}))

    def find_listing(self, query: ListingQuery) -> bytes | None:
        """Return the depfile as the preprocessor would write it; None for an unknown query."""
        parts = self._listing_parts(query)
        if parts is None:
            return None
        request, resolver = compute_key(parts), self._resolver(query.command.env)
        for row in self._cache.manifest_entries(request):
            if resolver.is_current(row):
                found = self._cache.find(row.components(request))
                return None if found is None else found.entry.files.get(_REPLY)
        return None

    def store_listing(self, query: ListingQuery) -> None:
        """Store the depfile that the preprocessor has written, if all its inputs are known."""
        parts = self._listing_parts(query)
        # A file that is gone was removed by somebody else: nothing is stored.
        with contextlib.suppress(OSError):
            rule = query.rule.read_bytes()
            row = None if parts is None else self._read_row(query, rule)
            if parts is None or row is None:
                return
            request = compute_key(parts)
            if self._cache.store(
                CacheEntry(components=row.components(request), files={_REPLY: rule})
            ):
                # After the entry: a row without one would be looked up in vain.
                self._cache.add_manifest_entry(request, row)

    def _read_row(self, query: ListingQuery, rule: bytes) -> ManifestEntry | None:
        """Return the files that the preprocessor has read; None where they are not known."""
        environment = query.command.env
        includes = self._tools.includes(query.step, environment)
        # Without the folders, a new header that comes first would not be seen.
        if not includes:
            return None
        listed = parse_depfile(rule.decode(errors="surrogateescape"))
        names = (*included_files(include_markers(query.text.read_bytes())), *listed)
        reading = ObservedReads(
            names=tuple(dict.fromkeys(names)),
            tools=(),
            programs=(),
            foreign=self._foreign,
            since=self._cache.digests.began,
            epoch=environment.get(EPOCH),
            macros=tuple(_macros(query.step)),
            has_unseen=False,
        )
        read = describe_reads(reading, self._resolver(environment, includes), self._scans)
        return None if read is None else read.row

    def _resolver(
        self, environment: Mapping[str, str], includes: tuple[str, ...] = ()
    ) -> FileResolver:
        return FileResolver(
            cwd=self._cwd,
            environment=environment,
            includes=includes,
            digests=self._cache.digests,
            group=_GROUP,
        )

    def _dryrun_parts(self, query: DryRunQuery) -> tuple[KeyComponent, ...] | None:
        """Return the key components of a dry run; None for a missing host compiler."""
        nvcc = query.argv[0]
        compiler = self._tools.parts((query.compiler, "-E"), self._environment)
        if compiler is None:
            return None
        return (
            *self._common_parts("dry run", self._environment),
            *self._tools.driver(nvcc, self._environment),
            *_toolkit_parts(script_target(nvcc) or os.path.realpath(nvcc)),
            *compiler,
            # cudafe++ and cicc get the source's path without links.
            KeyComponent("source", os.path.realpath(self._cwd / query.source)),
            *(KeyComponent("word", word) for word in query.argv),
        )

    def _listing_parts(self, query: ListingQuery) -> tuple[KeyComponent, ...] | None:
        """Return the key components of a listing; None for a command with unknown inputs."""
        if has_unsupported_flags(query.step) or any(
            word.startswith(_UNMARKED) for word in query.step
        ):
            return None
        compiler = self._tools.parts(query.step, query.command.env)
        if compiler is None:
            return None
        folder = str(query.folder)
        return (
            *self._common_parts("listing", query.command.env),
            *compiler,
            *(KeyComponent("word", word.replace(folder, "")) for word in query.command.argv),
        )

    def _common_parts(self, kind: str, environment: Mapping[str, str]) -> Iterator[KeyComponent]:
        yield KeyComponent("plan", kind)
        yield KeyComponent("salt", self._cache.settings.salt)
        yield KeyComponent("folder", str(self._cwd))
        # A program on the PATH counts by its content.
        for name in sorted(environment.keys() - {"TMPDIR", "PATH"}):
            yield KeyComponent(f"environment {name}", environment[name])


def without_search_path(reply: str, search: str) -> str | None:
    """Return nvcc's commands without the ``PATH`` that it was given; None where it isn't found.

    pip and pyenv change the ``PATH`` from call to call. nvcc prints its own folders before it.
    """
    lines = _SEARCH_LINE.findall(reply)
    if not search or not lines or not all(line.endswith(search) for line in lines):
        return None
    return _SEARCH_LINE.sub(lambda line: line[0].removesuffix(search) + _SEARCH_MARK, reply)


def _toolkit_parts(nvcc: str) -> Iterator[KeyComponent]:
    """Yield the folders of a toolkit: nvcc's commands name those that exist."""
    programs = os.path.dirname(nvcc)  # noqa: PTH120 - texts, as in a key
    yield KeyComponent("toolkit", programs)
    for folder in (programs, os.path.dirname(programs)):  # noqa: PTH120
        yield KeyComponent("names in the toolkit", "\n".join(sorted_names(Path(folder))))


def _macros(argv: tuple[str, ...]) -> Iterator[str]:
    """Yield the macros that a command defines, ``NAME=VALUE``."""
    words = iter(argv)
    for word in words:
        if word == "-D":
            yield next(words, "")
        elif word.startswith("-D"):
            yield word.removeprefix("-D")
