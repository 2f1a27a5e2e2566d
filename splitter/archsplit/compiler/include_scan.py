"""Files that a compilation has read, as a row of its manifest.

In: the names of included files, the tools, and preprocessed texts. Out: a row with digests, and
with every name under which a new file would be read in place of one of these. Where inputs can't be
known (the clock, ``__TIMESTAMP__``, a file that has just changed), nothing is stored.

`has_include_names` returns headers that a text only tests for with ``__has_include``; pure.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from archsplit.cache.entry import ManifestRow
from archsplit.cache.file_digests import add_rows, read_rows
from archsplit.cache.usage import has_changed, is_reliable, stat_text
from archsplit.compiler.direct_hit import PRECOMPILED_SUFFIX
from archsplit.compiler.file_resolver import (
    VARIABLE_PREFIX,
    FileResolver,
    has_equal_headers,
    has_macro_in_assembly,
    has_moment_text,
    has_time_macro,
    has_time_text,
    has_timestamp_text,
    join_continued_lines,
    linked_headers,
    may_have_time_macro,
    may_paste_time_macro,
    reads_files,
    unread_headers,
)
from archsplit.compiler.text_parts import TextParts
from archsplit.nvcc.preprocessed_text import included_files, text_digest
from archsplit.nvcc.variables import EPOCH
from archsplit.system.patterns import lazy_pattern

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

_HAS_INCLUDE = (b"has_include", b"HAS_INCLUDE")
_BLANK = rb"(?:[ \t\f\v]|/\*(?:[^*]|\*(?!/))*\*/)*"
_HAS_INCLUDE_WORD = lazy_pattern(rb"(?:has_include|HAS_INCLUDE)\w*%b" % _BLANK)
_HAS_INCLUDE_CALL = lazy_pattern(rb"(\w*%b)\([ \t(]*([^\n)]*)" % _HAS_INCLUDE_WORD.pattern)
_LITERAL = lazy_pattern(rb"\\?[<\"]([^>\"\n\\]+)\\?[>\"]")
_HEAD = lazy_pattern(rb"%b(?:#|%%:)%bdefine\b%b" % ((_BLANK,) * 3))
_WRAPPER = lazy_pattern(rb"%b(\w+)\(([^)]*)\)" % _HEAD.pattern)
_ALIAS = lazy_pattern(
    rb"%b(?!\w*(?:has_include|HAS_INCLUDE))\w(?s:.*)(?:has_include|HAS_INCLUDE)\w*(?!\w|%b\()"
    % (_HEAD.pattern, _BLANK)
)
"""A macro of another name that stands for ``__has_include`` itself."""
_CONTINUED = lazy_pattern(rb"\\\r?\n")

_UNLISTED = (b"__TIMESTAMP__", b"__has_embed", b"GCC dependency")
_DIRECTIVE = lazy_pattern(rb"#%b(?:embed|pragma%bGCC%bdependency)\b" % ((_BLANK,) * 3))
"""Directives that read other files, or the time of a file's last change.

