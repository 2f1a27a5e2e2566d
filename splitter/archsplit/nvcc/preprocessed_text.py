"""Preprocessed text: line markers, included files, and the private folder's name; pure.

Edits that only move lines should hit the cache, so line markers are removed if the code can't use
its line numbers. Code gets its own line number by ``__LINE__``, or the line number of its caller by
a default argument. libcu++'s own headers do the latter (``cuda/std/__exception/cuda_error.h`` of
CUDA 13.3, not yet of 13.0). So each source with Thrust asks for line numbers, but hardly any
asks for line numbers of the user's files.
"""

from __future__ import annotations

import functools
import hashlib
import re
from typing import TYPE_CHECKING, NamedTuple

from archsplit.system.patterns import lazy_pattern

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__pure__ = True

_MARKERS_AND_BLANKS = lazy_pattern(rb"\n(?=[\n#])(?:\n|# \d+ [^\n]*\n)+")
"""With the end of the line before, as `_ENTERED`: half the time, of what each cicc waits for."""
_RAW_STRING = lazy_pattern(rb'R"(?=([^\s()\\]{0,16})\()')
"""Start of a raw string literal: another may begin in its delimiter."""
_MAIN = lazy_pattern(rb'^# \d+ "(?:[^"\\\n]|\\.)+".*\n', re.MULTILINE)
_ENTERED = lazy_pattern(rb'\n(# 1 ".+" 1[ \d]*)(?=\n)')
"""With the end of the line before: it is found ten times as fast as the beginning of a line."""
_MARKER_FILE = lazy_pattern(rb'^# \d+ "((?:[^"\\\n]|\\.)+)"', re.MULTILINE)
_WORKING_FOLDER = lazy_pattern(rb'\A(# \d+ [^\n]*\n)# \d+ "(?:[^"\\\n]|\\.)+//"\n')
"""The folder of the compiler, which it writes into the second line with ``-g``."""
_ESCAPED = lazy_pattern(rb"\\(\d{3}|.)")
_PLACEHOLDER = b"\0archsplit:folder\0"
_BUILT_IN = lazy_pattern(rb"<[^>]*>")

_LOCATION = lazy_pattern(rb"__builtin_(?:LINE|FILE|COLUMN|source_location)\b")
_FILE_LOCATION = lazy_pattern(rb"__builtin_(?:FILE|source_location)\b")
_LOCATION_OR_CALL = lazy_pattern(
    rb"__builtin_(?:LINE|FILE|COLUMN)\b|source_location\b|::\s*current\s*\("
)
_TOOLKIT = lazy_pattern(rb'^# 1 "((?:[^"\\\n]|\\.)*/)cuda_runtime\.h" 1\b', re.MULTILINE)
_CCCL = lazy_pattern(rb'^# 1 "((?:[^"\\\n]|\\.)*/)cuda/std/[^"]*" 1\b', re.MULTILINE)
"""GCC shortens ``bin/../include``, but only for folders of system headers, as this one."""
_LINE_MARKER = lazy_pattern(rb'^# (\d+) "((?:[^"\\\n]|\\.)*)"[ \d]*\n', re.MULTILINE)
_LAST_WORD = lazy_pattern(rb"(\w+)\s*\Z")
_RESERVED = lazy_pattern(rb"__\w|_[A-Z]|\w+__")
_ASSERTION = lazy_pattern(
    rb'__assert_fail \((?:\s|#.*)*"(?:[^"\\\n]|\\.)*"(?:\s|#.*)*, '
    rb"(__builtin_FILE \(\), __builtin_LINE \(\))(?=, )"
)
"""``assert`` of glibc 2.38 and newer, in every C++ source that doesn't define ``NDEBUG``.

GCC writes markers around what a system header's macro adds to its arguments.
"""
_OWN_ACCESSORS = {b"current", b"source_location"}
"""A call of one of them also names `source_location` or has ``::current(``."""
_MOST = 10_000
"""Most bytes of a parameter list that are scanned."""


def text_digest(content: bytes) -> str:
    """Return the SHA-256 of a text."""
    return hashlib.sha256(content).hexdigest()


