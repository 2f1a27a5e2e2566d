"""The cores of a release, each with the wheels that an installer takes for it.

In: a folder with the wheels of a release: one core for each Python and platform, and packs that
serve one core or several. Out: for each core the files that belong to it. A view is a folder with
these alone, so whatever reads a release of one core reads a view.
"""

from __future__ import annotations

import contextlib
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from archsplit.errors import ArchsplitError, WheelError
from archsplit.release.identity import IDENTITY_FILE, LOADER_PACKAGE, parse_identity
from archsplit.release.list_checks import wheels_in
from archsplit.system.fs import output_errors, temporary_dir
from archsplit.wheels.filename import WheelName
from archsplit.wheels.reader import open_wheel

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from archsplit.release.identity import Identity


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreView:
    """A core, and the files of a folder that are installed with it.

    Attributes:
        core: the path of its wheel.
        files: all of them, the core first.
        missing: the distributions of which no file fits.
    """

    core: Path
    name: WheelName
    identity: Identity
    files: tuple[Path, ...]
    missing: tuple[str, ...]


def core_views(folder: Path) -> tuple[CoreView, ...]:
    """Return the cores of a folder, sorted by file name; damaged wheels are in every view."""
    paths = wheels_in(folder)
    cores = {path: found for path in paths if (found := _identity(path)) is not None}
    names = {path: name for path in paths if (name := _name(path)) is not None}
    plugins = {one for identity in cores.values() for one in identity.plugins.values()}
    fixed = [
        path
        for path in paths
        if path not in cores and (path not in names or names[path].project not in plugins)
    ]
    return tuple(
        _view(path, identity, {p: n for p, n in names.items() if p not in cores}, fixed)
        for path, identity in cores.items()
        if path in names
    )


@contextmanager
def view_folder(view: CoreView) -> Iterator[Path]:
    """Yield a folder with links to the files of a view."""
    with temporary_dir() as folder:
        for path in view.files:
            with output_errors(folder):
                (folder / path.name).symlink_to(path.resolve())
        yield folder


def fitting_file(core: WheelName, files: Sequence[WheelName]) -> WheelName | None:
    """Return the file that an installer takes beside a core, of one distribution's files.

    Its platforms are those of the core or any. A file with the core's own Python and ABI is
    preferred to one for any Python.
    """
    there = [
        file
        for file in files
        if file.platforms == ("any",) or not set(core.platforms).isdisjoint(file.platforms)
    ]
    own = [
        file
        for file in there
        if not set(core.pythons).isdisjoint(file.pythons)
        and not set(core.abis).isdisjoint(file.abis)
    ]
    generic = [file for file in there if "none" in file.abis and _is_generic(file.pythons)]
    # A platform's own file comes before one for any.
    found = sorted([*own, *generic], key=lambda file: (file in generic, file.platforms == ("any",)))
    return found[0] if found else None


def _is_generic(pythons: Sequence[str]) -> bool:
    return not set(pythons).isdisjoint({"py3", "py2.py3"})


def _view(
    core: Path, identity: Identity, names: dict[Path, WheelName], fixed: list[Path]
) -> CoreView:
    name = WheelName.parse(core.name)
    files, missing = [core], []
    for distribution in dict.fromkeys(identity.plugins.values()):
        own = {one: path for path, one in names.items() if one.project == distribution}
        found = fitting_file(name, tuple(own))
        if found is None:
            missing.append(distribution)
        else:
            files.append(own[found])
    return CoreView(
        core=core,
        name=name,
        identity=identity,
        files=(*files, *fixed),
        missing=tuple(missing),
    )


def _name(path: Path) -> WheelName | None:
    with contextlib.suppress(WheelError):
        return WheelName.parse(path.name)
    return None


def _identity(path: Path) -> Identity | None:
    """Return the identity of a core; None for other wheels, and for those that can't be read."""
    end = f"/{LOADER_PACKAGE}/{IDENTITY_FILE}"
    with contextlib.suppress(ArchsplitError), open_wheel(path, same_tags=False) as wheel:
        for name in wheel.names:
            if name.endswith(end):
                return parse_identity(wheel.read(name), where=name)
    return None
