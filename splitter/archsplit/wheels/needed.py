"""Search of installed packages for the libraries that a library needs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.errors import ArchsplitError
from archsplit.formats.elf import Elf
from archsplit.formats.elf_dynamic import Dynamic
from archsplit.formats.reader import open_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def find_needed_folders(library: Path, places: Iterable[Path]) -> tuple[Path, ...]:
    """Find the folders of all libraries that a library needs, directly or through others.

    For libraries whose search path doesn't lead to their dependencies: an extension of PyTorch
    counts on libraries that PyTorch loads before.

    Args:
        places: site-packages folders; the first folder with a library wins.
    """
    available = _libraries_by_name(places)
    found: dict[str, Path] = {}
    waiting = [library]
    while waiting:
        for name in _needed_names(waiting.pop()):
            if name in available and name not in found:
                found[name] = available[name]
                waiting.append(available[name])
    return tuple(dict.fromkeys(path.parent for path in found.values()))


def _libraries_by_name(places: Iterable[Path]) -> Mapping[str, Path]:
    found: dict[str, Path] = {}
    for place in places:
        for folder, folders, files in os.walk(place):
            folders.sort()
            for name in sorted(files):
                if ".so" in name:
                    found.setdefault(name, Path(folder, name))
    return found


def _needed_names(library: Path) -> tuple[str, ...]:
    try:
        return tuple(Dynamic(Elf(open_file(library))).needed)
    except ArchsplitError:
        # The dynamic loader reports a damaged library better, when it is loaded.
        return ()
