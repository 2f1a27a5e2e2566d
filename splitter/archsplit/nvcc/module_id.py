"""The module id of a translation unit: unique in a program, and equal in every checkout.

nvcc uses it in the names of symbols that have internal linkage in a source, but are visible to the
device linker. In: the source, its directory and nvcc's flags. Out: a seed for the id.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.system.patterns import lazy_pattern

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_INCLUDED = lazy_pattern(
    rb'^[ \t]*#[ \t]*include(?:_next)?[ \t]*(?:"([^"\n]+)"|<([^>\n]+)>)', re.MULTILINE
)
_FOLDER_OPTIONS = {"-I", "-isystem", "--include-path", "--system-include"}
_FORCED_INCLUDE_OPTIONS = {"-include", "--pre-include"}
_VALUE_OPTIONS = {
    *("-D", "-U", "-I", "-include", "-isystem", "--define-macro", "--undefine-macro"),
    *("--pre-include", "--include-path", "--system-include"),
}
_ABSOLUTE = lazy_pattern(r"(?:^-I|[ =])/")
_DEFINES = lazy_pattern(r"(?:-[DU]|--(?:un)?define-macro[ =]) ?(.*)", re.DOTALL)
_MACRO = lazy_pattern(r"(?:^|,)\s*([A-Za-z_]\w*)")
_MOST_HASHED = 256
"""Most texts of a source that count for its id."""
_MOST_SEARCHED = 2048
"""Most texts that are searched for the names of macros."""
_COMMENT = lazy_pattern(
    rb"""//[^\n]*|/\*.*?\*/|("(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')""", re.DOTALL
)


def module_id_seed(
    source: str, *, cwd: Path, flags: tuple[str, ...], place: Path | None = None
) -> str:
    """Return a seed for the module id, unique in a program, equal in every checkout.

    The seed covers the relative path of the source, its text without comments, the texts of
    included files beside it, and the flags for the preprocessor without absolute paths. The list of
    all included files would need the preprocessor, and a wait for it. A macro that no text of the
    project names changes no unit, so its definition is left out.

    Args:
        source: the absolute path.
        cwd: the working directory of the compiler.
        flags: nvcc's arguments.
        place: the start of the relative path, if not ``cwd``: the root for relocatable code,
            whose units need different names in one program even if all of this is equal.
    """
    digest = hashlib.sha256(os.path.relpath(source, place or cwd).encode(errors="surrogateescape"))
    hashed = tuple(_preprocessor_flags(flags))
    # nvcc's shell replaces `$` in a path, so that the name may lead to no file.
    if os.path.isfile(source):  # noqa: PTH113 - False without access
        hashed = tuple(_without_unused(hashed, Path(source), flags, cwd))
    for flag in hashed:
        digest.update(b"\0" + flag.encode(errors="surrogateescape"))
    for text in _texts([Path(source)]):
        # White space doesn't count: a formatter must not change the names of symbols.
        digest.update(b"\0" + b" ".join(_COMMENT.sub(rb"\1 ", text).split()))
    return digest.hexdigest()


def _preprocessor_flags(flags: Iterable[str]) -> Iterator[str]:
    words = iter(flags)
    for word in words:
        if word in _VALUE_OPTIONS:
            text = f"{word} {next(words, '')}"
        elif word.startswith(("-D", "-U", "-I")) or word.partition("=")[0] in _VALUE_OPTIONS:
            text = word
        else:
            continue
        if not _ABSOLUTE.search(text):
            yield text


def _without_unused(
    hashed: tuple[str, ...], source: Path, flags: tuple[str, ...], cwd: Path
) -> Iterator[str]:
    """Leave out definitions of macros that no text of the project names."""
    macros = {flag: _macros(flag) for flag in hashed}
    named = {macro for names in macros.values() for macro in names}
    values = (flag.partition("=")[2] for flag in macros)
    used = _mentioned(named, (os.fsencode(value) for value in values))
    for number, text in enumerate(
        _texts(*_forced_includes(source, flags, cwd), most=_MOST_SEARCHED)
    ):
        used |= _mentioned(named - used, [text])
        if len(used) == len(named):
            break
        if number == _MOST_SEARCHED - 1:
            # The texts that were not read may name any macro.
            used = named
    yield from (flag for flag in hashed if not macros[flag] or used & macros[flag])


def _macros(flag: str) -> set[str]:
    defines = _DEFINES.fullmatch(flag)
    return set() if defines is None else set(_MACRO.findall(defines[1].strip("'\"")))


def _mentioned(names: set[str], texts: Iterable[bytes]) -> set[str]:
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
        elif not equals and name in _FOLDER_OPTIONS | _FORCED_INCLUDE_OPTIONS:
            value = next(words, "")
        if name in _FOLDER_OPTIONS:
            folders += [cwd / each for each in value.split(",")]
        elif name in _FORCED_INCLUDE_OPTIONS:
            files += [cwd / each for each in value.split(",")]
    return files, folders


def _texts(
    files: list[Path], folders: Sequence[Path] = (), *, most: int = _MOST_HASHED
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
