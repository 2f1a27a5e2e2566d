"""Leave out of a source what only the host compiles and no other unit of a program can have; pure.

A function with a name that the linker sees is in one unit of a program only. Two sources that both
have such a function never meet in a program, so what else they are need not tell them apart. Where
that is written in a way that can't be misread, the bodies of such functions are left out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

__pure__ = True

_CONTINUED = re.compile(rb"\\\r?\n")
_UNREADABLE = re.compile(rb'R"|<%|\?\?|\basm\b')
_TOKEN = re.compile(
    rb"""^[ \t]*\#[^\n]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|\w+|\S""", re.MULTILINE
)
_DIRECTIVE = re.compile(rb"[ \t]*#[ \t]*(\w*)[ \t]*(.*?)[ \t\r]*", re.DOTALL)
_HOST = re.compile(rb"ifndef\s+__CUDA_ARCH__|if\s+!\s*defined\s*\(?\s*__CUDA_ARCH__\s*\)?")
_NOTHING = re.compile(
    rb"^[ \t]*#[ \t]*(?:%s)[ \t\r]*\n\s*#[ \t]*endif\b[^\n]*" % _HOST.pattern, re.MULTILINE
)
_SCOPE = re.compile(rb'(?:inline )?namespace \w+(?: : : \w+)*|extern "C"')
_TYPES = (
    b"void|int|float|double|bool|char|short|long|unsigned|signed|const|size_t|ptrdiff_t"
    b"|u?int(?:8|16|32|64)_t|cudaStream_t|cudaError_t"
)
_VISIBLE = rb'__attribute__ \( \( visibility \( "default" \) \) \) '
_PARAMETER = rb"(?:(?:%s|\*|&) )+(?:\w+ )?" % _TYPES
_FUNCTION = re.compile(
    rb'(?:extern "C" |__host__ |%s)*(?:(?:%s|\*) )+(?=\w*[a-z])(?!(?:%s) )\w+ '
    rb"\( (?:%s(?:, %s)*)?\)(?: noexcept)?" % (_VISIBLE, _TYPES, _TYPES, _PARAMETER, _PARAMETER)
)
_MEANINGS = re.compile(
    rb"^[ \t]*#[ \t]*define[ \t]+(?:%s|extern|__host__)\b" % _TYPES, re.MULTILINE
)


def strip_own_functions(text: bytes) -> bytes:
    """The text without functions that no other unit may define, but for the first one's head.

    Args:
        text: without comments; lines count.

    Returns:
        All of it where anything is odd, or there is no such function.
    """
    text = _CONTINUED.sub(b"", text)
    if _UNREADABLE.search(text) or _MEANINGS.search(text):
        return text
    reader = _Reader(text)
    try:
        reader.read()
    except _OddError:
        return text
    return reader.rest()


class _OddError(Exception):
    """The text isn't what it should be."""


@dataclass(slots=True)
class _Reader:
    """Goes through the declarations of a text."""

    text: bytes
    heads: list[tuple[int, int]] = field(default_factory=list)
    bodies: list[int] = field(default_factory=list)

    def read(self) -> None:
        """Find the functions: where each begins, where its body begins, and where it ends."""
        tokens = list(_TOKEN.finditer(self.text))
        conditions: list[bool] = []
        words: list[bytes] = []
        scopes, at, start = 0, 0, 0
        while at < len(tokens):
            token = tokens[at][0]
            begins = tokens[at].start()
            at += 1
            if token.lstrip().startswith(b"#"):
                _follow(token, conditions)
                # What has a directive inside is no head that can be read.
                words = [b"#"] if words else words
            elif token == b";":
                words = []
            elif token == b"}":
                scopes, words = scopes - 1, []
                if scopes < 0:
                    raise _OddError
            elif token == b"{" and _SCOPE.fullmatch(b" ".join(words)):
                scopes, words = scopes + 1, []
            elif token == b"{":
                at, plain = _behind(tokens, at)
                head = b" ".join(words)
                if plain and all(conditions) and _FUNCTION.fullmatch(head):
                    self.heads.append((start, begins))
                    self.bodies.append(tokens[at - 1].end())
                words = []
            else:
                start = start if words else begins
                words.append(token)
        if scopes or conditions:
            raise _OddError

    def rest(self) -> bytes:
        """What is left of the text."""
        pieces, done = [], 0
        for number, ((start, body), end) in enumerate(zip(self.heads, self.bodies, strict=True)):
            pieces.append(self.text[done : start if number else body])
            done = end
        return _NOTHING.sub(b"", b"".join([*pieces, self.text[done:]]))


def _follow(directive: bytes, conditions: list[bool]) -> None:
    """Keep track of whether all conditions are that the host compiles."""
    found = _DIRECTIVE.fullmatch(directive)
    name = b"" if found is None else found[1]
    if name in {b"if", b"ifdef", b"ifndef"}:
        text = directive.strip().removeprefix(b"#").strip()
        conditions.append(_HOST.fullmatch(text) is not None)
    elif name in {b"else", b"elif", b"elifdef", b"elifndef", b"endif"}:
        if not conditions:
            raise _OddError
        conditions.pop()
        if name != b"endif":
            conditions.append(False)


def _behind(tokens: list[re.Match[bytes]], at: int) -> tuple[int, bool]:
    """The place behind a block, and whether there is no directive in it."""
    depth, plain = 1, True
    while depth:
        if at >= len(tokens):
            raise _OddError
        token = tokens[at][0]
        depth += (token == b"{") - (token == b"}")
        plain = plain and not token.lstrip().startswith(b"#")
        at += 1
    return at, plain
