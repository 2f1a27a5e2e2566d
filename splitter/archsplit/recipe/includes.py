"""Follow ``#include`` through a recipe's files by their text alone, without a compiler.

Conditions are not looked at: a file that any target, system or macro could bring in is found. What
only a compiler can resolve, a name made by a macro, is not.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from archsplit.errors import RecipeError
from archsplit.system.fs import read_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__pure__ = True

_INCLUDE = re.compile(
    r'^[ \t]*#[ \t]*(?:include|include_next|import|embed)[ \t]*(?:"([^"\n]+)"|<([^>\n]+)>)',
    re.MULTILINE,
)
_HINT = "put the file into the recipe's folder: what is built must not depend on where that lies"


def included_files(
    root: Path, sources: Iterable[PurePosixPath], include: Sequence[PurePosixPath]
) -> frozenset[PurePosixPath]:
    """Every file below ``root`` that the sources include, also by way of others.

    Args:
        root: the recipe's folder; all paths are relative to it.
        include: the folders to look into, after the one of the including file.

    Raises:
        InputError: a file can't be read.
        RecipeError: lists the includes of files that are there, but outside of ``root``.
    """
    waiting, found, faults = list(sources), set(sources), []
    while waiting:
        file = waiting.pop()
        for line, candidates in _includes(root, file, include):
            path = next((path for path in candidates if path.is_file()), None)
            if path is None:
                continue
            name = name_inside(root, path)
            if name is None:
                faults.append(f"{file}:{line}: includes {path}, which is outside of {root}")
            elif name not in found:
                found.add(name)
                waiting.append(name)
    if faults:
        raise RecipeError("\n".join(sorted(faults)), hint=_HINT)
    return frozenset(found)


def name_inside(root: Path, path: Path) -> PurePosixPath | None:
    """What a file is called relative to ``root``, or None if it is not below it.

    A link that lies below ``root`` is called by its own name, wherever it leads to.
    """
    for form in (Path(os.path.normpath(path)), path.resolve()):
        # Behind a linked folder, ".." is not what the text of the path says.
        if form.is_relative_to(root) and form.exists() and form.samefile(path):
            return PurePosixPath(form.relative_to(root))
    return None


def _includes(
    root: Path, file: PurePosixPath, include: Sequence[PurePosixPath]
) -> Iterator[tuple[int, tuple[Path, ...]]]:
    """Each ``#include``: its line, and where the file may be, in a compiler's order."""
    text = read_file(root / file).decode(errors="surrogateescape")
    for match in _INCLUDE.finditer(text):
        quoted, angled = match.groups()
        folders = include if quoted is None else (file.parent, *include)
        line = text.count("\n", 0, match.start()) + 1
        yield line, tuple(root / folder / (quoted or angled) for folder in folders)
