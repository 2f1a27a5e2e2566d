"""Files that a compilation reads, found as compilers find them; and its unlisted inputs.

In: a row of a manifest, with digests of files and programs. Out: whether all are unchanged, and
whether no new file would be read in place of one.

The second part finds unlisted inputs: those that no line marker of preprocessed text names. The
assembler reads a file by ``.incbin`` and ``.include``. A source can build these directives out of
strings, escapes, macros of the preprocessor and macros of the assembler. The clock macros
(``__DATE__``, ``__TIME__`` and ``__TIMESTAMP__``) can be built by macros as well, so that no source
has their names: then only their values in preprocessed text show them.

Equal headers with ``#pragma once`` are another unlisted input. gcc skips such a header after one
with the same time, size and content. The skipped one is listed nowhere, and a ``touch`` makes gcc
read it.
"""

from __future__ import annotations

import itertools
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from archsplit.cache.entry import KeyComponent
from archsplit.compiler.direct_hit import shadow_changes
from archsplit.compiler.machine_facts import PROGRAM_GROUP
from archsplit.system.env import find_program
from archsplit.system.patterns import lazy_pattern

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from archsplit.cache.entry import ManifestRow
    from archsplit.cache.file_digests import FileDigests
    from archsplit.compiler.tool_identity import ToolIdentities

INCLUDE_PREFIX = "<include>/"
"""Prefix of paths that are relative to the include folders."""
VARIABLE_PREFIX = "$"
"""Prefix of environment variables among the programs of a manifest row."""


class FileResolver(NamedTuple):
    """Rules that resolve names to files and programs.

    A named tuple and not a dataclass, as everything on the way to a hit: the import of
    `dataclasses` takes 9 ms of the 50 that a hit may take.

    Attributes:
        cwd: the folder that relative paths are relative to.
        environment: the environment variables, with ``PATH``.
        includes: the include folders, in the order of the search.
        digests: computes and caches digests of files.
        group: see `FileDigests.digest`.
        tools: has the replies of compilers; None if the rows have no queries.
    """

    cwd: Path | str
    environment: Mapping[str, str]
    digests: FileDigests
    group: str
    includes: tuple[str, ...] = ()
    tools: ToolIdentities | None = None

    def resolve(self, spelled: str) -> str:
        """Return the absolute path of a file, existing or missing."""
        # Most are absolute, and joining costs more than all else here.
        if spelled.startswith("/"):
            return spelled
        # Relative to an include folder, so that another checkout has the same row.
        if spelled.startswith(INCLUDE_PREFIX):
            name = spelled.removeprefix(INCLUDE_PREFIX)
            places = [os.path.join(self.cwd, folder, name) for folder in self.includes]  # noqa: PTH118
            return next(filter(os.path.exists, places), name)
        return os.path.join(self.cwd, spelled)  # noqa: PTH118 - thousands: a Path each would cost more

    def shorten(self, path: str) -> str:
        """Return an absolute path relative to the working folder, if it is below that."""
        return path.removeprefix(f"{self.cwd}/")

    def normalize(self, spelled: str) -> str:
        """Return the path without ``..``, only for comparisons: links make it another file."""
        return os.path.normpath(self.resolve(spelled))

    def digest(self, spelled: str) -> str | None:
        """Return the digest of a file; None for one that can't be read."""
        return self.digests.digest(self.resolve(spelled), group=self.group)

    def tool_digest(self, spelled: str) -> str | None:
        """Return the digest of a tool of the compiler, which is cached for all requests."""
        # nvcc has 30 MB: a digest for one request would be computed again for the next source.
        return self.digests.digest(self.resolve(spelled), group=PROGRAM_GROUP)

    def program_digest(self, name: str) -> str | None:
        """Return the digest of a program; None if it isn't found.

        Of a name with `VARIABLE_PREFIX`, return the variable's value; of a query to a compiler, the
        reply's digest (see `archsplit.compiler.tool_identity.identity_query`).
        """
        if name.startswith(VARIABLE_PREFIX):
            return self.environment.get(name.removeprefix(VARIABLE_PREFIX))
        # A header that is tested for: one that isn't there must not come.
        if name.startswith(INCLUDE_PREFIX):
            return self.digest(name) or ""
        # A query to a compiler, not a program's name.
        if " " in name:
            return None if self.tools is None else self.tools.reply_digest(name, self.environment)
        path = find_program(name, self.environment.get("PATH", ""))
        return None if path is None else self.tool_digest(os.path.realpath(path))

    def is_current(self, row: ManifestRow) -> bool:
        """Return True if all files and programs of a manifest row are unchanged."""
        return (
            all(self.digest(path) == digest for path, digest in row.files)
            and all(self.program_digest(name) == digest for name, digest in row.programs)
            and not self.shadow_changes(row)
        )

    def shadow_changes(self, row: ManifestRow) -> set[str]:
        """Return the files that differ from `ManifestRow.shadowing` now, absolute."""
        files = (self.resolve(path) for path, _ in row.files)
        folders, shadowing = map(self.resolve, row.folders), map(self.resolve, row.shadowing)
        return shadow_changes(folders, row.names, files, shadowing)

    def changed_files(self, row: ManifestRow) -> list[str]:
        """Return the row's files that have another content now."""
        return [path for path, digest in row.files if self.digest(path) != digest]

    def changes(self, row: ManifestRow) -> Iterator[KeyComponent]:
        """Yield what differs from a manifest row, with its current value; "" for nothing."""
        for path in (changed := self.changed_files(row)):
            yield KeyComponent(f"file {path}", self.digest(path) or "")
        for name, digest in row.programs:
            if (now := self.program_digest(name)) != digest:
                yield KeyComponent(f"program {name}", now or "")
        # A changed file is reason enough: folders are listed only if nothing else differs.
        if changed:
            return
        for path in sorted(map(self.shorten, self.shadow_changes(row))):
            yield KeyComponent(f"file {path}", "it now shadows another file")


