"""``archsplit build``: from a recipe to wheels."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.build.pipeline import build
from archsplit.cli import options
from archsplit.cli.caching import add_cache_options, cache_settings
from archsplit.cli.variants import add_variants_option, write_built_variants
from archsplit.errors import UsageError
from archsplit.recipe.load_prebuilt import load_split_recipe
from archsplit.system.units import parse_size

if TYPE_CHECKING:
    import argparse

    from rich.console import Console
    from rich.table import Table

    from archsplit.release.report import Report


def add_to(verbs: options.Verbs) -> None:
    """Describe the verb."""
    parser = verbs.add_parser("build", help="build the core wheel and one plugin wheel per target")
    options.add_recipe_options(parser)
    parser.add_argument("--out", type=Path, required=True, help="the folder for the wheels")
    parser.add_argument(
        "--memory",
        type=parse_size,
        metavar="SIZE",
        help="the tools may have so much memory together: 24G (default: what the machine has)",
    )
    parser.add_argument("--explain", action="store_true", help="what the cache knew, step by step")
    parts = parser.add_mutually_exclusive_group()
    parts.add_argument("--no-core", action="store_true", help="build the plugins only")
    parts.add_argument(
        "--core-only", action="store_true", help="build no plugin; that needs no compiler's time"
    )
    add_variants_option(parser)
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    add_cache_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Build, and say what was made."""
    from rich.console import Console

    if (finished := load_split_recipe(arguments.recipe)) is not None:
        # A recipe with sources shouldn't wait for what splits.
        from archsplit.cli.finished import build_prebuilt

        return build_prebuilt(finished, arguments, console)
    order = dataclasses.replace(options.build_request(arguments), core=not arguments.no_core)
    if arguments.variants and arguments.no_core:
        raise UsageError("--variants are of the core, and --no-core builds none")
    if arguments.core_only:
        if order.targets is not None:
            raise UsageError("--core-only builds no target's plugin, and --targets names some")
        order = dataclasses.replace(order, targets=())
    with options.effects(console, jobs=arguments.jobs, quiet=arguments.quiet) as workshop:
        limited = dataclasses.replace(
            workshop,
            memory=arguments.memory,
            cache=cache_settings(arguments, workshop.environment),
            explain=arguments.explain,
        )
        report = build(order, limited, out=arguments.out)
    if arguments.variants:
        write_built_variants(report, arguments.out, console)
    if arguments.json:
        print(report.as_json(), end="")  # noqa: T201 - standard output is where data goes
    else:
        # A log has no width; wrapped file names would be of no use in it.
        output = Console()
        (output if output.is_terminal else Console(width=160)).print(_table(report))
    return 0


def _table(report: Report) -> Table:
    from rich.table import Table

    table = Table(title=f"{report.project} {report.version}")
    table.add_column("wheel", overflow="fold")
    table.add_column("MB", justify="right")
    table.add_column("sha256")
    for wheel in report.wheels:
        table.add_row(wheel.file, f"{wheel.size / 1e6:.2f}", wheel.sha256[:16])
    return table
