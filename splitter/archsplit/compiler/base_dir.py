"""The folders of ``base-dir``: those that the user names, or the tops of source and build trees.

A direct record names the folders that it was made with, so a hit looks for them again. This module
imports nothing that Python's start hasn't imported.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

AUTO = "auto"
_CMAKE_CACHE = "CMakeCache.txt"
_CMAKE_SOURCE = "CMAKE_HOME_DIRECTORY:INTERNAL="


def find_base_dirs(setting: str, folders: tuple[str, ...]) -> list[str]:
    """Return the base folders, each by its names; [] for none.

    Args:
        setting: the value of ``base-dir``.
        folders: the working folder by its names, with and without links.
    """
    if not setting:
        return []
    found = [setting] if setting != AUTO else [top for each in folders for top in _tops(each)]
    real = map(os.path.realpath, found)
    # GCC takes what is before the first equals sign for the folder.
    return [path for path in dict.fromkeys([*found, *real]) if path != "/" and "=" not in path]


def _tops(folder: str) -> Iterator[str]:
    """Yield the top of the source tree, and of a build tree outside of it."""
    build = _find_above(folder, _CMAKE_CACHE)
    source = None if build is None else _cmake_source(build)
    top = _find_above(source or folder, ".git") or source
    if top is not None:
        yield top
    if build is not None and source is not None and not f"{build}/".startswith(f"{top}/"):
        yield build


def _find_above(folder: str, name: str) -> str | None:
    while not os.path.exists(f"{folder}/{name}"):  # noqa: PTH110 - no pathlib in a hit
        parent = os.path.dirname(folder)  # noqa: PTH120 - as above
        if parent == folder:
            return None
        folder = parent
    return folder


def _cmake_source(build: str) -> str | None:
    try:
        with open(f"{build}/{_CMAKE_CACHE}", errors="surrogateescape") as file:  # noqa: PTH123 - as above
            for line in file:
                if line.startswith(_CMAKE_SOURCE):
                    return os.path.normpath(line.removeprefix(_CMAKE_SOURCE).strip())
    except OSError:
        return None
    return None