A pattern that begins with a character is ten times as fast as one for the beginning of a line.
"""
_FACTS = "headers-3"
"""The file of remembered facts; another number when `TextScan` means something else."""
_MOST_FACTS = 3000
_USUAL = "host"
"""Row of `HeaderFacts.usual_names`; the names of others are paths."""


class TextScan(NamedTuple):
    """Facts about one text that was read, of which a compilation has hundreds.

    A named tuple, as all records here: a dataclass takes 1 ms of each compilation to define.

    Attributes:
        joined: the text with its continued lines made one; None where it wasn't read.
        include_tests: the argument of each ``__has_include``; None for one that is not a name.
        uses_time: the text names the date or the time.
        reads_unlisted: the text may read files without ``#include``, or ask the time otherwise.
    """

    joined: bytes | None
    include_tests: tuple[bytes | None, ...]
    uses_time: bool
    reads_unlisted: bool


class PreprocessedScan(NamedTuple):
    """Facts about a preprocessed text.

    Attributes:
        markers: see `include_markers`.
        included: see `included_files`.
        reads_files: the host's assembler will read files that no marker names; False for texts of
            devices, because PTX has no directive that reads a file.
        has_moment: see `has_moment_text`; also True if a file has such a name.
    """

    markers: bytes
    included: tuple[str, ...]
    reads_files: bool
    has_moment: bool


class HeaderFacts:
    """Facts about headers of the system and the toolkit, remembered from process to process.

    They are used while the header's stat is the same: size, inode, times and device. Only headers
    with nothing to beware of are remembered, and few projects' own are read by as many sources.

    Args:
        folder: one of this machine's own; None to remember nothing.
        system: folders whose headers are remembered.
    """

    def __init__(self, folder: Path | None, *, system: tuple[str, ...]) -> None:
        self._path = None if folder is None else folder / _FACTS
        self._system = system
        self._facts = {} if self._path is None else read_rows(self._path)
        self._new: dict[str, tuple[str, str, tuple[str, ...]] | list[str]] = {}

    def find(self, path: str) -> tuple[TextScan, str] | None:
        """Return the facts about a file and its digest; None where it must be read."""
        try:
            file_stat, digest, include_tests = self._facts[path]
            if not file_stat or file_stat != stat_text(path):
                return None
            words = tuple(word.encode("latin-1") for word in include_tests)
            scan = TextScan(joined=None, include_tests=words, uses_time=False, reads_unlisted=False)
        except (OSError, KeyError, ValueError, TypeError, AttributeError):
            return None
        return scan, str(digest)

    def add(self, path: str, file_stat: str, text: bytes, scan: TextScan) -> None:
        """Remember the facts about a file.

        Args:
            file_stat: of the file before it was read.
        """
        tested_names = [word for word in scan.include_tests if word is not None]
        is_plain = not (scan.uses_time or scan.reads_unlisted) and len(tested_names) == len(
            scan.include_tests
        )
        is_system = os.path.normpath(path).startswith(self._system)
        is_same = file_stat != "" and stat_text(path) == file_stat
        # What changed a moment ago may change again without another stat.
        if is_plain and is_system and is_same and is_reliable(file_stat, since=time.time_ns()):
            words = tuple(word.decode("latin-1") for word in tested_names)
            self._facts[path] = self._new[path] = (file_stat, text_digest(text), words)

    @property
    def usual_names(self) -> list[str]:
        """Headers that only the host compiler read in the last compilation, all with facts."""
        found = self._facts.get(_USUAL)
        names = found if isinstance(found, list) else []
        return [name for name in names if isinstance(name, str) and self.find(name)]

    @usual_names.setter
    def usual_names(self, names: list[str]) -> None:
        if names != self.usual_names and all(map(self.find, names)):
            self._facts[_USUAL] = self._new[_USUAL] = names

    def save(self) -> None:
        """Write the new facts; what can't be written is found out again next time."""
        if self._path is not None and self._new:
            add_rows(self._path, self._new, most=_MOST_FACTS)
        self._new.clear()


