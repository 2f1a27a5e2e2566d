"""``archsplit diff``: what grew from one build to the next, per target and kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from splitter.cli import inspect as inspect_verb
from splitter.devicecode.growth import growth_between
from splitter.stages.inspect import Question, inspect
from splitter.views.document import growth_json
from splitter.views.text import growth_text

if TYPE_CHECKING:
    import argparse

    from rich.console import Console

    from splitter.cli import options


def add_to(verbs: options.Verbs) -> None:
    """Describe the verb."""
    parser = verbs.add_parser("diff", help="show what grew between two builds")
    for name in ("old", "new"):
        parser.add_argument(name, help=f"the {name} file, wheel, folder or installed package")
    inspect_verb.add_place(parser)
    parser.add_argument(
        "--no-kernels",
        dest="kernels",
        action="store_false",
        help="compare targets only: quicker, because nothing has to be unpacked",
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Inspect both, compare, show."""
    old, new = (
        inspect(
            Question(
                subject=subject,
                site_folders=inspect_verb.places(arguments),
                digest=arguments.json,
                kernels=arguments.kernels,
            )
        )
        for subject in (arguments.old, arguments.new)
    )
    growth = growth_between(old, new)
    if arguments.json:
        print(growth_json(old, new, growth))  # noqa: T201 - standard output is where data goes
    else:
        inspect_verb.print_all(growth_text(growth))
    for inventory in (old, new):
        inspect_verb.tell_problems(inventory, console)
    return 0
