"""Name translation units by what they are, wherever they lie."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from splitter.drop_in.definitions import without_own_functions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_QUOTED = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.MULTILINE)
_ALONE = {
    *("-D", "-U", "-I", "-include", "-isystem", "--define-macro", "--undefine-macro"),
    *("--pre-include", "--include-path", "--system-include"),
}
_ABSOLUTE = re.compile(r"(?:^-I|[ =])/")
_MOST = 256
_COMMENT = re.compile(
    rb"""//[^\n]*|/\*.*?\*/|("(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')""", re.DOTALL
)


def unit_seed(source: str, *, cwd: Path, flags: tuple[str, ...]) -> str:
    """What tells a translation unit from all others of a program, in another checkout the same.

    That is the way to it from where it is compiled, its text without comments and without what
    `without_own_functions` leaves out, the texts of the files beside it that it includes, and the
    flags for the preprocessor that aren't absolute paths. To look for the other files that it
    includes would mean to wait for the preprocessor.

    Args:
        source: absolute.
        cwd: where it is compiled; the root for relocatable code, whose units may not share a name
            in one program even if they are equal in all of this.
        flags: nvcc's arguments.
    """
    digest = hashlib.sha256(os.path.relpath(source, cwd).encode(errors="surrogateescape"))
    for flag in _preprocessing(flags):
        digest.update(b"\0" + flag.encode(errors="surrogateescape"))
    for number, text in enumerate(_texts(Path(source))):
        plain = _COMMENT.sub(rb"\1 ", text)
        # The first one is the source.
        told = plain if number else without_own_functions(plain)
        digest.update(b"\0" + b" ".join(told.split()))
    return digest.hexdigest()


def _preprocessing(flags: Iterable[str]) -> Iterator[str]:
    words = iter(flags)
    for word in words:
        if word in _ALONE:
            text = f"{word} {next(words, '')}"
        elif word.startswith(("-D", "-U", "-I")) or word.partition("=")[0] in _ALONE:
            text = word
        else:
            continue
        if not _ABSOLUTE.search(text):
            yield text


def _texts(source: Path) -> Iterator[bytes]:
    """The source, and what it includes from its own folder, directly or not."""
    waiting, seen = [source], {source}
    while waiting and len(seen) < _MOST:
        path = waiting.pop()
        try:
            text = path.read_bytes()
        except OSError:
            continue
        yield text
        for name in _QUOTED.findall(text):
            other = path.parent / os.fsdecode(name)
            if other not in seen:
                seen.add(other)
                waiting.append(other)