class TextScans:
    """Facts about texts, each found once in a process; threads may share it.

    While tools run, there is time to find facts that are needed after the last one.

    Args:
        sources: facts about sources and headers that several compilations share; None to begin
            without any.
        headers: facts of earlier processes; None to read all files.
        device_texts: preprocessed texts for devices only.
        parts: of texts that have been read.

    Attributes:
        headers: see above.
    """

    def __init__(
        self,
        sources: dict[bytes, TextScan] | None = None,
        headers: HeaderFacts | None = None,
        device_texts: Container[Path] = (),
        parts: TextParts | None = None,
    ) -> None:
        self._parts = parts or TextParts()
        self._device_texts = device_texts
        self._sources = {} if sources is None else sources
        self._files: dict[Path, PreprocessedScan] = {}
        self.headers = headers
        self._facts: dict[str, tuple[TextScan, str] | None] = {}

    def facts(self, path: str) -> tuple[TextScan, str] | None:
        """Return the facts about a header that are remembered, and its digest; None for others.

        A header is looked at once in a process: the caller sees to it that it hasn't changed since.

        Raises:
            OSError: the file can't be read.
        """
        if self.headers is None:
            return None
        if path not in self._facts:
            found = self.headers.find(path)
            if found is None:
                file_stat = stat_text(path)
                text = Path(path).read_bytes()
                self.headers.add(path, file_stat, text, self.source(text))
                found = self.headers.find(path)
            self._facts[path] = found
        return self._facts[path]

    def save(self) -> None:
        """Write what the next process may use."""
        if self.headers is not None:
            self.headers.save()

    def source(self, text: bytes) -> TextScan:
        """Return the facts about a source or a header."""
        scan = self._sources.get(text)
        # Two threads may scan a text at once: both find the same.
        if scan is None:
            joined = join_continued_lines(text)
            scan = self._sources[text] = TextScan(
                joined=joined,
                include_tests=_include_tests(joined),
                uses_time=has_time_macro([joined]),
                reads_unlisted=any(word in joined for word in _UNLISTED)
                or _DIRECTIVE.search(joined) is not None
                or reads_files(joined)
                or may_have_time_macro(joined),
            )
        return scan

    def preprocessed_file(self, path: Path) -> PreprocessedScan:
        """Return the facts about a preprocessed text, which doesn't change after the first call."""
        if path not in self._files:
            markers = self._parts.markers(path)
            # A macro may name a header by the date: `# 1 "folder/Nov  5 2026" 1`.
            has_moment = any(self._parts.facts(path, has_moment_text)) or has_moment_text(
                markers.replace(b"/", b'"')
            )
            reads = path not in self._device_texts and reads_files(path.read_bytes())
            scan = PreprocessedScan(markers, included_files(markers), reads, has_moment)
            self._files[path] = scan
        return self._files[path]

    def prepare(self, path: Path) -> None:
        """Find the facts about a preprocessed text and its files while tools run."""
        # Texts for several targets have the same files.
        for name in {*self.preprocessed_file(path).included} - self._facts.keys():
            with contextlib.suppress(OSError):
                self.facts(name)


def has_include_names(scans: Iterable[TextScan]) -> frozenset[str] | None:
    """Return the names in ``__has_include``, and in macros that are called like it.

    Returns:
        The names; None if an argument is not a name, because it could be any header.
    """
    include_tests = {argument for scan in scans for argument in scan.include_tests}
    names = [_LITERAL.match(argument or b"") for argument in include_tests]
    found = {name[1].decode(errors="surrogateescape") for name in names if name}
    return frozenset(found) if all(names) else None


def _include_tests(text: bytes) -> tuple[bytes | None, ...]:
    """Return the argument of each ``__has_include``; None for an argument that is not a name."""
    lines = [*_has_include_lines(text)]
    calls = (call for line in lines for call in _HAS_INCLUDE_CALL.finditer(line))
    found = [None for _ in filter(_ALIAS.match, lines)] + [*map(_has_include_arg, calls)]
    return tuple(argument for argument in found if argument != b"")


def _has_include_lines(text: bytes) -> Iterator[bytes]:
    """Yield the lines that name ``__has_include``: few, of megabytes."""
    if not any(word in text for word in _HAS_INCLUDE):
        return
    text = _CONTINUED.sub(b"", text)
    at = 0
    while found := _HAS_INCLUDE_WORD.search(text, at):
        start = text.rfind(b"\n", 0, found.start()) + 1
        end = text.find(b"\n", found.end())
        at = len(text) if end < 0 else end
        yield text[start:at]


