"""``archsplit join``: the fat libraries again, byte for byte, out of what split wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.cli.inputs import check_folder
from archsplit.cli.verbs import add_verb

if TYPE_CHECKING:
    import argparse

    from rich.console import Console

    from archsplit.cli import options

JOIN_SCHEMA = 1


def add_to(verbs: options.Verbs) -> None:
    """Describe the verb."""
    parser = add_verb(
        verbs,
        "join",
        "archsplit join split --out joined",
        "archsplit join split --out joined --json",
    )
    parser.add_argument("folder", type=Path, help="the folder with all wheels that split wrote")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write to")
    parser.add_argument("--json", action="store_true", help="print what was written as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Join, and print the written files."""
    from dataclasses import asdict

    from archsplit.split.restore import join_split

    del console
    check_folder(arguments.folder)
    libraries = join_split(arguments.folder, arguments.out)
    if arguments.json:
        files = [{**asdict(one), "path": str(one.path)} for one in libraries]
        text = json.dumps({"schema": JOIN_SCHEMA, "libraries": files}, indent=2)
    else:
        text = "\n".join(f"{one.sha256}  {one.path}" for one in libraries)
    print(text)  # noqa: T201 - data goes to standard output
    return 0
