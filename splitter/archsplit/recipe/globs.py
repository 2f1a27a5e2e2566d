"""Find the files that a pattern means, the same ones on every system and Python version.

`pathlib`'s own globs change between versions in what ``**`` and a trailing ``**`` match.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__pure__ = True


def matching_files(root: Path, pattern: PurePosixPath) -> tuple[PurePosixPath, ...]:
    """List the files below ``root`` that the pattern matches, sorted and relative to ``root``.

    ``*``, ``?`` and ``[…]`` match within one name, ``**`` any number of folders; at the end it
    matches every file below. Names that begin with a dot are matched by patterns that do, too.
    Links are followed, but ``**`` does not enter linked folders, so a circle of links ends.

    Raises:
        OSError: a folder can't be listed.
    """
    parts = (*pattern.parts, "*") if pattern.name == "**" else pattern.parts
    found = {path.relative_to(root).as_posix() for path in _walk(root, parts)}
    return tuple(map(PurePosixPath, sorted(found)))


def _walk(folder: Path, parts: Sequence[str]) -> Iterator[Path]:
    first, *rest = parts
    if first == "**":
        yield from _walk(folder, rest)
    for path in folder.iterdir():
        if first == "**":
            if path.is_dir() and not path.is_symlink() and not path.name.startswith("."):
                yield from _walk(path, parts)
        elif _matches(path.name, first):
            if not rest and path.is_file():
                yield path
            elif rest and path.is_dir():
                yield from _walk(path, rest)


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) and (pattern.startswith(".") or not name.startswith("."))