def _has_include_arg(call: re.Match[bytes]) -> bytes | None:
    """Return the argument of a ``__has_include``: None for no name, b"" if it tests nothing."""
    line = call.string[: call.start()]
    word = call[2].strip()
    if _HEAD.fullmatch(line):
        # The macro that asks is being defined, and what it asks for stands where it is used.
        return b""
    if _LITERAL.match(word):
        return word
    # The parameter of a macro with such a name; any other could be used anywhere.
    wrapper = _WRAPPER.match(line)
    if wrapper is None or not any(each in wrapper[1] for each in _HAS_INCLUDE):
        return None
    return b"" if word in map(bytes.strip, wrapper[2].split(b",")) else None


class ManifestUpdate(NamedTuple):
    """The files that a compilation has read, for the manifest.

    Attributes:
        row: the files, as a manifest's row.
        texts: contents, by their digests, of the user's own files.
    """

    row: ManifestRow
    texts: Mapping[str, bytes]


class ObservedReads(NamedTuple):
    """Everything that a compilation was observed to read.

    Attributes:
        names: files that were included, as they were spelled.
        tools: other files that decide what comes out.
        programs: names of programs that were looked for on the PATH, and queries to programs.
        system: folders whose headers are never edited: of the system and the toolkit.
        since: when the compilation began, in nanoseconds since 1970.
        epoch: what ``SOURCE_DATE_EPOCH`` says that the time is; None where nothing does.
        macros: macros of the command line, ``NAME=VALUE``.
        preprocessed: preprocessed texts with a date or a time.
        has_unlisted: True if some sources have no preprocessed text.
    """

    names: tuple[str, ...]
    tools: tuple[str, ...]
    programs: tuple[str, ...]
    system: tuple[str, ...]
    since: int
    epoch: str | None
    macros: tuple[str, ...] = ()
    preprocessed: tuple[bytes, ...] = ()
    has_unlisted: bool = True


def describe_reads(
    reads: ObservedReads, resolver: FileResolver, scans: TextScans
) -> ManifestUpdate | None:
    """Describe what was read; None if the result must not be stored.

    That is so where a file has changed since the compilation began, or asks what time it is.
    """
    read = _read_files(reads, resolver, scans)
    if read is None:
        return None
    found = [*read.scans, *map(scans.source, map(_definition, reads.macros))]
    tested_names = has_include_names(found)
    headers = {resolver.resolve(name): text for name, text in read.user_files.items()}
    folders = {resolver.resolve(each): f"{resolver.normalize(each)}/" for each in resolver.includes}
    # Headers of the system and the toolkit are never touched.
    searched = [path for path, folder in folders.items() if not folder.startswith(reads.system)]
    unread = unread_headers(headers, searched)
    if (
        tested_names is None
        or _has_unlisted_reads(reads, found, [*read.user_files.values()])
        or has_equal_headers(headers, unread)
    ):
        return None
    uses_clock = any(scan.uses_time for scan in found) or has_time_text(
        reads.preprocessed, since=reads.since, epoch=reads.epoch
    )
    # The clock goes on, and no entry would be right a minute later.
    if uses_clock and not reads.epoch:
        return None
    links = linked_headers(headers, unread).items()
    files = read.digests | {resolver.shorten(link): text_digest(text) for link, text in links}
    tools = _known_digests(reads.tools, resolver.tool_digest)
    programs = _known_digests(reads.programs, resolver.program_digest)
    # A tool that is gone can't be compared the next time.
    if tools is None or programs is None or _has_changed_tools(reads, resolver):
        return None
    if uses_clock and reads.epoch:
        programs[VARIABLE_PREFIX + EPOCH] = reads.epoch
    row = ManifestRow(
        files=(*files.items(), *tools.items()),
        programs=tuple(programs.items()),
        # A file that a flag includes (``-include``) is searched in the working folder first.
        folders=tuple(dict.fromkeys([*resolver.includes, *map(os.path.dirname, files), ""])),
        names=tuple(sorted({*tested_names, *_searched_for(files, resolver)})),
    )
    shadowing = tuple(sorted(map(resolver.shorten, resolver.shadow_changes(row))))
    compiled = [name for name in (*files, *shadowing) if name.endswith(PRECOMPILED_SUFFIX)]
    if any(name in files or name.removesuffix(PRECOMPILED_SUFFIX) in files for name in compiled):
        # A header's content when it was precompiled is not known.
        return None
    return ManifestUpdate(
        row=row._replace(shadowing=shadowing),
        texts={files[name]: text for name, text in read.user_files.items()},
    )


