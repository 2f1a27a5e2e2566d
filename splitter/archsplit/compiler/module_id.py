"""The module id of a translation unit: unique in a program, and equal in every checkout.

nvcc makes names of it for what has internal linkage in a source but is visible to the device
linker. In: the source, its directory and nvcc's flags. Out: a seed for the id.

A function with a name that the linker sees is in one unit of a program only. Two sources that both
have such a function never meet in a program, so that the rest of them need not tell them apart.
Where that is written in a way that can't be misread, the bodies of such functions are left out:
`strip_own_functions`, which is pure.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

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

_INCLUDED = re.compile(
    rb'^[ \t]*#[ \t]*include(?:_next)?[ \t]*(?:"([^"\n]+)"|<([^>\n]+)>)', re.MULTILINE
)
_FOLDERS = {"-I", "-isystem", "--include-path", "--system-include"}
_FORCED = {"-include", "--pre-include"}
_ALONE = {
    *("-D", "-U", "-I", "-include", "-isystem", "--define-macro", "--undefine-macro"),
    *("--pre-include", "--include-path", "--system-include"),
}
_ABSOLUTE = re.compile(r"(?:^-I|[ =])/")
_DEFINES = re.compile(r"(?:-[DU]|--(?:un)?define-macro[ =]) ?(.*)", re.DOTALL)
_MACRO = re.compile(r"(?:^|,)\s*([A-Za-z_]\w*)")
_MOST = 256
_MOST_SEARCHED = 2048
_COMMENT = re.compile(
    rb"""//[^\n]*|/\*.*?\*/|("(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')""", re.DOTALL
)


def strip_own_functions(text: bytes) -> bytes:
    """Return the text without the bodies of functions with external linkage.

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
        """Return the text without the functions."""
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


def module_id_seed(
    source: str, *, cwd: Path, flags: tuple[str, ...], place: Path | None = None
) -> str:
    """Return a seed for the module id, unique in a program, equal in every checkout.

    That is the way to it from where it is compiled, its text without comments and without what
    `strip_own_functions` leaves out, the texts of the files beside it that it includes, and the
    flags for the preprocessor that aren't absolute paths. To know all files that it includes would
    mean to wait for the preprocessor. A macro that no text of the project names changes no unit, so
    that its definition doesn't count.

    Args:
        source: absolute.
        cwd: where it is compiled.
        flags: nvcc's arguments.
        place: from where the way to it counts, if not from ``cwd``: the root for relocatable code,
            whose units may not share a name in one program even if they are equal in all of this.
    """
    digest = hashlib.sha256(os.path.relpath(source, place or cwd).encode(errors="surrogateescape"))
    flags = tuple(flags)
    counted = _without_unused(tuple(_preprocessing(flags)), Path(source), flags, cwd)
    for flag in _with_sorted_macros(tuple(counted)):
        digest.update(b"\0" + flag.encode(errors="surrogateescape"))
    for number, text in enumerate(_texts([Path(source)])):
        plain = _COMMENT.sub(rb"\1 ", text)
        # The first one is the source.
        told = plain if number else strip_own_functions(plain)
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


def _without_unused(
    counted: tuple[str, ...], source: Path, flags: tuple[str, ...], cwd: Path
) -> Iterator[str]:
    """Leave out definitions of macros that no text of the project names."""
    macros = {flag: _macros(flag) for flag in counted}
    named = {macro for names in macros.values() for macro in names}
    used = _used(named, (flag.partition("=")[2] for flag in counted))
    for number, text in enumerate(_texts(*_given(source, flags, cwd), most=_MOST_SEARCHED)):
        used |= _used(named - used, [text.decode(errors="replace")])
        if len(used) == len(named):
            break
        if number == _MOST_SEARCHED - 1:
            # What comes after these may name anything.
            used = named
    yield from (flag for flag in counted if not macros[flag] or used & macros[flag])


def _with_sorted_macros(counted: tuple[str, ...]) -> Iterator[str]:
    """Sort the definitions, whose order counts only where one macro has several."""
    macros = {flag: _macros(flag) for flag in counted}
    names = [name for flag in counted for name in macros[flag]]
    if len(names) > len(set(names)):
        yield from counted
        return
    yield from (flag for flag in counted if not macros[flag])
    yield from sorted(flag for flag in counted if macros[flag])


def _macros(flag: str) -> set[str]:
    defines = _DEFINES.fullmatch(flag)
    return set() if defines is None else set(_MACRO.findall(defines[1].strip("'\"")))


def _used(names: set[str], texts: Iterable[str]) -> set[str]:
    if not names:
        return set()
    pattern = re.compile(rf"\b(?:{'|'.join(map(re.escape, sorted(names)))})\b")
    return {name for text in texts for name in pattern.findall(text)}


def _given(source: Path, flags: tuple[str, ...], cwd: Path) -> tuple[list[Path], list[Path]]:
    """Return the files that are read first, and the folders for includes."""
    files, folders = [source], []
    words = iter(flags)
    for word in words:
        name, equals, value = word.partition("=")
        if word.startswith("-I") and word != "-I":
            name, value = "-I", word.removeprefix("-I").removeprefix("=")
        elif not equals and name in _FOLDERS | _FORCED:
            value = next(words, "")
        if name in _FOLDERS:
            folders += [cwd / each for each in value.split(",")]
        elif name in _FORCED:
            files += [cwd / each for each in value.split(",")]
    return files, folders


def _texts(
    files: list[Path], folders: Sequence[Path] = (), *, most: int = _MOST
) -> Iterator[bytes]:
    """Read the files, and what they include from their own folders or these."""
    waiting, seen, read = list(files), set(files), 0
    while waiting and read < most:
        path = waiting.pop()
        try:
            text = path.read_bytes()
        except OSError:
            continue
        yield text
        read += 1
        for quoted, bracketed in _INCLUDED.findall(text):
            name = os.fsdecode(quoted or bracketed)
            places = (*([path.parent] if quoted else []), *folders)
            for other in (place / name for place in places):
                if other not in seen:
                    seen.add(other)
                    waiting.append(other)
