"""Which files a compilation has read, and which others could come to be read in their place."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from splitter.cache.manifest import Row
from splitter.reuse.asking import asked_for
from splitter.reuse.sight import COMPILED, VARIABLE
from splitter.reuse.surroundings import EPOCH
from splitter.reuse.texts import digest_of, reads_more

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from splitter.reuse.sight import Sight

_CLOCK = (b"__DATE__", b"__TIME__")
_UNSEEN = (b"__TIMESTAMP__", b"__has_embed")
_DIRECTIVE = re.compile(rb"#[ \t]*(?:embed|pragma[ \t]+GCC[ \t]+dependency)\b")
"""What reads more than it includes, or asks when a file was changed.

A pattern that begins with a character is ten times as fast as one for the beginning of a line.
"""
_PIECES = (b"__TI", b"__DA", b"IME__", b"ATE__", b"STAMP__")
_PIECE = re.compile(
    rb"\b(?:__(?:TIM?|TIME_|TIMEST(?:AM?P?|AMP_)?|DAT?|DATE_|(?:TIME|DATE)(?=[ \t]*(?:,|##)))"
    rb"|_?(?:T?IME|D?ATE|(?:TIME)?STAMP)__)\b"
)
"""What the names of the clock can be put together from."""
_SLACK_NS = 20_000_000
"""A file system's times may lag behind the clock by a tick."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """What was read.

    Attributes:
        row: the files, as a manifest's row.
        texts: contents, by their digests, of the user's own files.
    """

    row: Row
    texts: Mapping[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a compilation is known to have read.

    Attributes:
        names: files that were included, as they were spelled.
        tools: other files that decide what comes out.
        programs: names of programs that were looked for on the PATH, and questions to programs.
        foreign: folders of which texts needn't be kept: the system's, the toolkit's.
        since: when the compilation began, in nanoseconds since 1970.
        epoch: what ``SOURCE_DATE_EPOCH`` says that the time is; None where nothing does.
        macros: those that the command line defines, ``NAME=VALUE``.
    """

    names: tuple[str, ...]
    tools: tuple[str, ...]
    programs: tuple[str, ...]
    foreign: tuple[str, ...]
    since: int
    epoch: str | None
    macros: tuple[str, ...] = ()


def describe(reading: Reading, sight: Sight) -> Read | None:
    """Describe what was read; None where a result must not be known by it.

    That is so where a file has changed since the compilation began, or asks what time it is.
    """
    contents = {name: _settled(sight.place(name), reading.since) for name in reading.names}
    read = {name: text for name, text in contents.items() if text is not None}
    texts = (*read.values(), *map(_definition, reading.macros))
    asked = asked_for(texts, reading.macros)
    if len(read) != len(contents) or asked is None or any(map(_is_unseen, texts)):
        return None
    dated = any(word in text for text in texts for word in _CLOCK)
    if dated and reading.epoch is None:
        return None
    files = {name: digest_of(text) for name, text in read.items()}
    tools = {tool: sight.digest(tool) for tool in reading.tools}
    programs = {name: sight.program(name) for name in reading.programs}
    if dated:
        programs[VARIABLE + EPOCH] = reading.epoch
    known = {name: digest for name, digest in {**tools, **programs}.items() if digest}
    if len(known) != len(tools) + len(programs) or _has_other_tools(reading, sight):
        return None
    row = Row(
        files=(*files.items(), *((tool, known[tool]) for tool in tools)),
        programs=tuple((name, known[name]) for name in programs),
        # Of what a flag includes, the folder where the compiler runs is the first to be looked in.
        folders=tuple(dict.fromkeys([*sight.includes, *map(os.path.dirname, files), ""])),
        names=tuple(sorted({*asked, *_searched_for(files, sight)})),
    )
    own = {name for name in read if not sight.path(name).startswith(reading.foreign)}
    beside = sight.beside(row)
    compiled = [name for name in (*files, *beside) if name.endswith(COMPILED)]
    if any(name in files or name.removesuffix(COMPILED) in files for name in compiled):
        # What a header was when it was compiled beforehand, nobody can tell.
        return None
    return Read(
        row=row._replace(beside=beside),
        texts={files[name]: read[name] for name in own},
    )


def _has_other_tools(reading: Reading, sight: Sight) -> bool:
    """Whether a tool may be another one than it was when the compilation began."""
    return any(has_changed(sight.place(tool), reading.since) for tool in reading.tools)


def _settled(path: str, since: int) -> bytes | None:
    """The content of a file that hasn't changed since then."""
    try:
        content = Path(path).read_bytes()
    except OSError:
        return None
    # What changes while it is read has changed afterwards.
    return None if has_changed(path, since) else content


def has_changed(path: str, since: int) -> bool:
    """Whether a file may have changed since then; yes if it's gone."""
    try:
        status = os.stat(path)  # noqa: PTH116 - thousands of files: a Path each would cost more
    except OSError:
        return True
    return max(status.st_mtime_ns, status.st_ctime_ns) > since - _SLACK_NS


def _definition(macro: str) -> bytes:
    """The line that would define a macro of the command line."""
    name, _, value = macro.partition("=")
    return f"#define {name} {value}".encode(errors="surrogateescape")


def _is_unseen(text: bytes) -> bool:
    """Whether a text reads more than it includes, or what it says can't be told from it."""
    if any(word in text for word in _UNSEEN) or _DIRECTIVE.search(text) or reads_more(text):
        return True
    return any(piece in text for piece in _PIECES) and _PIECE.search(text) is not None


def _searched_for(files: Iterable[str], sight: Sight) -> Iterator[str]:
    """What each file is called in the folders for includes."""
    folders: Sequence[str] = [f"{sight.path(each)}/" for each in sight.includes]
    spelled: Sequence[str] = [f"{each}/" for each in sight.includes]
    for name in files:
        path = sight.path(name)
        yield from (path.removeprefix(folder) for folder in folders if path.startswith(folder))
        # What a source includes may lead out of the folder again.
        yield from (name.removeprefix(each) for each in spelled if name.startswith(each))
