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


def find_needed_folders(library: Path, sites: Iterable[Path]) -> tuple[Path, ...]:
    """Find the folders of all libraries that a library needs, directly or through others.

    For libraries whose search path doesn't lead to their dependencies: an extension of PyTorch
    counts on libraries that PyTorch loads before.

    Args:
        sites: site-packages folders; the first folder with a library wins.
    """
    available = _libraries_by_name(sites)
    path_by_name: dict[str, Path] = {}
    pending = [library]
    while pending:
        for name in _needed_names(pending.pop()):
            # A library of the system isn't here, and the dynamic loader finds it by itself.
            if name in available and name not in path_by_name:
                path_by_name[name] = available[name]
                pending.append(available[name])
    return tuple(dict.fromkeys(path.parent for path in path_by_name.values()))


def _libraries_by_name(sites: Iterable[Path]) -> Mapping[str, Path]:
    path_by_name: dict[str, Path] = {}
    for site in sites:
        for folder, folders, files in os.walk(site):
            # The order of os.walk is that of the disk, and the first library of a name wins.
            folders.sort()
            for name in sorted(files):
                # Versions come after the suffix: libcudart.so.12.
                if ".so" in name:
                    path_by_name.setdefault(name, Path(folder, name))
    return path_by_name


def _needed_names(library: Path) -> tuple[str, ...]:
    try:
        return tuple(Dynamic(Elf(open_file(library))).needed)
    except ArchsplitError:
        # The dynamic loader reports a damaged library better, when it is loaded.
        return ()
