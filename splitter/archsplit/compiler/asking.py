"""Which headers texts only ask for, without including them; pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__pure__ = True

_ASKS = (b"has_include", b"HAS_INCLUDE")
_QUESTION = re.compile(rb"(\w*(?:has_include|HAS_INCLUDE)\w*)[ \t]*\([ \t(]*([^\n)]*)")
_LITERAL = re.compile(rb"\\?[<\"]([^>\"\n\\]+)\\?[>\"]")
_NAME = re.compile(rb"[A-Za-z_]\w*")
_HEAD = re.compile(rb"[ \t]*#[ \t]*define[ \t]+")
_WRAPPER = re.compile(rb"[ \t]*#[ \t]*define[ \t]+(\w+)\(([^)]*)\)")
_CONTINUED = re.compile(rb"\\\r?\n")
_DEFINED = re.compile(
    rb"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+(\S.*?)[ \t\r]*(?://.*|/\*.*)?$", re.MULTILINE
)


def has_include_names(texts: Sequence[bytes], macros: Iterable[str]) -> frozenset[str] | None:
    """The names in ``__has_include``, and in macros that are called like it.

    A name may be that of a macro, all of whose definitions are then looked at.

    Args:
        texts: of all files that were read.
        macros: what the command line defines, ``NAME=VALUE``.

    Returns:
        The names; None where one can't be told.
    """
    asking = [_CONTINUED.sub(b"", text) for text in texts if any(word in text for word in _ASKS)]
    questions = [question for text in asking for question in _questions(text)]
    if None in questions:
        return None
    words = {word for word in questions if word is not None}
    literal = {found[1] for found in map(_LITERAL.match, words) if found is not None}
    called = {word for word in words if not _LITERAL.match(word)}
    if called:
        defined = _Definitions(texts, macros)
        for name in called:
            meant = _meant(name, defined)
            if meant is None:
                return None
            literal |= meant
    return frozenset(name.decode(errors="surrogateescape") for name in literal)


def _questions(text: bytes) -> Iterator[bytes | None]:
    """What each question asks for: a name in quotes or brackets, or a macro's; None if odd."""
    # A question is on one line, and few lines of megabytes ask: see `_ASKS`.
    lines = (line for line in text.split(b"\n") if any(word in line for word in _ASKS))
    for question in (question for line in lines for question in _QUESTION.finditer(line)):
        line = question.string[: question.start()]
        word = question[2].strip()
        if _HEAD.fullmatch(line):
            # The macro that asks is being defined, and what it asks for stands where it is used.
            continue
        if _LITERAL.match(word):
            yield word
        elif not _NAME.fullmatch(word):
            yield None
        elif not (wrapper := _WRAPPER.match(line)) or word not in _parameters(wrapper):
            yield word
        elif not any(each in wrapper[1] for each in _ASKS):
            # Nobody can tell where a macro is used that isn't called like a question.
            yield None


def _parameters(wrapper: re.Match[bytes]) -> list[bytes]:
    return [name.strip() for name in wrapper[2].split(b",")]


class _Definitions:
    """Definitions of macros, looked for when a macro is met: few are, in megabytes of texts."""

    def __init__(self, texts: Sequence[bytes], macros: Iterable[str]) -> None:
        self._texts = texts
        given = (macro.encode(errors="surrogateescape").partition(b"=") for macro in macros)
        self._given = [(name, value.strip(b"'")) for name, _, value in given]

    def of(self, name: bytes) -> set[bytes]:
        """Return all values that a macro is given anywhere."""
        found = {value for given, value in self._given if given == name}
        for text in self._texts:
            # A name may be broken by the end of a line, but only one that is continued.
            whole = _CONTINUED.sub(b"", text) if b"\\" in text else text
            if name in whole:
                found |= {value for defined, value in _DEFINED.findall(whole) if defined == name}
        return found


def _meant(
    name: bytes, defined: _Definitions, seen: frozenset[bytes] = frozenset()
) -> set[bytes] | None:
    """The headers that a macro may stand for; None if one can't be told.

    None of its definitions being there, the question stands where nobody asks it.
    """
    found: set[bytes] = set()
    for value in defined.of(name):
        literal = _LITERAL.fullmatch(value)
        if literal is not None:
            found.add(literal[1])
            continue
        known = _NAME.fullmatch(value) and value not in seen
        meant = _meant(value, defined, seen | {name}) if known else None
        if meant is None:
            return None
        found |= meant
    return found
