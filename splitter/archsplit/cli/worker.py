"""``archsplit worker``: run steps for builds with ``--engine dask``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.cli import options
from archsplit.cli.verbs import add_verb
from archsplit.errors import ToolNotFoundError

if TYPE_CHECKING:
    import argparse

    from rich.console import Console


def add_to(verbs: options.Verbs) -> None:
    """Describe the verb."""
    files = "--remote-ca ca.pem --remote-cert me.pem --remote-key me.key"
    parser = add_verb(
        verbs,
        "worker",
        f"archsplit worker tls://head:8786 {files}",
        f"archsplit worker tls://head:8786 --jobs 16 --folder /scratch {files}",
    )
    parser.add_argument("scheduler", metavar="URL", help="the scheduler: tls://host:port")
    options.add_jobs_option(parser, "run at most N steps at a time")
    parser.add_argument(
        "--folder", type=Path, default=Path(), help="for temporary files (default: this folder)"
    )
    options.add_certificate_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Serve the scheduler until it ends, or until Ctrl-C."""
    from archsplit.remote.endpoint import parse_dask_endpoint

    endpoint = parse_dask_endpoint(
        arguments.scheduler,
        certificates=arguments.remote_ca,
        certificate=arguments.remote_cert,
        key=arguments.remote_key,
    )
    try:
        from archsplit.remote.dask_executor import serve_scheduler
    except ImportError as error:
        raise ToolNotFoundError(
            f"no {error.name} to reach the scheduler with", hint="pip install 'archsplit[dask]'"
        ) from None
    console.print(f"{arguments.jobs} steps at a time for {endpoint.address}", soft_wrap=True)
    serve_scheduler(endpoint, jobs=arguments.jobs, folder=arguments.folder)
    return 0
