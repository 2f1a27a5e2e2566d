"""``archsplit remote check``: a farm or a cluster, before the first build there."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from archsplit.cli import options
from archsplit.cli.verbs import add_verb

if TYPE_CHECKING:
    import argparse

    from rich.console import Console

    from archsplit.remote.farm_check import CheckRow

REMOTE_SCHEMA = 1


def add_to(verbs: options.Verbs) -> None:
    """Describe the verb."""
    files = "--remote-ca ca.pem --remote-cert me.pem --remote-key me.key"
    parser = add_verb(
        verbs,
        "remote",
        "archsplit remote check grpcs://farm.example:443/main",
        f"archsplit remote check tls://head:8786 {files}",
    )
    what = parser.add_subparsers(required=True, metavar="WHAT")
    text = "connect, move a file, and run an action that compares the tools"
    check = what.add_parser("check", help=text, description=text)
    check.add_argument(
        "remote",
        metavar="URL",
        help="the farm: grpcs://host:port/instance; the scheduler: tls://host:port",
    )
    options.add_toolkit_option(check)
    options.add_property_option(check)
    options.add_certificate_options(check)
    options.add_nvcc_option(check)
    check.add_argument("--json", action="store_true", help="print the rows as JSON")
    check.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Check, and print a row for each part."""
    from archsplit.build.engine import build_tools, open_checks
    from archsplit.remote.farm_check import run_checks

    endpoint = options.remote_endpoint(
        arguments, os.environ, is_dask=arguments.remote.startswith("tls:")
    )
    with options.effects(console, quiet=True) as effects:
        tools, toolkit = build_tools(effects, arguments.nvcc)
    rows: list[CheckRow] = []

    def add(row: CheckRow) -> None:
        rows.append(row)
        if not arguments.json:
            print(row.as_line(), flush=True)  # noqa: T201 - standard output is where data goes

    try:
        shipped = toolkit if arguments.remote_toolkit == "shipped" else None
        with open_checks(endpoint, tools, shipped=shipped) as checks:
            run_checks(checks, add)
    finally:
        # Also for a failure: its row is the last.
        if arguments.json and rows:
            print(_as_json(endpoint.address, rows))  # noqa: T201 - as above
    return 0


def _as_json(address: str, rows: list[CheckRow]) -> str:
    table = [
        {"name": row.name, "works": row.works, "seconds": round(row.seconds, 3), "text": row.text}
        for row in rows
    ]
    return json.dumps({"schema": REMOTE_SCHEMA, "remote": address, "checks": table}, indent=2)
