"""``archsplit init``: the recipe that fits a source tree or an sdist."""

from __future__ import annotations

import shlex
import tarfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.cli import options
from archsplit.cli.verbs import add_verb
from archsplit.errors import InputError, OutputError, ToolNotFoundError, UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from rich.console import Console

    from archsplit.recipe.project_recipe import ProposedRecipe

_ARCHIVES = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".zip")
_NOT_AN_SDIST = "an sdist has one folder with a PKG-INFO; name the unpacked source tree instead"


def add_to(verbs: options.Verbs) -> None:
    """Describe the verb."""
    parser = add_verb(
        verbs,
        "init",
        "archsplit init .",
        "archsplit init foo-1.0.tar.gz --out foo",
        description="The recipe builds from sources, or runs the project's own build and splits its"
        " wheel. Nothing of the project is run.",
    )
    parser.add_argument("project", type=Path, help="a source tree, or an sdist (*.tar.gz)")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="the new folder for the files of an sdist (default: its name, here)",
    )
    parser.add_argument("--force", action="store_true", help="replace a recipe.toml")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Read a project, write its recipe, and print what could not be known."""
    from archsplit.recipe.document import RECIPE_FILE
    from archsplit.recipe.project_recipe import propose_recipe
    from archsplit.recipe.project_scan import scan_project
    from archsplit.system.fs import temporary_dir, write_file

    project, out = arguments.project, arguments.out
    if project.is_dir():
        if out is not None:
            raise UsageError("--out is for an sdist; a source tree gets its recipe.toml inside")
        _refuse_existing(project / RECIPE_FILE, force=arguments.force)
        proposed = propose_recipe(scan_project(project), str(project))
        root = project
    else:
        name = _check_archive(project)
        root = out or Path(name)
        if root.exists():
            raise OutputError(f"{root} exists already", hint="choose another folder with --out")
        # Not below a new folder: a refusal leaves nothing behind.
        with temporary_dir(next(one for one in root.absolute().parents if one.is_dir())) as private:
            top = _unpack(project, private)
            proposed = propose_recipe(scan_project(top), str(project))
            root.parent.mkdir(parents=True, exist_ok=True)
            top.rename(root)
    write_file(root / RECIPE_FILE, proposed.text)
    print(root / RECIPE_FILE)  # noqa: T201 - standard output is where data goes
    lines = [f"{root / RECIPE_FILE}: {proposed.reason}"]
    lines += [f"own build: {text}" for text in (*proposed.faults, *_lacking(proposed, console))]
    lines += [f"not known: {text}" for text in proposed.unknown]
    lines += [f"next: archsplit build {shlex.quote(str(root))} --out dist"]
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)
    return 0


def _lacking(proposed: ProposedRecipe, console: Console) -> Iterator[str]:
    """Yield a line if the toolkit at hand can't compile for all targets."""
    from archsplit.build.context import find_toolkit
    from archsplit.nvcc.toolkit import choose_toolkit

    with options.effects(console, quiet=True) as effects:
        attempts = find_toolkit(effects, None)
    try:
        toolkit = choose_toolkit(attempts)
    except ToolNotFoundError:
        # A recipe can be written where nothing is compiled; `build` says what is missing.
        return
    if lacking := sorted(set(proposed.targets) - toolkit.targets):
        names = ", ".join(map(str, lacking))
        yield (
            f"CUDA {toolkit.release} ({toolkit.nvcc}) can't compile for {names}: take them out of"
            " the list, or name another toolkit with `archsplit build --nvcc`"
        )


def _refuse_existing(path: Path, *, force: bool) -> None:
    if path.exists() and not force:
        raise OutputError(f"{path} exists already", hint="--force replaces it")


def _check_archive(path: Path) -> str:
    """Return the name of an sdist's folder.

    Raises:
        InputError: the path is no archive of sources.
    """
    if not path.exists():
        wanted = _requirement(path)
        # Of the name alone: with `:all:`, pip also compiles what the build requires.
        name = wanted.partition("==")[0]
        raise InputError(
            f"{path} is not there",
            hint=f"pip download --no-deps --no-binary {name} {wanted} gets an sdist",
        )
    if path.suffix == ".whl":
        raise InputError(
            f"{path} is a wheel", hint=f"archsplit split {shlex.quote(str(path))} --out DIR"
        )
    for suffix in _ARCHIVES:
        if path.name.endswith(suffix):
            return path.name.removesuffix(suffix)
    raise InputError(f"{path} is no source tree and no sdist", hint=_NOT_AN_SDIST)


def _requirement(path: Path) -> str:
    """Return the requirement that a name of an sdist stands for: foo==1.0 for foo-1.0.tar.gz."""
    for suffix in _ARCHIVES:
        if path.name.endswith(suffix):
            name, dash, version = path.name.removesuffix(suffix).rpartition("-")
            return f"{name}=={version}" if dash else version
    return path.name


def _unpack(path: Path, folder: Path) -> Path:
    """Unpack an sdist; return its folder.

    Raises:
        InputError: the file is no archive, or the archive is no sdist.
    """
    from archsplit.system.fs import extract_tar

    try:
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                archive.extractall(folder)  # noqa: S202 - it leaves no folder
        else:
            with tarfile.open(path) as packed:
                extract_tar(packed, folder)
    except (tarfile.TarError, zipfile.BadZipFile, OSError, EOFError) as error:
        # tarfile lists each compression that it has tried.
        reason = (str(error) or "the end is missing").partition(":\n")[0]
        raise InputError(f"{path} can't be unpacked: {reason}", hint=_NOT_AN_SDIST) from None
    found = sorted(folder.iterdir())
    if len(found) != 1 or not (found[0] / "PKG-INFO").is_file():
        raise InputError(f"{path} is not an sdist: no folder with a PKG-INFO", hint=_NOT_AN_SDIST)
    return found[0]
