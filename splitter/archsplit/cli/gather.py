"""``archsplit gather``: what several machines have built of one release, in one folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

    from rich.console import Console

    from archsplit.cli import options


def add_to(verbs: options.Verbs) -> None:
    """Describe the verb."""
    parser = verbs.add_parser(
        "gather", help="put the wheels of one release, built in several places, into one folder"
    )
    parser.add_argument(
        "folder", type=Path, nargs="+", help="a folder that build or split wrote to"
    )
    parser.add_argument("--out", type=Path, required=True, help="the folder for all of them")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Gather, and say what is there now."""
    from archsplit.release.merge import gather

    del console
    report = gather(arguments.folder, out=arguments.out)
    if arguments.json:
        print(report.as_json(), end="")  # noqa: T201 - standard output is where data goes
    else:
        for wheel in report.wheels:
            print(f"{wheel.sha256}  {wheel.file}")  # noqa: T201 - the same
    return 0
