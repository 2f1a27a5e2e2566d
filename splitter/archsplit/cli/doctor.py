"""``archsplit doctor``: the report of an installed core's own doctor."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from archsplit.cli.verbs import add_verb

if TYPE_CHECKING:
    import argparse

    from rich.console import Console

    from archsplit.cli import options


def add_to(verbs: options.Verbs) -> None:
    """Describe the verb."""
    parser = add_verb(
        verbs, "doctor", "archsplit doctor xgboost", "archsplit doctor site-packages/xgboost --json"
    )
    parser.add_argument(
        "package", help="the core's import package, its folder, or its distribution"
    )
    parser.add_argument("--full", action="store_true", help="read all of every plugin")
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Run the doctor of the core, and pass its report and exit code on."""
    from archsplit.release.installed_core import run_doctor
    from archsplit.system.process import SubprocessRunner

    del console
    words = [word for word in ("full", "json") if getattr(arguments, word)]
    # A process of its own: an import of the core would load its libraries into this one.
    done = run_doctor(arguments.package, words, runner=SubprocessRunner(), environment=os.environ)
    print(done.stdout, end="")  # noqa: T201 - standard output is where data goes
    print(done.stderr, end="", file=sys.stderr)  # noqa: T201 - and talk goes here
    return done.returncode
