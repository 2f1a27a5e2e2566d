"""``archsplit doctor``: what an installed core's own doctor says, without importing the core."""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING

from splitter.errors import InputError, ToolFailedError
from splitter.identity import FACE_FOLDER
from splitter.system.run import Command, SubprocessRunner

if TYPE_CHECKING:
    import argparse

    from rich.console import Console

    from splitter.cli import options


def add_to(verbs: options.Verbs) -> None:
    """Describe the verb."""
    parser = verbs.add_parser("doctor", help="say what serves which GPU for an installed core")
    parser.add_argument("package", help="the core's import package, or its folder")
    parser.add_argument("--full", action="store_true", help="read all of every plugin")
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Ask the core's own doctor, which works where importing the core fails."""
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


def _face(package: str) -> Path:
    """The loader's folder of a core.

    Raises:
        InputError: there is no such package, or it is no core.
    """
    spec = PathFinder.find_spec(package) if package.isidentifier() else None
    installed = [Path(place) for place in (spec and spec.submodule_search_locations) or ()]
    folders = [*([Path(package)] if Path(package).is_dir() else []), *installed]
    for folder in folders:
        if (folder / FACE_FOLDER).is_dir():
            return folder / FACE_FOLDER
    found = "is no core of archsplit's" if folders else "is not installed"
    raise InputError(f"{package} {found}", hint="name the package that is imported")
