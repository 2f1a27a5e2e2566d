"""What ``archsplit verify --release`` says."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from archsplit.cli import options
from archsplit.errors import UsageError

if TYPE_CHECKING:
    import argparse

    from rich.console import Console

RELEASE_CHECK_SCHEMA = 1


def add_release_options(parser: argparse.ArgumentParser) -> None:
    """Describe what goes with ``--release``."""
    parser.add_argument(
        "--release",
        action="store_true",
        help="is it all that may be published? Every target, kernel and pin, the manifest, and"
        " whether pip and uv install it, each into an environment of its own",
    )
    parser.add_argument(
        "--allow-missing-kernels",
        metavar="PATTERN",
        action="append",
        default=[],
        help="with --release: kernels of such names (mangled or readable, * and ? as in a shell)"
        " needn't be there for every target; may be given more than once",
    )
    parser.add_argument(
        "--no-install",
        dest="install",
        action="store_false",
        help="with --release: install nothing",
    )


def run_release(arguments: argparse.Namespace, console: Console) -> int:
    """Check a release, and say what was checked.

    Raises:
        UsageError: only some targets were asked for.
        VerifyError: see `check_release`.
    """
    from dataclasses import asdict
    from functools import partial

    from archsplit.index.descriptions import check_where_installed
    from archsplit.release.completeness import Requirements, check_release

    if arguments.targets is not None:
        raise UsageError("--release is about all targets", hint="leave out --targets or --release")
    demands = Requirements(
        allowed=tuple(arguments.allow_missing_kernels), install=arguments.install
    )
    with options.effects(console, quiet=True) as workshop:
        describe = partial(check_where_installed, workshop=workshop)
        verdict = check_release(arguments.folder, workshop, demands, describe=describe)
    if arguments.json:
        print(json.dumps({"schema": RELEASE_CHECK_SCHEMA, **asdict(verdict)}, indent=2))  # noqa: T201 - data
        return 0
    for note in verdict.notes:
        console.print(f"note: {note}", markup=False, soft_wrap=True)
    programs = " and ".join(verdict.installed)
    installed = f"{programs} install them all" if programs else "nothing was installed"
    print(  # noqa: T201 - standard output is where data goes
        f"{verdict.project} {verdict.version}: {len(verdict.wheels)} wheels, {verdict.kernels}"
        f" kernels for every target, every pin closes, {installed}"
    )
    return 0
