"""``archsplit split``: a finished fat wheel as a core and one small wheel per kind of GPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from splitter.arch.target import parse_targets
from splitter.cli import options
from splitter.cli.variants import add_variants_option, write_split_variants
from splitter.devicecode.shares import By
from splitter.errors import UsageError

if TYPE_CHECKING:
    import argparse

    from rich.console import Console


def add_to(verbs: options.Verbs) -> None:
    """Describe the verb."""
    from splitter.splitting.request import Install

    parser = verbs.add_parser("split", help="split a finished fat wheel, without building anything")
    parser.add_argument(
        "wheel", type=Path, help="a wheel or a library with device code; it stays as it is"
    )
    parser.add_argument("--out", type=Path, required=True, help="the folder for all new wheels")
    parser.add_argument(
        "--targets", metavar="LIST", help="pack only what these GPUs need: sm_80,sm_90,compute_120"
    )
    parser.add_argument("--name", help="the core's name (default: the fat wheel's)")
    parser.add_argument(
        "--version", help="a library's version (default: 0); a wheel has its own, and keeps it"
    )
    parser.add_argument(
        "--by",
        choices=[by.value for by in By],
        default=By.CAPABILITY.value,
        help="one pack for each kind of GPU, with all that it takes; or one for each target, with"
        " extras that bring all targets that a GPU takes (default: %(default)s)",
    )
    parser.add_argument(
        "--install",
        choices=[install.value for install in Install],
        default=Install.CORE.value,
        help="what comes with the core: packs by extras alone; all of them; or by extras, and one"
        " more wheel, NAME-all, requires core and packs (default: %(default)s)",
    )
    add_variants_option(parser)
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Split, and say what came of it."""
    from splitter.splitting.file import named_owner, split_library
    from splitter.splitting.request import Install, SplitRequest
    from splitter.splitting.wheel import split_wheel

    finished = arguments.wheel.suffix == ".whl"
    if finished and arguments.version is not None:
        raise UsageError(
            f"{arguments.wheel.name} has a version, which its core keeps",
            hint="leave out --version; it is for libraries that are in no wheel",
        )
    request = SplitRequest(
        source=arguments.wheel,
        out=arguments.out,
        name=arguments.name,
        by=By(arguments.by),
        targets=None if arguments.targets is None else tuple(parse_targets(arguments.targets)),
        install=Install(arguments.install),
    )
    with options.workshop(console, quiet=True) as workshop:
        if finished:
            report = split_wheel(request, workshop)
        else:
            owner = named_owner(arguments.name, arguments.version or "0")
            report = split_library(request, workshop, owner)
    if arguments.variants:
        write_split_variants(report, request.out, console)
    print(report.as_json() if arguments.json else report.text())  # noqa: T201 - data goes to stdout
    return 0
