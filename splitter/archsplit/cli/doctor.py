"""``archsplit doctor``: what an installed core's own doctor says, without importing the core."""

from __future__ import annotations

import os
import sys
from functools import partial
from importlib.machinery import PathFinder
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from archsplit.cli.install import fat_in_place, plugin_core
from archsplit.errors import InputError, ToolFailedError

if TYPE_CHECKING:
    import argparse
    from importlib.metadata import Distribution

    from rich.console import Console

    from archsplit.cli import options


def add_to(verbs: options.Verbs) -> None:
    """Describe the verb."""
    parser = verbs.add_parser("doctor", help="say what serves which GPU for an installed core")
    parser.add_argument(
        "package", help="the core's import package, its folder, or its distribution"
    )
    parser.add_argument("--full", action="store_true", help="read all of every plugin")
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Ask the core's own doctor, which works where importing the core fails."""
    from archsplit.system.process import Command, SubprocessRunner

    del console
    face = _face(arguments.package)
    words = [word for word in ("full", "json") if getattr(arguments, word)]
    argv = (sys.executable, str(face), *(f"--{word}" for word in words))
    command = Command(argv=argv, cwd=Path.cwd(), env=os.environ)
    done = SubprocessRunner().run(command)
    print(done.stdout, end="")  # noqa: T201 - standard output is where data goes
    print(done.stderr, end="", file=sys.stderr)  # noqa: T201 - and talk goes here
    if done.returncode < 0:
        raise ToolFailedError(
            f"the doctor of {arguments.package} was ended by signal {-done.returncode}",
            hint="install the core again",
        )
    return done.returncode


def _face(name: str) -> Path:
    """The loader's folder of a core.

    Raises:
        InputError: there is no such package or distribution, or it has no core.
    """
    from archsplit.release.identity import LOADER_PACKAGE

    spec = PathFinder.find_spec(name) if name.isidentifier() else None
    installed = [Path(place) for place in (spec and spec.submodule_search_locations) or ()]
    folders = [*([Path(name)] if Path(name).is_dir() else []), *installed]
    faces = [folder / LOADER_PACKAGE for folder in folders]
    found = next((face for face in faces if face.is_dir()), None) or _of_distribution(name)
    if found is None:
        fat = next(filter(None, map(partial(_fat, name), distributions())), None)
        if fat is not None:
            raise InputError(fat_in_place(*fat, distributions()))
        fault = "is no core of archsplit's" if folders else "is not installed"
        raise InputError(
            f"{name} {fault}", hint="name the package that is imported, or what pip calls it"
        )
    return found


def _fat(name: str, distribution: Distribution) -> tuple[str, Distribution] | None:
    """The name of the core, and what is installed in its place, where its plugins are here."""
    own = canonicalize_name(distribution.metadata["Name"] or "")
    is_meant = own == canonicalize_name(name) or any(
        row.startswith(f"{name}/") for row in (distribution.read_text("RECORD") or "").splitlines()
    )
    has_plugins = is_meant and any(plugin_core(each) == own for each in distributions())
    return (own, distribution) if has_plugins else None


def _of_distribution(name: str) -> Path | None:
    """The loader's folder that came with a distribution, or with the one that has a package.

    A core's folder lies in a package with the project's own name: ``cupy-cuda12x`` installs
    ``cupy``, and has it in ``cupy_cuda12x``.
    """
    from importlib.metadata import distributions

    from packaging.utils import canonicalize_name

    from archsplit.release.identity import IDENTITY_FILE, LOADER_PACKAGE

    end = f"/{LOADER_PACKAGE}/{IDENTITY_FILE},"
    for one in distributions():
        rows = (one.read_text("RECORD") or "").splitlines()
        core = next((row for row in rows if end in row), None)
        if core is not None and (
            canonicalize_name(one.metadata["Name"] or "") == canonicalize_name(name)
            or any(row.startswith(f"{name}/") for row in rows)
        ):
            return Path(str(one.locate_file(core.partition(end)[0]))) / LOADER_PACKAGE
    return None
