"""The folders of the core and of its plugins."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._core import Core

FOLDER = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 (pathlib is slow)


def plugin_folders(core: Core, folder: str = FOLDER) -> tuple[str, ...]:
    """Return the folders that may hold plugins, the one beside the core's package first.

    What Python imports from only because a program runs there is left out: whoever can write into
    a working folder shall not choose what is opened.
    """
    site = os.path.dirname(os.path.dirname(folder))  # noqa: PTH120 (pathlib is slow)
    places = (site, *filter(_is_installed_to, sys.path))
    return tuple(dict.fromkeys(os.path.join(place, core.plugins_package) for place in places))  # noqa: PTH118 (the same)


def pack_folders(core: Core, folder: str = FOLDER) -> tuple[str, ...]:
    """Return the folder that may hold device packs, as the C code has it."""
    site = os.path.dirname(os.path.dirname(os.path.realpath(folder)))  # noqa: PTH120 (pathlib is slow)
    return (os.path.join(site, core.plugins_package),)  # noqa: PTH118 (the same)


def stray_packs(core: Core, folder: str = FOLDER) -> tuple[str, ...]:
    """Folders of device packs from which Python could import, and where the libraries don't look.

    They come from an installation for one user, with ``--target``, or into an environment that sees
    the system's packages.
    """
    own = {os.path.realpath(each) for each in pack_folders(core, folder)}
    places = filter(_is_installed_to, sys.path)
    found = (os.path.join(place, core.plugins_package) for place in places)  # noqa: PTH118 (pathlib is slow)
    return tuple(
        each
        for each in dict.fromkeys(found)
        if os.path.realpath(each) not in own and os.path.isdir(os.path.join(each, "cuda"))  # noqa: PTH112, PTH118 (the same)
    )


def table_path(folder: str = FOLDER) -> str:
    """The core's table."""
    return os.path.join(folder, "core.pack")  # noqa: PTH118 (pathlib is slow)


def _is_installed_to(place: object) -> bool:
    """Return True if an entry of ``sys.path`` is a folder that packages are installed to."""
    if not isinstance(place, str) or not os.path.isabs(place):  # noqa: PTH117 (pathlib is slow)
        return False
    try:
        return not os.path.samefile(place, os.curdir)  # noqa: PTH121 (the same)
    except OSError:  # one of the two is not there
        return True
