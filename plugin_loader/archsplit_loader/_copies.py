"""Other copies of this core: on the search path, and in this process.

ld.so shares what is loaded by name, stubs too. Where two copies of one core are in a process, the
libraries of the second need the stubs of the first, which have done their work; so they stay empty.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from ._bindings import LIBRARY
from ._errors import PluginError
from ._folders import FOLDER, is_same, table_path

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAPS, _PATH = "/proc/self/maps", 5
_ELSEWHERE = "another copy of this core is in {}: where libraries of both are in one process, those"
_EMPTY = "that come second have no device code; remove one of the two"


def copy_warnings(folder: str = FOLDER) -> tuple[str, ...]:
    """Return warnings about copies that Python could import in place of this one."""
    package = os.path.basename(os.path.dirname(folder))  # noqa: PTH119, PTH120 (pathlib is slow)
    copies = []
    # The working folder, "", is not one that packages are installed to.
    for place in filter(None, sys.path):
        other = os.path.join(place, package, os.path.basename(folder))  # noqa: PTH118, PTH119 (the same)
        if any(map(os.path.lexists, _paths(other, _stubs(folder)))) and not is_same(other, folder):
            copies.append(f"{_ELSEWHERE.format(os.path.dirname(other))} {_EMPTY}")  # noqa: PTH120 (the same)
    return tuple(dict.fromkeys(copies))


def check_no_other_copy(folder: str = FOLDER) -> None:
    """See that no other copy of this core was loaded before.

    Raises:
        PluginError: one was.
    """
    # Stubs have names of their own per core and library, so a name is proof enough.
    own = {name: os.path.join(folder, name) for name in _stubs(folder)}  # noqa: PTH118 (pathlib is slow)
    for path in _mapped_files():
        expected = own.get(os.path.basename(path))  # noqa: PTH119 (the same)
        # A single stub, as a program that packs programs copies it, is not a core: the library
        # that needs it names the folder of the loader.
        is_core = os.path.exists(table_path(os.path.dirname(path)))  # noqa: PTH110, PTH120 (the same)
        if expected is not None and is_core and not is_same(path, expected):
            other = os.path.dirname(os.path.dirname(path))  # noqa: PTH120 (the same)
            this = os.path.dirname(folder)  # noqa: PTH120 (the same)
            raise PluginError(
                f"the libraries of {this} have no device code in this process, because the copy in "
                f"{other} was loaded before\nhint: remove one of the two, or start a new process"
            )


def _stubs(folder: str) -> tuple[str, ...]:
    """Return the stubs of the core's libraries; () where plugins are libraries."""
    try:
        names = os.listdir(folder)  # noqa: PTH208 (pathlib is slow)
    except OSError:
        return ()
    return tuple(
        name
        for name in names
        if name.startswith("libarchsplit_") and name.endswith(".so") and name != LIBRARY
    )


def _paths(folder: str, names: tuple[str, ...]) -> Iterator[str]:
    return (os.path.join(folder, name) for name in names)  # noqa: PTH118 (pathlib is slow)


def _mapped_files() -> Iterator[str]:
    """Return the files in this process's memory; none where that can't be known."""
    try:
        with open(_MAPS, encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH123 (pathlib is slow)
            # The path is the rest of the line, and may have spaces.
            rows = [line.rstrip("\n").split(maxsplit=_PATH) for line in file]
    except OSError:
        return iter(())
    return iter(dict.fromkeys(row[_PATH] for row in rows if len(row) > _PATH))
