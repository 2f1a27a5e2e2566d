"""``archsplit toolkit``: the nvcc in use, its targets, and the candidates that were rejected."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from archsplit.cli import options
from archsplit.cli.verbs import add_verb

if TYPE_CHECKING:
    import argparse

    from rich.console import Console

TOOLKIT_SCHEMA = 1


def add_to(verbs: options.Verbs) -> None:
    """Describe the verb."""
    parser = add_verb(
        verbs,
        "toolkit",
        "archsplit toolkit",
        "archsplit toolkit --nvcc /usr/local/cuda-13.0 --json",
    )
    options.add_nvcc_option(parser)
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Search for nvcc, and print the result."""
    from archsplit.build.toolkits import find_toolkit
    from archsplit.nvcc.toolkit import choose_toolkit

    with options.effects(console, quiet=True) as effects:
        attempts = find_toolkit(effects, arguments.nvcc)
    # Raises with the list of attempts if no candidate is usable.
    toolkit = choose_toolkit(attempts)
    targets = [str(target) for target in sorted(toolkit.targets)]
    if arguments.json:
        content = {
            "schema": TOOLKIT_SCHEMA,
            "nvcc": str(toolkit.nvcc),
            "release": toolkit.release,
            "tried": [str(attempt) for attempt in attempts],
            "targets": targets,
        }
        text = json.dumps(content, indent=2)
    else:
        text = "\n".join([*map(str, attempts), f"targets: {' '.join(targets)}"])
    print(text)  # noqa: T201 - standard output is where data goes
    return 0