class _ReadFiles(NamedTuple):
    """The files that were read: facts, digests by name, and contents of the user's own."""

    scans: list[TextScan]
    digests: dict[str, str]
    user_files: dict[str, bytes]


def _read_files(
    reads: ObservedReads, resolver: FileResolver, scans: TextScans
) -> _ReadFiles | None:
    """Return the files that were read; None if one has changed since the compilation began."""
    read = _ReadFiles([], {}, {})
    for name in reads.names:
        path = resolver.resolve(name)
        is_user_file = not resolver.normalize(name).startswith(reads.system)
        facts = None
        # A header that is gone is found out about below.
        with contextlib.suppress(OSError):
            facts = None if is_user_file or reads.has_unlisted else scans.facts(path)
        if facts is None:
            text = _unchanged_content(path, reads.since)
            if text is None:
                return None
            facts = scans.source(text), text_digest(text)
            if is_user_file:
                read.user_files[name] = text
        elif has_changed(path, reads.since):
            return None
        scan, read.digests[name] = facts
        read.scans.append(scan)
    return read


def _has_unlisted_reads(
    reads: ObservedReads, found: list[TextScan], user_texts: list[bytes]
) -> bool:
    """Return True if the compiler may have read files that no list names."""
    has_timestamp = any(map(has_timestamp_text, reads.preprocessed))
    if has_timestamp or any(scan.reads_unlisted for scan in found):
        return True
    texts = [scan.joined or b"" for scan in found]
    return reads.has_unlisted and _could_be_unlisted(texts, user_texts)


def _known_digests(
    names: Iterable[str], digest: Callable[[str], str | None]
) -> dict[str, str] | None:
    """Return each name's digest; None if one of them has none."""
    digests = {name: digest(name) for name in names}
    return {name: one for name, one in digests.items() if one} if all(digests.values()) else None


def has_changed_reads(reads: ObservedReads, resolver: FileResolver) -> bool:
    """Return True if a file or tool may have changed since the compilation began."""
    files = map(resolver.resolve, (*reads.names, *reads.tools))
    return any(has_changed(path, reads.since) for path in files)


def _has_changed_tools(reads: ObservedReads, resolver: FileResolver) -> bool:
    return has_changed_reads(reads._replace(names=()), resolver)


def _unchanged_content(path: str, since: int) -> bytes | None:
    """Return the content of a file that hasn't changed since then."""
    file = Path(path)
    try:
        # A device or a pipe has no content of its own.
        content = file.read_bytes() if file.is_file() else None
    except OSError:
        return None
    # What changes while it is read has changed afterwards.
    return None if has_changed(path, since) else content


def _definition(macro: str) -> bytes:
    """Return the line that would define a macro of the command line."""
    name, _, value = macro.partition("=")
    return f"#define {name} {value}".encode(errors="surrogateescape")


def _could_be_unlisted(texts: Sequence[bytes], user_texts: Iterable[bytes]) -> bool:
    """Return True if only preprocessed text can show all reads and uses of the clock."""
    return may_paste_time_macro(texts) or any(map(has_macro_in_assembly, user_texts))


def _searched_for(files: Iterable[str], resolver: FileResolver) -> Iterator[str]:
    """Yield the names of files relative to the include folders."""
    spelled = [f"{each}/" for each in resolver.includes]
    folders = tuple({*spelled, *(f"{resolver.normalize(each)}/" for each in resolver.includes)})
    for name in files:
        # What a source includes may lead out of the folder again.
        for path in {name, resolver.normalize(name)}:
            if path.startswith(folders):
                yield from (path.removeprefix(each) for each in folders if path.startswith(each))
