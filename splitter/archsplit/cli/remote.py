"""``archsplit remote``: the machines of a build farm.

``check`` tries a farm or a cluster before the first build there. ``worker`` runs the steps of
builds with ``--remote tls://HOST:PORT``.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from archsplit.cli import options
from archsplit.cli.verbs import add_verb
from archsplit.system.fs import temporary_dir
from archsplit.system.resources import available_cores

if TYPE_CHECKING:
    import argparse

    from rich.console import Console

    from archsplit.remote.connection import CheckRow

REMOTE_SCHEMA = 1


def add_to(verbs: options.Verbs) -> None:
    """Describe the verb."""
    files = "--remote-ca ca.pem --remote-cert me.pem --remote-key me.key"
    parser = add_verb(
        verbs,
        "remote",
        "archsplit remote check grpcs://farm.example:443/main",
        f"archsplit remote worker tls://head:8786 --jobs 16 {files}",
    )
    what = parser.add_subparsers(required=True, metavar="WHAT")
    text = "connect, move a file, and run an action that compares the tools"
    check = what.add_parser("check", help=text, description=text)
    table = f"""
remote URL  {options.REMOTE}
{options.PROPERTY}
{options.CERTIFICATES}
{options.NVCC}
{options.JSON}
"""
    options.add_options(check, table)
    check.set_defaults(run=run_check)
    text = "run the steps of other machines' builds, for a dask scheduler"
    worker = what.add_parser("worker", help=text, description=text)
    table = f"""
scheduler URL  the scheduler: tls://host:port
{options.JOBS}
{options.CERTIFICATES}
"""
    options.add_options(worker, table, jobs=available_cores())
    worker.set_defaults(run=run_worker)


def run_check(arguments: argparse.Namespace, console: Console) -> int:
    """Check, and print a row for each part."""
    from archsplit.build.engine import build_tools, open_checks
    from archsplit.remote.connection import run_checks

    endpoint = options.remote_endpoint(arguments, os.environ)
    with options.effects(console, quiet=True) as effects:
        tools = build_tools(effects, arguments.nvcc)
    rows: list[CheckRow] = []

    def add(row: CheckRow) -> None:
        rows.append(row)
        if not arguments.json:
            print(row.as_line(), flush=True)  # noqa: T201 - standard output is where data goes

    try:
        with open_checks(endpoint, tools) as checks:
            run_checks(checks, add)
    finally:
        # Also for a failure: its row is the last.
        if arguments.json and rows:
            options.show(_as_json(endpoint.address, rows))
    return 0


def _as_json(address: str, rows: list[CheckRow]) -> str:
    table = [
        {"name": row.name, "works": row.works, "seconds": round(row.seconds, 3), "text": row.text}
        for row in rows
    ]
    return options.json_text({"schema": REMOTE_SCHEMA, "remote": address, "checks": table})


def run_worker(arguments: argparse.Namespace, console: Console) -> int:
    """Serve the scheduler until it ends, or until Ctrl-C."""
    from archsplit.remote.connection import library_errors
    from archsplit.remote.endpoint import parse_dask_endpoint

    endpoint = parse_dask_endpoint(
        arguments.scheduler,
        certificates=arguments.remote_ca,
        certificate=arguments.remote_cert,
        key=arguments.remote_key,
    )
    with library_errors("dask"):
        from archsplit.remote.dask_executor import run_dask_worker
    console.print(f"Started slots for {endpoint.address}: {arguments.jobs}", soft_wrap=True)
    # Before the connection: dask's error would be taken for one of the scheduler.
    with temporary_dir() as folder:
        run_dask_worker(endpoint, jobs=arguments.jobs, folder=folder)
    return 0
