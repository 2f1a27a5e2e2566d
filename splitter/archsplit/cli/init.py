"""``archsplit init``: a first recipe for a source tree."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from archsplit.cli import options
from archsplit.cli.verbs import add_verb
from archsplit.errors import InputError, OutputError, ToolNotFoundError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Collection
    from pathlib import Path

    from rich.console import Console

    from archsplit.arch.target import Target


def add_to(verbs: options.Verbs) -> None:
    """Describe the verb."""
    parser = add_verb(
        verbs,
        "init",
        "archsplit init .",
        "archsplit init foo --force",
        description="A project that pip can build keeps its build, and its wheel is split; another"
        " one gets a list of its sources. Nothing of the project is run.",
    )
    options.add_options(parser, "project DIR  a source tree\n--force      replace a recipe.toml")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Write a recipe, and print the command that checks it."""
    from archsplit.recipe.document import RECIPE_FILE
    from archsplit.recipe.starter import FILL_IN, starter_recipe, usual_targets
    from archsplit.system.fs import write_file

    root = arguments.project
    _check_folder(root)
    path = root / RECIPE_FILE
    if path.exists() and not arguments.force:
        raise OutputError(f"{path} exists already", hint="--force replaces it")
    text = starter_recipe(root, usual_targets(_known_targets(console)))
    write_file(path, text)
    options.show(path)
    if marks := text.count(FILL_IN):
        console.print(f"warning: fill in each {FILL_IN}; the file has {marks}", markup=False)
    folder = shlex.quote(str(root))
    options.say(console, f"next: archsplit plan {folder}")
    return 0


def _known_targets(console: Console) -> Collection[Target]:
    """Return the targets of the toolkit here; empty without one, because writing needs none."""
    from archsplit.build.context import probe_nvcc
    from archsplit.nvcc.toolkit import choose_toolkit

    with options.effects(console, quiet=True) as effects:
        attempts = probe_nvcc(effects, None)
    try:
        return choose_toolkit(attempts).targets
    except ToolNotFoundError:
        return ()


def _check_folder(path: Path) -> None:
    if path.is_dir():
        return
    if not path.exists():
        raise InputError(f"no such folder: {path}", hint="name the folder of the sources")
    name = shlex.quote(str(path))
    hint = f"archsplit split {name}" if path.suffix == ".whl" else f"tar xf {name}, then its folder"
    raise InputError(f"{path} is not a folder", hint=hint)
