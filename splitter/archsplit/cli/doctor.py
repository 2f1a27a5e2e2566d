"""``archsplit doctor``: the report of an installed core's own doctor."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from archsplit.cli import options
from archsplit.cli.files import check_folder
from archsplit.cli.verbs import add_verb
from archsplit.errors import UsageError

if TYPE_CHECKING:
    import argparse

    from rich.console import Console


def add_to(verbs: options.Verbs) -> None:
    """Describe the verb."""
    parser = add_verb(
        verbs,
        "doctor",
        "archsplit doctor xgboost",
        "archsplit doctor --site-packages .venv/lib/python3.12/site-packages",
    )
    table = f"""
package NAME?  the core's import package, its folder, or its distribution
--site-packages DIR  compare the GPUs here with those that this environment was slimmed for
--device GPU...  with --site-packages: GPUs to check in place of this machine's (default: native)
--full  read every plugin to its end
{options.JSON}
"""
    options.add_options(parser, table)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, _: Console) -> int:
    """Run the doctor of the core or of an environment; return the exit code."""
    if (arguments.package is None) == (arguments.site_packages is None):
        raise UsageError(
            "name either a package or an environment with --site-packages",
            hint="a package elsewhere is named by its folder: archsplit doctor DIR/PACKAGE",
        )
    if arguments.site_packages is not None:
        return _check_site(arguments)
    from archsplit.release.installed_core import run_doctor
    from archsplit.system.process import SubprocessRunner

    words = [word for word in ("full", "json") if getattr(arguments, word)]
    # A process of its own: an import of the core would load its libraries into this one.
    done = run_doctor(arguments.package, words, runner=SubprocessRunner(), environment=os.environ)
    options.show(done.stdout, end="")
    print(done.stderr, end="", file=sys.stderr)  # noqa: T201 - and talk goes here
    return done.returncode


def _check_site(arguments: argparse.Namespace) -> int:
    from archsplit.slim.report import check_gpus
    from archsplit.system.installers import refuse_environment

    check_folder(arguments.site_packages)
    refuse_environment(arguments.site_packages)
    capabilities = options.capabilities(arguments.device or ["native"])
    for line in check_gpus(arguments.site_packages, capabilities):
        options.show(line)
    return 0
