"""Input files of a recipe: all files that can change its build, and the interface among them.

In: a recipe; out: paths relative to its folder. ``#include`` is followed in the text, without a
compiler and without conditions, so that a header for any target, system or macro is an input. A
name that a macro makes can't be resolved that way; the files that a compiler reports are compared
with the list later.

The interface is the public header with all that it includes. Its hash ties plugins to cores.
Comments and strings declare no symbol, so their words don't count.
"""

from __future__ import annotations

import hashlib
import os
import re
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from archsplit.errors import RecipeError
from archsplit.recipe.values import matching_files
from archsplit.system.fs import input_errors, read_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from archsplit.recipe.model import Interface, Recipe, Source

__pure__ = True

_INCLUDE = re.compile(
    r'^[ \t]*#[ \t]*(?:include|include_next|import|embed)[ \t]*(?:"([^"\n]+)"|<([^>\n]+)>)',
    re.MULTILINE,
)
_HINT = "put the file into the recipe's folder: a build must not depend on the folder's place"

_C_FAMILY = tuple(
    f"*.{suffix}"
    for suffix in "c cc cpp cu cuh cxx h hh hpp hxx inc inl ipp tpp".split()  # noqa: SIM905 (short)
)
_LIBRARIES = ("*.a", "*.so", "*.so.*")


_WORD = re.compile(rb"[A-Za-z_][0-9A-Za-z_]*")
# A character literal is short: the apostrophes of 1'000'000 and of #error texts begin none.
_NO_CODE = re.compile(
    rb"//[^\n]*|/\*.*?(?:\*/|\Z)|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.[^'\n]{0,4}|[^'\\\n])'", re.DOTALL
)


_Include = tuple[int, Path, "PurePosixPath | None"]
"""Line of an ``#include``, the file, and its name; None for one outside of the recipe."""
ReadIncludes = dict[tuple[PurePosixPath, tuple[PurePosixPath, ...]], tuple[_Include, ...]]
"""Includes of files, by the file and the searched folders."""


def find_included_files(
    root: Path,
    sources: Iterable[PurePosixPath],
    include: Sequence[PurePosixPath],
    *,
    known: ReadIncludes | None = None,
) -> frozenset[PurePosixPath]:
    """Return the files below ``root`` that the sources include, directly or not.

    Args:
        root: the recipe's folder; all paths are relative to it.
        sources: the sources.
        include: the folders to search, after the folder of the including file.
        known: the includes of files that were read before; new ones are added.

    Raises:
        InputError: a file can't be read.
        RecipeError: a source includes a file outside of ``root``; lists all such includes.
    """
    # A worklist: headers include each other, also in circles.
    waiting, found, faults = list(sources), set(sources), []
    known = {} if known is None else known
    while waiting:
        file = waiting.pop()
        key = file, tuple(include)
        if key not in known:
            known[key] = tuple(_found_includes(root, file, include))
        for line, path, name in known[key]:
            if name is None:
                faults.append(f"{file}:{line}: includes {path}, which is outside of {root}")
            elif name not in found:
                found.add(name)
                waiting.append(name)
    if faults:
        raise RecipeError("\n".join(sorted(faults)), hint=_HINT)
    return frozenset(found)


def relative_name(root: Path, path: Path) -> PurePosixPath | None:
    """Return the path of a file relative to ``root``, or None if outside of it.

    A link below ``root`` keeps its own path, wherever its target is.
    """
    for form in (Path(os.path.normpath(path)), path.resolve()):
        # Behind a linked folder, ".." leads to another folder than the text of the path.
        if form.is_relative_to(root) and form.exists() and form.samefile(path):
            return PurePosixPath(form.relative_to(root))
    return None


def _found_includes(
    root: Path, file: PurePosixPath, include: Sequence[PurePosixPath]
) -> Iterator[_Include]:
    for line, candidates in _includes(root, file, include):
        path = next((path for path in candidates if path.is_file()), None)
        # A system header, or one under a condition that is false here: not an input.
        if path is not None:
            yield line, path, relative_name(root, path)


def _includes(
    root: Path, file: PurePosixPath, include: Sequence[PurePosixPath]
) -> Iterator[tuple[int, tuple[Path, ...]]]:
    """Return each ``#include`` with its line and candidate paths, in a compiler's order."""
    text = read_file(root / file).decode(errors="surrogateescape")
    for match in _INCLUDE.finditer(text):
        quoted, angled = match.groups()
        folders = include if quoted is None else (file.parent, *include)
        line = text.count("\n", 0, match.start()) + 1
        yield line, tuple(root / folder / (quoted or angled) for folder in folders)


