"""``archsplit split``: a finished fat wheel as a core and one small wheel per kind of GPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.cli import options
from archsplit.cli.idle import add_copy, copy_unchanged
from archsplit.cli.options import add_variants_option, write_split_variants
from archsplit.devicecode.partition import PackBy
from archsplit.errors import NothingToDoError, UsageError
from archsplit.split.model import InstallDefaults, SplitRequest
from archsplit.split.split import named_project, split_library, split_wheel

if TYPE_CHECKING:
    import argparse

    from rich.console import Console

    from archsplit.release.split_report import SplitReport


def add_to(verbs: options.Verbs) -> None:
    """Describe the verb."""
    parser = verbs.add_parser("split", help="split a finished fat wheel, without building anything")
    parser.add_argument(
        "wheel", type=Path, help="a wheel or a library with device code; it stays as it is"
    )
    parser.add_argument("--out", type=Path, required=True, help="the folder for all new wheels")
    parser.add_argument(
        "--targets", metavar="LIST", help=f"pack only what these GPUs need: {options.GPU_LIST}"
    )
    parser.add_argument("--name", help="the core's name (default: the fat wheel's)")
    parser.add_argument(
        "--version", help="a library's version (default: 0); a wheel has its own, and keeps it"
    )
    parser.add_argument(
        "--by",
        choices=[by.value for by in PackBy],
        default=PackBy.CAPABILITY.value,
        help="one pack for each kind of GPU, with all that it takes; or one for each target, with"
        " extras that bring all targets that a GPU takes (default: %(default)s)",
    )
    parser.add_argument(
        "--install",
        choices=[install.value for install in InstallDefaults],
        default=InstallDefaults.CORE.value,
        help="what comes with the core: packs by extras alone; all of them; or by extras, and one"
        " more wheel, NAME-all, requires core and packs (default: %(default)s)",
    )
    parser.add_argument(
        "--release",
        action="store_true",
        help="name the core as the fat wheel, to publish it in its place; without, its build tag"
        " makes pip and uv prefer it to the fat wheel of the same version",
    )
    add_copy(parser)
    add_variants_option(parser)
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Split, and say what came of it."""
    from archsplit.split.model import SplitRequest

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
        by=PackBy(arguments.by),
        targets=options.targets(arguments.targets),
        install=InstallDefaults(arguments.install),
        release=arguments.release,
    )
    try:
        report = _split(request, arguments, console)
    except NothingToDoError as nothing:
        if not arguments.copy:
            raise
        print(copy_unchanged(request.source, request.out, nothing, console))  # noqa: T201 - data
        return 0
    if arguments.variants:
        write_split_variants(report, request.out, console)
    print(report.as_json() if arguments.json else report.text())  # noqa: T201 - data goes to stdout
    return 0


def _split(request: SplitRequest, arguments: argparse.Namespace, console: Console) -> SplitReport:
    with options.effects(console, quiet=True) as workshop:
        if request.source.suffix == ".whl":
            return split_wheel(request, workshop)
        owner = named_project(arguments.name, arguments.version or "0")
        return split_library(request, workshop, owner)
