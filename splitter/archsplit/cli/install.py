"""``archsplit install``: a core, and exactly the plugins that this machine's GPUs take."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.cli import options
from archsplit.cli.files import check_folder
from archsplit.cli.verbs import add_verb

if TYPE_CHECKING:
    import argparse

    from rich.console import Console

_OPTIONS = f"""
subject NAME|DIR|URL  a project, a folder of wheels, or the address of a core's wheel
{options.DRY_RUN}
--gpu GPU...  install for this GPU, which may be elsewhere: 9.0, sm_90, H100; may be repeated
--find-links DIR|URL...  take wheels from here; may be repeated
--index-url URL  take wheels from this index
--python PATH  the environment's Python (default: the active environment's)
"""


def add_to(verbs: options.Verbs) -> None:
    """Describe the verb."""
    parser = add_verb(
        verbs,
        "install",
        "archsplit install xgboost --find-links split",
        "archsplit install split --gpu 9.0 --dry-run",
    )
    options.add_options(parser, _OPTIONS)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, _: Console) -> int:
    """Install a core and its plugins."""
    from archsplit.cli.core_install import Environment, active_python, install_core

    # A wrong option is refused before an installer changes anything.
    gpus = tuple(str(one) for one in options.capabilities(arguments.gpu))
    # The core's doctor would refuse it, too, but after the core's download.
    options.capabilities(list(filter(None, [os.environ.get("ARCHSPLIT_CAPABILITY")])))
    for each in arguments.find_links:
        if "://" not in each:
            check_folder(Path(each))
    environment = Environment.of(arguments.python or active_python())
    return install_core(environment, arguments, gpus)