_STRING = rb'R"(?P<raw>\w{0,16})\((?s:.*?)\)(?P=raw)"|"[^"\\]*(?:\\.[^"\\]*)*"'
_STATEMENT = lazy_pattern(rb'asm(?:__)?\b(?:[^;"R]+|%s|R(?!"))*' % _STRING)
_BLANK = rb"(?:[ \t\r\f\v]|\\+[trfv]|/\*(?s:.*?)\*/)*"
"""White space for the assembler, also as escapes in a string."""
_READ_DIRECTIVE = lazy_pattern(
    rb'\.incbin\b[ \t]*(?:\\*"([^"\\\n]*))?|\.include%b(?:\\*"|\?[\w./])' % _BLANK
    + rb"|\.(?:macro|irpc?|altmacro)\b",
    re.IGNORECASE,
)
"""Directives that read a file, or define an assembler macro, which can build any directive."""
_DIRECTIVE_START = lazy_pattern(rb"\.(?:[iI](?:[nN][cC]|[rR][pP])|[mM][aA][cC]|[aA][lL][tT])")
_JOINT = lazy_pattern(rb'(?:\)\w{0,16})?"(?:\s|^#[^\n]*\n)*(?:u8)?(?:R"\w{0,16}\(|")', re.MULTILINE)
"""Joint of adjacent strings, which become one, also around a line marker."""
_CUT = lazy_pattern(
    rb'\.(?:[aimAIM]\w*%b|%b[aimAIM")])' % (_JOINT.pattern, _JOINT.pattern), re.MULTILINE
)
"""A joint within a directive's name; it is found in a tenth of the time of all joints."""
_ESCAPE = lazy_pattern(
    rb"\\(?:x([0-9a-fA-F]{1,4})|([0-7]{1,3})|u00([0-9a-fA-F]{2})|U000000([0-9a-fA-F]{2}))"
)
_DELIMITED = lazy_pattern(rb"\\[xouN]\{")
"""C++23's escapes, such as ``\\x{2e}`` and ``\\N{FULL STOP}``."""
_TEMPLATE = lazy_pattern(
    rb"(?<!\w)(?:__)?asm(?:__)?\b\s*(?:(?:__)?(?:volatile|goto|inline)(?:__)?\s*)*\(((?:%s|[^\":;])*)"
    % _STRING
)
_WORD = lazy_pattern(rb"%s|(?P<word>[A-Za-z_]\w*)" % _STRING)
_COMMENT = lazy_pattern(rb'//[^\n]*|/\*(?s:.*?)\*/|("(?:\\.|[^"\\\n])*")')


def reads_files(text: bytes, private: str = "") -> bool:
    """Return True if the assembler will read files that no marker names.

    Args:
        text: of a source, preprocessed or not, or assembly.
        private: the prefix of paths that are known in another way.
    """
    if _has_read_directive(text, private):
        return True
    # Nearly no text has inline assembly, and the patterns below are slow.
    if b"asm" not in text:
        return False
    found = (statement[0] for statement in _STATEMENT.finditer(text))
    # Only statements with a dot, or with a backslash, which may begin its escape, have directives.
    statements = [each for each in found if b"." in each or b"\\" in each]
    if any(map(_DELIMITED.search, statements)):
        return True
    plain = (_ESCAPE.sub(_character, each) for each in statements)
    # Without a cut, each directive is within one string.
    joined = (_JOINT.sub(b"", each) if _CUT.search(each) else each for each in plain)
    return _has_read_directive(b";".join(joined), private)


