"""Name translation units by what they are, wherever they lie."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.compiler.module_id import strip_own_functions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

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


def module_id_seed(
    source: str, *, cwd: Path, flags: tuple[str, ...], place: Path | None = None
) -> str:
    """What tells a translation unit from all others of a program, in another checkout the same.

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
    for flag in _without_unused(tuple(_preprocessing(flags)), Path(source), flags, cwd):
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
