"""Records of hits, which `archsplit.compiler.direct_hit` finds without the whole way.

In: a hit of the whole way, and all that it followed from: the row of the manifest, what nvcc was
found by, the files with options and settings. Out: the same as conditions on paths, names and
times, in a file named by the invocation. What can't be written as such conditions has no record.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from archsplit.cache.entry import file_spans
from archsplit.cache.sealed import DamagedError, sealed_digest
from archsplit.cache.usage import settled_stamp
from archsplit.compiler.direct_hit import (
    HEAD_FIELDS,
    RECORDS_FOLDER,
    group_candidates,
    write_record,
)
from archsplit.compiler.file_resolver import PROGRAM_GROUP, VARIABLE_PREFIX
from archsplit.system.env import find_program

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from archsplit.cache.entry import ManifestEntry
    from archsplit.compiler.file_resolver import FileResolver
    from archsplit.compiler.reply_cache import ReplyCache


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectRecord:
    """A hit of the whole way.

    Attributes:
        request: the key of the request.
        entry: the key of the entry.
        blob: the entry as it is stored.
        row: the files that the entry was made from.
        cpu_seconds: CPU time of the compilation.
        stdout: what the tools said.
        stderr: their warnings.
        note: a line of archsplit's own that a hit prints, or "".
        links: paths that lead to tools, each with where it leads.
        observed: further files that the request follows from; they may be missing.
        bases: the value of ``base-dir``, both names of the working folder, the base folders;
            nothing without the setting.
        outputs: the path of each file of the entry that is written.
        texts: further files with their contents: rules for make.
    """

    request: str
    entry: str
    blob: bytes
    row: ManifestEntry
    cpu_seconds: float
    stdout: str
    stderr: str
    note: str
    links: tuple[tuple[str, str], ...]
    observed: tuple[str, ...]
    bases: tuple[str, ...]
    outputs: Mapping[str, Path]
    texts: Mapping[Path, bytes]


def save_record(
    folder: Path, key: str, record: DirectRecord, *, resolver: FileResolver, replies: ReplyCache
) -> None:
    """Save a record, if each of its conditions can be checked without the whole way.

    Args:
        folder: the store.
        key: of the invocation.
        resolver: finds the files of the row, and has their digests.
        replies: the compilers' replies to questions about themselves.
    """
    try:
        conditions = _conditions(record, resolver, replies)
        places = tuple(_places(record))
    except (_UncheckableError, DamagedError):
        return
    values = {**{name: str(getattr(record, name)) for name in HEAD_FIELDS if hasattr(record, name)}}
    values |= {"digest": sealed_digest(record.blob), "cpu_seconds": repr(record.cpu_seconds)}
    sections = {**conditions, "head": [values[name] for name in HEAD_FIELDS], "places": places}
    write_record(str(folder / RECORDS_FOLDER / key), sections)


class _UncheckableError(Exception):
    """Only the whole way can check a condition."""


def _conditions(
    record: DirectRecord, resolver: FileResolver, replies: ReplyCache
) -> dict[str, list[str]]:
    row, search = record.row, resolver.environment.get("PATH", "")
    # All that was found out of files was found out after this.
    since = resolver.digests.began
    variables: list[str] = []
    programs: list[str] = []
    stamps: list[str] = []
    files: list[str] = []
    for name, digest in row.programs:
        if name.startswith(VARIABLE_PREFIX):
            variables += [name.removeprefix(VARIABLE_PREFIX), digest]
        # A query has arguments, a program's name has no space.
        elif " " in name:
            stamps += _reply_stamps(replies, name, digest, resolver.environment)
        else:
            # The path is a condition too: another program may come earlier on the PATH.
            path = find_program(name, search)
            if path is None:
                raise _UncheckableError
            programs += [name, path]
            real = os.path.realpath(path)
            files += (path, _digest(real, resolver), settled_stamp(path, since=since))
    for spelled, digest in row.files:
        path = resolver.resolve(spelled)
        files += (path, digest, settled_stamp(path, since=since))
    for path in record.observed:
        files += (path, _digest(path, resolver), settled_stamp(path, since=since))
    # Times before names: a name that comes between them changes the times.
    folders: list[str] = []
    for folder in map(resolver.resolve, row.folders):
        folders += (folder, settled_stamp(folder, since=since))
    read = {spelled for spelled, _ in row.files}
    spelled_candidates = {*resolver.shadow_candidates(row)} - read
    candidates = sorted(map(resolver.resolve, spelled_candidates))
    beside = list(map(resolver.resolve, row.beside))
    # A hit compares those that exist with these.
    if not {*beside} <= {*candidates}:
        raise _UncheckableError
    return {
        "bases": [*record.bases],
        "links": [text for pair in record.links for text in pair],
        "variables": variables,
        "programs": programs,
        "stamps": stamps,
        "files": files,
        "folders": folders,
        "candidates": group_candidates(candidates, since=since),
        "names": list(row.names),
        "beside": beside,
    }


def _reply_stamps(
    replies: ReplyCache, query: str, digest: str, environment: Mapping[str, str]
) -> Iterator[str]:
    stamps = replies.reply_stamps(query, environment)
    if stamps is None or replies.reply_digest(query, environment) != digest:
        raise _UncheckableError
    for path, stamp in stamps.items():
        yield path
        yield "" if stamp is None else " ".join(map(str, stamp))


def _digest(path: str, resolver: FileResolver) -> str:
    return resolver.digests.digest(path, group=PROGRAM_GROUP) or ""


def _places(record: DirectRecord) -> Iterator[str]:
    spans = file_spans(record.blob)
    for role, path in record.outputs.items():
        if role not in spans:
            raise _UncheckableError
        yield from (str(path), *map(str, spans[role]), "")
    for path, text in record.texts.items():
        yield from (str(path), "", "", text.decode(errors="surrogateescape"))
