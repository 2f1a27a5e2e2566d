"""Where the libraries lie that a library needs, in folders of installed packages."""

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
    """Find the folders of all libraries that one needs, and that those need in turn.

    The way for a library that counts on others to be loaded before it, as a PyTorch extension does:
    its own search path doesn't lead to them.

    Args:
        places: site-packages folders; the first that has a library gives it.
    """
    there = _libraries(places)
    found: dict[str, Path] = {}
    waiting = [library]
    while waiting:
        for name in _needed(waiting.pop()):
            if name in there and name not in found:
                found[name] = there[name]
                waiting.append(there[name])
    return tuple(dict.fromkeys(path.parent for path in found.values()))


def _libraries(places: Iterable[Path]) -> Mapping[str, Path]:
    found: dict[str, Path] = {}
    for place in places:
        for folder, folders, files in os.walk(place):
            folders.sort()
            for name in sorted(files):
                if ".so" in name:
                    found.setdefault(name, Path(folder, name))
    return found


def _needed(library: Path) -> tuple[str, ...]:
    try:
        return tuple(Dynamic(Elf(open_file(library))).needed)
    except ArchsplitError:
        # The loader says what is wrong with it.
        return ()
