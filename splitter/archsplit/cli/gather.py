"""``archsplit gather``: the parts of one release, built on several machines, in one folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.cli.inputs import check_folder
from archsplit.cli.options import add_without
from archsplit.cli.verbs import add_verb

if TYPE_CHECKING:
    import argparse

    from rich.console import Console

    from archsplit.cli import options


def add_to(verbs: options.Verbs) -> None:
    """Describe the verb."""
    parser = add_verb(
        verbs,
        "gather",
        "archsplit gather out-x86 out-arm --out dist",
        "archsplit gather ci/* --out dist --json",
    )
    parser.add_argument(
        "folder", type=Path, nargs="+", help="a folder that build or split wrote to"
    )
    parser.add_argument("--out", type=Path, required=True, help="the folder for all of them")
    add_without(parser)
    parser.add_argument(
        "--partial", action="store_true", help="more parts come later: any cell may be missing"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Gather, and print the wheels."""
    from archsplit.release.merge import gather

    del console
    # All folders are checked before the first file is copied.
    for folder in arguments.folder:
        check_folder(folder)
    report = gather(
        arguments.folder,
        out=arguments.out,
        without=arguments.without,
        partial=arguments.partial,
    )
    if arguments.json:
        print(report.as_json(), end="")  # noqa: T201 - standard output is where data goes
    else:
        for wheel in report.wheels:
            print(f"{wheel.sha256}  {wheel.file}")  # noqa: T201 - the same
    return 0