def find_input_files(recipe: Recipe) -> tuple[PurePosixPath, ...]:
    """Return the recipe's input files, sorted and relative to its folder.

    Input files are the files that the recipe names; all files that its sources include by name,
    directly or not; C++ files below the include folders and the folders of the sources, included or
    not; and the libraries below the library folders.

    Raises:
        InputError: a file or folder can't be read.
        RecipeError: a source includes a file from outside of the recipe's folder.
    """
    source = recipe.source
    found = {recipe.file, recipe.interface.header, *recipe.project.license_files}
    found.update(filter(None, [recipe.project.readme]))
    found.update(recipe.python.root / file for file in recipe.python.files)
    found.update(find_included_files(recipe.root, [recipe.interface.header], source.all_include))
    # Each source has its own folders: two headers may have the same name.
    for include, files in _by_include(source).items():
        found.update(find_included_files(recipe.root, files, include))
    for folder in {*source.all_include, *(file.parent for file in source.files)}:
        found.update(_below(recipe, folder, _C_FAMILY))
    for folder in recipe.link.library_folders:
        found.update(_below(recipe, folder, _LIBRARIES))
    return tuple(sorted(found))


def _by_include(source: Source) -> dict[tuple[PurePosixPath, ...], list[PurePosixPath]]:
    found: dict[tuple[PurePosixPath, ...], list[PurePosixPath]] = {}
    for file in source.files:
        found.setdefault(source.include_of(file), []).append(file)
    return found


def find_unlisted_inputs(recipe: Recipe, listed: Iterable[Path], toolkit: Path) -> Iterator[str]:
    """Return messages about files that a compiler read and `find_input_files` lacks.

    Args:
        recipe: the recipe, with its input files.
        listed: the files in the compiler's depfile, without system headers; relative to the
            recipe's folder.
        toolkit: the toolkit's root folder, whose files are not inputs.
    """
    input_files = frozenset(recipe.input_files)
    toolkit_folders = (toolkit, (toolkit / "include").resolve())
    for path in (recipe.root / each for each in listed):
        if any(relative_name(folder, path) for folder in toolkit_folders):
            continue
        name = relative_name(recipe.root, path)
        # nvcc read a file that another machine may lack.
        if name is None:
            yield f"{path} is included, which is outside of {recipe.root}"
        elif name not in input_files:
            yield f"{name} is included, but not by a name that is written in a source"


def _below(
    recipe: Recipe, folder: PurePosixPath, names: tuple[str, ...]
) -> Iterator[PurePosixPath]:
    with input_errors(recipe.root / folder):
        files = matching_files(recipe.root, folder / "**")
    return (file for file in files if any(fnmatchcase(file.name, name) for name in names))


def declared_identifiers(header: bytes) -> frozenset[bytes]:
    """Return all words of a header that could declare a function, without its comments."""
    return frozenset(_WORD.findall(_NO_CODE.sub(b" ", header)))


def find_undeclared(
    root: Path, interface: Interface, include: Sequence[PurePosixPath]
) -> Iterator[tuple[int, str]]:
    """Yield each symbol that no header of the interface declares, with its position.

    Args:
        root: the recipe's folder.
        interface: the header, which may include others of the folder, and the symbols.
        include: the folders to search for included headers.

    Raises:
        InputError: a header can't be read.
        RecipeError: a header includes a file from outside of the recipe's folder.
    """
    files = find_included_files(root, [interface.header], include)
    known = frozenset().union(*(declared_identifiers(read_file(root / file)) for file in files))
    for index, symbol in enumerate(interface.symbols):
        if symbol.encode() not in known:
            yield index, symbol


def hash_interface(recipe: Recipe) -> bytes:
    """Return the SHA-256 of the sorted symbols, the header, and the headers that it includes.

    Raises:
        InputError: a header can't be read any more.
    """
    root, header = recipe.root, recipe.interface.header
    # The order of symbols and the line ends of a checkout change no interface.
    symbols = "".join(f"{symbol}\n" for symbol in sorted(recipe.interface.symbols))
    digest = hashlib.sha256(symbols.encode() + b"\n" + _content(root / header))
    # A type of an argument may be declared in another header.
    included = find_included_files(root, [header], recipe.source.all_include) - {header}
    for file in sorted(included):
        digest.update(f"\n{file}\n".encode() + _content(root / file))
    return digest.digest()


def _content(path: Path) -> bytes:
    return read_file(path).replace(b"\r\n", b"\n")