def raw_string_lines(text: bytes) -> list[tuple[int, int]]:
    """Return the start and end of whole lines with raw string literals of several lines.

    A literal of one line does no harm, nor does text that only looks like a literal.
    """
    found: list[tuple[int, int]] = []
    for start in _RAW_STRING.finditer(text):
        close = b')%s"' % start[1]
        end = text.find(close, start.end())
        end = len(text) if end < 0 else end + len(close)
        if text.find(b"\n", start.end(), end) >= 0:
            first = text.rfind(b"\n", 0, start.start()) + 1
            last = (text.find(b"\n", end) + 1) or len(text)
            # Two literals may have a line in common.
            while found and first < found[-1][1]:
                before = found.pop()
                first, last = before[0], max(last, before[1])
            found.append((first, last))
    return found


def has_open_raw_string(text: bytes) -> bool:
    """Return True if what looks like a raw string literal doesn't end in the text."""
    starts = _RAW_STRING.finditer(text)
    return any(text.find(b')%s"' % start[1], start.end()) < 0 for start in starts)


def without_markers(text: bytes) -> bytes:
    """Return the text without line markers and empty lines; raw strings keep theirs."""
    pieces = (
        piece
        for start, end, next_start in _code_lines(text)
        for piece in (_without_markers(text[start:end]), text[end:next_start])
    )
    # A single piece, as of most texts, isn't copied.
    return b"".join(filter(None, pieces))


