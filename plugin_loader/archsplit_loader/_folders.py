"""Folders of the core and of its plugins."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._core import Core

FOLDER = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 (pathlib is slow)


def plugin_folders(core: Core, folder: str = FOLDER) -> tuple[str, ...]:
    """Return the folders that may hold plugins, the one beside the core's package first.

    What Python imports from only because a program runs there is left out: users who can write into
    a working folder shall not choose what is opened.
    """
    site = os.path.dirname(os.path.dirname(folder))  # noqa: PTH120 (pathlib is slow)
    # The same folder may be listed twice; a plugin in it counts once.
    places = (site, *filter(_is_site_folder, sys.path))
    return tuple(dict.fromkeys(os.path.join(place, core.plugins_package) for place in places))  # noqa: PTH118 (the same)


def pack_folders(core: Core, folder: str = FOLDER) -> tuple[str, ...]:
    """Return the folders that may hold device packs, in the order of ``pack_folders.c``.

    Beside the core's own files; beside the core with the links that lead to it, as in Nix, conda
    and Bazel; then along ``sys.path``, whose entries with such a folder are the portions of that
    namespace package. The first is always listed, the others where they exist.
    """
    sites = [os.path.dirname(os.path.dirname(each)) for each in (_real_folder(folder), folder)]  # noqa: PTH120 (pathlib is slow)
    places = (*sites, *filter(_is_site_folder, sys.path))
    # The first is listed even if it is missing: messages and installers name it.
    first, *others = (os.path.join(place, core.plugins_package) for place in places)  # noqa: PTH118 (the same)
    found = [first]
    for each in others:
        # One folder is often reached in two ways, and its packs count once.
        is_new = os.path.exists(os.path.join(each, "cuda")) and not any(  # noqa: PTH110, PTH118 (the same)
            is_same(each, other) for other in found
        )
        found += [each] if is_new else []
    return tuple(found)


def _real_folder(folder: str) -> str:
    """Return the core's folder without links, and without those that its files are."""
    table = os.path.realpath(table_path(folder))
    place, name = os.path.split(table)
    # A store that files are in by their digests has no folder of a core.
    return place if name == os.path.basename(table_path()) else os.path.realpath(folder)  # noqa: PTH119 (pathlib is slow)


def table_path(folder: str = FOLDER) -> str:
    """Return the core's table."""
    return os.path.join(folder, "core.pack")  # noqa: PTH118 (pathlib is slow)


def _is_site_folder(place: object) -> bool:
    """Return True if an entry of ``sys.path`` is a folder that packages are installed to."""
    # Python accepts other objects here, and passes them over.
    if not isinstance(place, str) or not os.path.isabs(place):  # noqa: PTH117 (pathlib is slow)
        return False
    return not is_same(place, os.curdir)


def is_same(one: str, other: str) -> bool:
    """Return True if two paths are one file, as ld.so compares them; missing files differ."""
    try:
        return os.path.samefile(one, other)  # noqa: PTH121 (pathlib is slow)
    except OSError:  # one of the two is not there
        return False
