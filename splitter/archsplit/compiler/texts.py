"""What is of interest in a preprocessed text, and in texts that name the private folder; pure."""

from __future__ import annotations

import hashlib
import re

__pure__ = True

_MARKER_OR_BLANK = re.compile(rb"^# \d+ .*\n|^[ \t]*\n", re.MULTILINE)
_MAIN = re.compile(rb'^# \d+ "(?:[^"\\\n]|\\.)+".*\n', re.MULTILINE)
_ENTERED = re.compile(rb'^# 1 "(?:[^"\\\n]|\\.)+" 1(?: \d)*\n', re.MULTILINE)
_MARKER_FILE = re.compile(rb'^# \d+ "((?:[^"\\\n]|\\.)+)"')
_ESCAPED = re.compile(rb"\\(\d{3}|.)")
_PLACE = b"\0archsplit:folder\0"
_BUILT_IN = re.compile(rb"<[^>]*>")


def text_digest(content: bytes) -> str:
    """The SHA-256 of a text."""
    return hashlib.sha256(content).hexdigest()


def without_markers(text: bytes) -> bytes:
    """The text without what says where each line comes from, and without empty lines."""
    return _MARKER_OR_BLANK.sub(b"", text)


def include_markers(text: bytes) -> bytes:
    """The markers that say which files a text was made from: the source, and each file once."""
    main = _MAIN.search(text)
    lines = dict.fromkeys([*([] if main is None else [main[0]]), *_ENTERED.findall(text)])
    return b"".join(lines)


def included_files(markers: bytes) -> tuple[str, ...]:
    """The files that markers name, as they are spelled, each once."""
    found: dict[str, None] = {}
    for line in markers.splitlines():
        name = _MARKER_FILE.match(line)
        if name is not None and not _BUILT_IN.fullmatch(name[1]):
            found[_ESCAPED.sub(_character, name[1]).decode(errors="surrogateescape")] = None
    return tuple(found)


def to_placeholder(content: bytes, folder: str) -> bytes:
    """The content with the private folder's name taken out."""
    return content.replace(folder.encode(), _PLACE)


def from_placeholder(content: bytes, folder: str) -> bytes:
    """The content with a private folder's name put in."""
    return content.replace(_PLACE, folder.encode())


def _character(escape: re.Match[bytes]) -> bytes:
    code = escape[1]
    return bytes([int(code, 8)]) if len(code) > 1 else code