def _code_lines(text: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield the start and end of the lines around raw strings, and the next start."""
    start = 0
    for first, last in raw_string_lines(text):
        yield start, first, last
        start = last
    yield start, len(text), len(text)


def _without_markers(text: bytes) -> bytes:
    return _MARKERS_AND_BLANKS.sub(b"\n", b"\n" + text)[1:]


def without_working_folder(text: bytes) -> bytes:
    """Return the text without the marker that names the working folder."""
    found = _WORKING_FOLDER.match(text)
    return text if found is None else text.replace(found[0], found[1], 1)


def uses_location(text: bytes) -> bool:
    """Return True if code asks for its own file or line, or for its caller's."""
    return _LOCATION.search(text) is not None


def uses_file(text: bytes) -> bool:
    """Return True if code asks for its own file, or its caller's."""
    return _FILE_LOCATION.search(text) is not None


def include_markers(text: bytes) -> bytes:
    """Return the markers of the files in a text, each once, the source first."""
    main = _MAIN.search(text)
    entered = (line + b"\n" for line in _ENTERED.findall(b"\n" + text))
    return b"".join(dict.fromkeys([*([] if main is None else [main[0]]), *entered]))


# Texts for several targets have the same markers.
@functools.lru_cache(maxsize=4)
def included_files(markers: bytes) -> tuple[str, ...]:
    """Return the files that markers name, as they are spelled, each once."""
    names = dict.fromkeys(_MARKER_FILE.findall(markers))
    files = (name for name in names if not _BUILT_IN.fullmatch(name))
    plain = (_ESCAPED.sub(_character, name) if b"\\" in name else name for name in files)
    return tuple(name.decode(errors="surrogateescape") for name in plain)


def to_placeholder(content: bytes, folder: str) -> bytes:
    """Return the content with the private folder's name taken out."""
    return content.replace(folder.encode(), _PLACEHOLDER)


def from_placeholder(content: bytes, folder: str) -> bytes:
    """Return the content with a private folder's name put in."""
    return content.replace(_PLACEHOLDER, folder.encode())


def _character(escape: re.Match[bytes]) -> bytes:
    code = escape[1]
    return bytes([int(code, 8)]) if len(code) > 1 else code


class _Part(NamedTuple):
    """A section between two line markers: the file it comes from, the marker, and the text."""

    file: bytes
    marker: bytes
    text: bytes


def with_assert_locations(text: bytes, show: Callable[[bytes], bytes] = lambda name: name) -> bytes:
    """Return the text with the file and line of each assertion as literals.

    Args:
        show: returns the name of a file that a result may have.
    """
    if b"__builtin_FILE" not in text:
        return text
    pieces, end = [], 0
    for found in _ASSERTION.finditer(text):
        marker = _LINE_MARKER.match(text, text.rfind(b"\n# ", 0, found.start(1)) + 1)
        # Without a marker the file has no name.
        if marker is not None:
            # A marker gives the number of the line behind it.
            line = int(marker[1]) + text.count(b"\n", marker.end(), found.start(1))
            pieces += [text[end : found.start(1)], b'"%s", %d' % (show(marker[2]), line)]
            end = found.end()
    return b"".join([*pieces, text[end:]])


def strip_unused_line_markers(text: bytes) -> bytes:
    """Return the text without the markers and empty lines that change no meaning.

    If the user's code asks for its line, or names a function of the toolkit that does, all of them
    stay. If only the toolkit's own code asks, only the markers of the toolkit's files stay.
    """
    # No code asks for its line, so that no marker has a meaning.
    if not uses_location(text) or not uses_location(text := with_assert_locations(text)):
        return without_markers(text)
    toolkit = tuple(found[1] for found in (_TOOLKIT.search(text), _CCCL.search(text)) if found)
    # Without the toolkit's headers it is not known whose code asks.
    if not toolkit:
        return text
    parts = list(_parts(text))
    if not _uses_only_own_lines(parts, toolkit):
        return text
    return b"".join(_visible_text(part, toolkit) for part in parts)


def _parts(text: bytes) -> Iterator[_Part]:
    """Yield the parts of a text, the first without a marker."""
    markers = [
        marker
        for start, end, _ in _code_lines(text)
        for marker in _LINE_MARKER.finditer(text, start, end)
    ]
    ends = [*(marker.start() for marker in markers), len(text)]
    yield _Part(b"", b"", text[: ends[0]])
    for marker, end in zip(markers, ends[1:], strict=True):
        yield _Part(marker[2], marker[0], text[marker.end() : end])


def _visible_text(part: _Part, toolkit: tuple[bytes, ...]) -> bytes:
    folder = max(filter(part.file.startswith, toolkit), key=len, default=None)
    if folder is None:
        return without_markers(part.text)
    # The same toolkit in another folder gives the same text.
    return part.marker.replace(folder, b"<toolkit>/", 1) + part.text


def _uses_only_own_lines(parts: list[_Part], folders: tuple[bytes, ...]) -> bool:
    """Return True if the toolkit's headers use only their own line numbers."""
    toolkit = [part for part in parts if part.file.startswith(folders)]
    whole = b"".join(part.text for part in toolkit)
    others = b"".join(part.text for part in parts if not part.file.startswith(folders))
    # If the user's own code asks, all lines count.
    if _LOCATION_OR_CALL.search(others):
        return False
    names = _functions_with_location(whole)
    if names is None or (names and _words(names).search(others)):
        return False
    use = {part.file for part in toolkit if _LOCATION_OR_CALL.search(part.text)}
    elsewhere = b"".join(part.text for part in toolkit if part.file not in use)
    # A function with one of these as a parameter gets the caller's line without naming it.
    public = {name for name in names if not _RESERVED.match(name)} | _classes(names, whole)
    return not public or _words(public).search(elsewhere) is None


def _functions_with_location(text: bytes) -> set[bytes] | None:
    """Return the functions whose parameters use the line number of the caller."""
    found: set[bytes] = set()
    for use in _LOCATION_OR_CALL.finditer(text):
        names = _enclosing(text[max(0, use.start() - _MOST) : use.start()])
        if names is None:
            return None
        found |= names
    return found - _OWN_ACCESSORS


def _enclosing(before: bytes) -> set[bytes] | None:
    """Return the names before the parentheses open at a text's end; None if that is cut off."""
    names: set[bytes] = set()
    closed = braces = 0
    for position in range(len(before) - 1, -1, -1):
        character = before[position : position + 1]
        if character in b";{" and not braces:
            return names
        braces += (character == b"}") - (character == b"{")
        closed += character == b")"
        if character == b"(" and closed:
            closed -= 1
        elif character == b"(" and (name := _LAST_WORD.search(before, 0, position)):
            names.add(name[1])
    return names if len(before) < _MOST else None


def _classes(names: set[bytes], text: bytes) -> set[bytes]:
    declared = (re.compile(rb"\b(?:class|struct|union)\b[^;{}]*\b%s\b" % name) for name in names)
    return {name for name, found in zip(names, declared, strict=True) if found.search(text)}


def _words(names: set[bytes]) -> re.Pattern[bytes]:
    return re.compile(rb"\b(?:%s)\b" % b"|".join(sorted(names)))
