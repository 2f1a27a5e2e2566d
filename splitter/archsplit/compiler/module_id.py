"""The module id of a translation unit: unique in a program, and equal in every checkout.

nvcc uses it in the names of symbols that have internal linkage in a source, but are visible to the
device linker. In: the source, its directory and nvcc's flags. Out: a seed for the id.

A function with external linkage is in one unit of a program only. Two sources that both have such
a function are never in one program, so the rest of their text need not make them different.
The bodies of such functions are left out if their syntax is simple enough to be sure:
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
        All of it if a part has unknown syntax, or if there is no such function.
    """
    text = _CONTINUED.sub(b"", text)
    if _UNREADABLE.search(text) or _MEANINGS.search(text):
        return text
    reader = _Reader(text)
    try:
        reader.read()
    except _UnknownSyntaxError:
        return text
    return reader.rest()


class _UnknownSyntaxError(Exception):
    """The text has a syntax that the reader doesn't know."""


@dataclass(slots=True)
class _Reader:
    """A reader of the declarations of a text."""

    text: bytes
    heads: list[tuple[int, int]] = field(default_factory=list)
    bodies: list[int] = field(default_factory=list)

    def read(self) -> None:
        """Find the start, the start of the body and the end of each function."""
        tokens = list(_TOKEN.finditer(self.text))
        conditions: list[bool] = []
        words: list[bytes] = []
        scopes, at, start = 0, 0, 0
        while at < len(tokens):
            token = tokens[at][0]
            begins = tokens[at].start()
            at += 1
            if token.lstrip().startswith(b"#"):
                _update_conditions(token, conditions)
                # A declaration with a directive inside may be another one for each target.
                words = [b"#"] if words else words
            elif token == b";":
                words = []
            elif token == b"}":
                scopes, words = scopes - 1, []
                if scopes < 0:
                    raise _UnknownSyntaxError
            elif token == b"{" and _SCOPE.fullmatch(b" ".join(words)):
                scopes, words = scopes + 1, []
            elif token == b"{":
                at, plain = _skip_block(tokens, at)
                head = b" ".join(words)
                if plain and all(conditions) and _FUNCTION.fullmatch(head):
                    self.heads.append((start, begins))
                    self.bodies.append(tokens[at - 1].end())
                words = []
            else:
                start = start if words else begins
                words.append(token)
        if scopes or conditions:
            raise _UnknownSyntaxError

    def rest(self) -> bytes:
        """Return the text without the functions."""
        pieces, done = [], 0
        for number, ((start, body), end) in enumerate(zip(self.heads, self.bodies, strict=True)):
            pieces.append(self.text[done : start if number else body])
            done = end
        return _NOTHING.sub(b"", b"".join([*pieces, self.text[done:]]))


def _update_conditions(directive: bytes, conditions: list[bool]) -> None:
    """Update the stack of conditions; an entry is True if only the host compiles the block."""
    found = _DIRECTIVE.fullmatch(directive)
    name = b"" if found is None else found[1]
    if name in {b"if", b"ifdef", b"ifndef"}:
        text = directive.strip().removeprefix(b"#").strip()
        conditions.append(_HOST.fullmatch(text) is not None)
    elif name in {b"else", b"elif", b"elifdef", b"elifndef", b"endif"}:
        if not conditions:
            raise _UnknownSyntaxError
        conditions.pop()
        if name != b"endif":
            conditions.append(False)


def _skip_block(tokens: list[re.Match[bytes]], at: int) -> tuple[int, bool]:
    """Return the index after a block, and True if the block has no directive."""
    depth, plain = 1, True
    while depth:
        if at >= len(tokens):
            raise _UnknownSyntaxError
        token = tokens[at][0]
        depth += (token == b"{") - (token == b"}")
        plain = plain and not token.lstrip().startswith(b"#")
        at += 1
    return at, plain


def module_id_seed(
    source: str, *, cwd: Path, flags: tuple[str, ...], place: Path | None = None
) -> str:
    """Return a seed for the module id, unique in a program, equal in every checkout.

    The seed covers the relative path of the source, its text without comments and without bodies
    that `strip_own_functions` removes, the texts of included files beside it, and the flags for
    the preprocessor without absolute paths. The list of all included files would need the
    preprocessor, and a wait for it. A macro that no text of the project names changes no unit, so
    its definition is left out.

    Args:
        source: the absolute path.
        cwd: the working directory of the compiler.
        flags: nvcc's arguments.
        place: the start of the relative path, if not ``cwd``: the root for relocatable code,
            whose units need different names in one program even if all of this is equal.
    """
    digest = hashlib.sha256(os.path.relpath(source, place or cwd).encode(errors="surrogateescape"))
    flags = tuple(flags)
    counted = _without_unused(tuple(_preprocessing(flags)), Path(source), flags, cwd)
    for flag in _with_sorted_macros(tuple(counted)):
        digest.update(b"\0" + flag.encode(errors="surrogateescape"))
    for number, text in enumerate(_texts([Path(source)])):
        plain = _COMMENT.sub(rb"\1 ", text)
        # The first text is the source. Functions of included files are in several units.
        counted_text = plain if number else strip_own_functions(plain)
        # White space doesn't count: a formatter must not change the names of symbols.
        digest.update(b"\0" + b" ".join(counted_text.split()))
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
    values = (flag.partition("=")[2] for flag in counted)
    used = _used(named, (os.fsencode(value) for value in values))
    for number, text in enumerate(
        _texts(*_forced_includes(source, flags, cwd), most=_MOST_SEARCHED)
    ):
        used |= _used(named - used, [text])
        if len(used) == len(named):
            break
        if number == _MOST_SEARCHED - 1:
            # The texts that were not read may name any macro.
            used = named
    yield from (flag for flag in counted if not macros[flag] or used & macros[flag])


def _with_sorted_macros(counted: tuple[str, ...]) -> Iterator[str]:
    """Sort the definitions; their order counts only if a macro has several."""
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


def _used(names: set[str], texts: Iterable[bytes]) -> set[str]:
    # A search for plain bytes is several times as fast as one for all names as words. Headers have
    # megabytes, and a command line has dozens of macros.
    likely = ((name, text) for text in texts for name in names if name.encode() in text)
    return {name for name, text in likely if re.search(rb"(?<!\w)%s(?!\w)" % name.encode(), text)}


def _forced_includes(
    source: Path, flags: tuple[str, ...], cwd: Path
) -> tuple[list[Path], list[Path]]:
    """Return the source with its forced includes, and the folders for includes."""
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
    """Yield the texts of files and of their includes in their own folders or ``folders``."""
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