def has_macro_in_assembly(text: bytes) -> bool:
    """Return True if an unpreprocessed source has macros in its inline assembly."""
    if b"asm" not in text:
        return False
    plain = _COMMENT.sub(rb"\1 ", text)
    templates = (found[1] for found in _TEMPLATE.finditer(plain))
    return any(word["word"] for each in templates for word in _WORD.finditer(each))


def _has_read_directive(text: bytes, private: str) -> bool:
    # A quick search for the starts first: a pattern that ignores case is slow.
    places = (mention.start() for mention in _DIRECTIVE_START.finditer(text))
    found = filter(None, (_READ_DIRECTIVE.match(text, place) for place in places))
    return not all(private and (name[1] or b"").startswith(private.encode()) for name in found)


def _character(escape: re.Match[bytes]) -> bytes:
    digits = escape[1] or escape[3] or escape[4]
    character = chr(int(digits, 16) if digits else int(escape[2], 8))
    # No directive has other characters, and a quote would end the string.
    return character.encode() if character.isascii() and character not in '"\\' else b"?"


_CLOCK = (b"__DATE__", b"__TIME__")
_SPLICES = {start: lazy_pattern(rb"%s[ \t]*\r?\n" % re.escape(start)) for start in (b"\\", b"??/")}
"""Patterns of line splices by first characters; one pattern for both takes ten times as long."""
_PIECES = (b"__TI", b"__DA", b"IME__", b"ATE__", b"STAMP__")
_PIECE = lazy_pattern(
    rb"\b(?:__(?:TIM?|TIME_|TIMEST(?:AM?P?|AMP_)?|DAT?|DATE_|(?:TIME|DATE)(?=[ \t]*(?:,|##)))"
    rb"|_?(?:T?IME|D?ATE|(?:TIME)?STAMP)__)\b"
)
"""Parts of the names of the clock macros."""
_PASTED = lazy_pattern(rb"(?<!\w)__?[ \t]*##|##[ \t]*__?(?!\w)")
_PASSED = lazy_pattern(rb"[(,]\s*__?\s*[,)]")
"""Underscores as an argument of a macro, which may paste them."""
_BARE = lazy_pattern(rb"\b(?:TIME|DATE|(?:TIME)?STAMP)\b")
_MONTHS = b"Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()
_TIMESTAMP = lazy_pattern(
    rb'"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}'
)
_MOMENT = lazy_pattern(rb'"(?:[A-Z][a-z]{2} [ \d]\d \d{4}|\d\d:\d\d:\d\d)|' + _TIMESTAMP.pattern)
"""A string with any date or time: one search, which hardly any text needs more than."""
_MINUTE = 60
_EPOCH = lazy_pattern(r"\s*\+?0*[0-9]{1,12}")
"""A value of ``SOURCE_DATE_EPOCH`` that gcc reads: the last has 12 digits, in the year 9999."""


def join_continued_lines(text: bytes) -> bytes:
    """Return the text with its continued lines made one, as a preprocessor begins."""
    for start, splice in _SPLICES.items():
        if start in text:
            text = splice.sub(b"", text)
    return text


def has_time_macro(texts: Iterable[bytes]) -> bool:
    """Return True if a text names the date or the time."""
    return any(word in text for text in texts for word in _CLOCK)


def may_have_time_macro(text: bytes) -> bool:
    """Return True if a text has a part of a clock macro's name."""
    return any(piece in text for piece in _PIECES) and _PIECE.search(text) is not None


def may_paste_time_macro(texts: Sequence[bytes]) -> bool:
    """Return True if unpreprocessed texts could put underscores around ``TIME`` or ``DATE``."""
    likely = (text for text in texts if any(word in text for word in (b"TIME", b"DATE", b"STAMP")))
    naming = [text for text in likely if _BARE.search(text)]
    # Most sources don't have the words, and the rest is slow.
    if not naming:
        return False
    pasting = (text for text in texts if b"##" in text)
    return any(map(_PASTED.search, pasting)) or any(map(_PASSED.search, naming))


def has_time_text(texts: Iterable[bytes], *, since: int, epoch: str | None) -> bool:
    """Return True if preprocessed texts have the date or the time of the compilation.

    Args:
        since: start of the first preprocessor run, in nanoseconds since 1970.
        epoch: the value of ``SOURCE_DATE_EPOCH``; None if it isn't set.
    """
    clock_texts = set(_clock_texts(since, epoch))
    # The whole date and the hour first: each search of a text with megabytes counts.
    starts = {each[:4] if each.endswith(b":") else each for each in clock_texts}
    likely = (text for text in texts if any(start in text for start in starts))
    return any(each in text for text in likely for each in clock_texts)


def has_moment_text(text: bytes) -> bool:
    """Return True if a string of a text begins with a date or time."""
    return _MOMENT.search(text) is not None


def has_timestamp_text(text: bytes) -> bool:
    """Return True if a preprocessed text has what looks like ``__TIMESTAMP__``."""
    return _TIMESTAMP.search(text) is not None


def _clock_texts(since: int, epoch: str | None) -> Iterator[bytes]:
    # gcc writes SOURCE_DATE_EPOCH in place of the clock's time.
    if epoch is not None and _EPOCH.fullmatch(epoch):
        moments = [time.gmtime(int(epoch))]
    else:
        first, last = since // 10**9 - 1, int(time.time()) + 1
        moments = [time.localtime(each) for each in (*range(first, last, _MINUTE), last)]
    for moment in moments:
        yield b"%s %2d %d" % (_MONTHS[moment.tm_mon - 1], moment.tm_mday, moment.tm_year)
        # After a slash it is the name of a header, which a macro names.
        yield from (b"%c%02d:%02d:" % (start, moment.tm_hour, moment.tm_min) for start in b'"/')


_SPACE = rb"(?:[ \t]|/\*.*?\*/)"
_HASH = rb"(?:#|%%:|\?\?=)%b*" % _SPACE
_ONCE = lazy_pattern(rb"once\b")
_ONCE_ANYWHERE = lazy_pattern(_HASH + rb"(?:import\b|define\b[^\n]*\bonce\b)")
"""Directives by which each header may be read once."""
_NAMED = lazy_pattern(
    rb'%b(?:in\w+|im\w+|define%b+\w+)%b*(?:"([^"\n]+)"|<([^>\n]+)>)' % (_HASH, _SPACE, _SPACE)
)
"""Directives that include a header, or define a macro that may name one."""


def has_equal_headers(headers: Mapping[str, bytes], unread: Iterable[str]) -> bool:
    """Return True if another header has the content of one with ``#pragma once``.

    Args:
        headers: contents of the project's files that were read, by their absolute paths.
        unread: see `unread_headers`.
    """
    is_any = any(map(_ONCE_ANYWHERE.search, headers.values()))
    once = {content for content in headers.values() if is_any or _ONCE.search(content)}
    # Include guards don't depend on times.
    if not once:
        return False
    files = {_identity(place): content for place, content in headers.items()}
    if len([content for content in files.values() if content in once]) > len(once):
        return True
    return any(_content(place) in once for place in unread if _identity(place) not in files)


def linked_headers(headers: Mapping[str, bytes], unread: Iterable[str]) -> dict[str, bytes]:
    """Return links by which headers were found, and the contents of the headers.

    GCC names a header in a system folder by its real path if that is shorter.

    Args:
        headers: see `has_equal_headers`.
        unread: see `unread_headers`.
    """
    return {link: headers[path] for link in unread if (path := os.path.realpath(link)) in headers}


def _content(place: str) -> bytes | None:
    try:
        return Path(place).read_bytes()
    except OSError:
        return None


def _identity(place: str) -> tuple[int, int]:
    try:
        status = os.stat(place)  # noqa: PTH116 - thousands: a Path each would cost more
    except OSError:
        return (0, 0)
    return (status.st_dev, status.st_ino)


def unread_headers(headers: Mapping[str, bytes], searched: Sequence[str]) -> list[str]:
    """Return the paths of headers that texts include, but that weren't read by this name.

    Args:
        headers: see `has_equal_headers`.
        searched: the project's include folders, absolute.
    """
    named = dict.fromkeys(
        (including.rpartition("/")[0] if quoted else "", os.fsdecode(quoted or bracketed))
        for including, content in headers.items()
        for quoted, bracketed in _NAMED.findall(content)
    )
    found: dict[str, None] = {}
    for folder, name in named:
        places = (os.path.join(each, name) for each in filter(None, (folder, *searched)))  # noqa: PTH118
        # The same header in a later folder, as in a build folder, is never looked at.
        found |= dict.fromkeys(itertools.islice(filter(os.path.exists, places), 1))
    return sorted(found.keys() - headers.keys())
