"""``archsplit slim``: the same library or wheel, without unwanted device code."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.cli import options
from archsplit.cli.files import check_folder, copy_unchanged, find_file, record_hint
from archsplit.cli.verbs import add_verb
from archsplit.errors import NothingToDoError, UsageError
from archsplit.system.fs import sha256
from archsplit.system.units import short_size

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from rich.console import Console

    from archsplit.release.context import Effects
    from archsplit.slim.report import SlimReport
    from archsplit.slim.request import SlimRequest


_RECOMPRESS = "9 for --site-packages if this machine's driver reads it, else off"
"""Text of the default in the help."""
_OPTIONS = f"""
file FILE?     a .so, .fatbin or .whl file; it stays as it is
{options.EDITS}
--mode {{shrink,in-place}}  shrink makes files shorter; in-place only makes them pack better
--label TEXT?  mark the wheel in its version (3.2.0+TEXT), which the public index refuses, and not
               with a build tag
{options.IGNORE_RECORD}
{options.COPY}
{options.DRY_RUN}
--out DIR      the folder to write to (default: this one)
{options.JSON}
"""
_SITE = """
--site-packages DIR  slim all that is installed in this folder; the old files are kept until
               --commit. With a file and --try-load: load its libraries against what is installed
               there
--try-load     also load each new library in a child process, which runs its code: with an empty
               environment, and without a network if the kernel allows it
--undo         put the old files back
--commit       remove the old files, after slimming if that is asked for too
"""
_CHOICE = f"""
{options.DEVICE}
--keep LIST    keep these targets: sm_90,compute_120
--drop LIST    take these targets out, keep the others; PTX that isn't named stays
"""


def add_to(verbs: options.Verbs) -> None:
    """Describe the verb."""
    parser = add_verb(
        verbs,
        "slim",
        "archsplit slim foo.whl --device native --out slim",
        "archsplit slim --site-packages .venv/lib/python3.12/site-packages --keep sm_90",
    )
    options.add_options(parser, _OPTIONS, mode="shrink", recompress=_RECOMPRESS, out=Path())
    options.add_options(parser.add_argument_group("an installed environment, in place"), _SITE)
    options.add_options(parser.add_argument_group("what stays (one of the three)"), _CHOICE)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Slim, and print the report."""
    from archsplit.release.context import Effects
    from archsplit.slim.site_packages import commit_site, undo_site
    from archsplit.system.terminal import SilentProgress

    _check(arguments)
    if arguments.file is not None:
        arguments.file = find_file(arguments.file, console)
    if arguments.site_packages is not None:
        check_folder(arguments.site_packages)
    # `show_activity` is the progress: two displays would overwrite each other.
    effects = Effects(progress=SilentProgress(), environment=os.environ, jobs=1)
    lines: tuple[str, ...] = ()
    if arguments.undo:
        lines = undo_site(arguments.site_packages, force=arguments.ignore_record)
    # Without targets, --commit commits an earlier run; with targets it slims first.
    elif _is_choice(arguments) or not arguments.commit:
        request = _request(arguments)
        done = f"{'Looked through' if request.dry_run else 'Slimmed'} {request.source}"
        activity = options.show_activity(console, f"slimming {request.source}", done)
        with record_hint(request.source), activity as workers:
            report = _slim(request, arguments)(request, replace(effects, workers=workers))
        nothing = _nothing_to_do(report, request)
        if nothing is not None and arguments.copy and not request.dry_run:
            report = _copy_input(report, request, nothing, console)
        refused = nothing is not None and not arguments.copy
        # With --json a program gets the reasons also in the case of an error.
        if arguments.json or not refused:
            _show(report, request, arguments)
        if nothing is not None and refused:
            raise nothing
    # After the report, so that a failure of the new files is seen before the old ones go.
    if arguments.commit:
        lines = commit_site(arguments.site_packages)
    for line in lines:
        print(line, file=sys.stderr)  # noqa: T201 - standard output is for the report
    return 0


def _nothing_to_do(report: SlimReport, request: SlimRequest) -> NothingToDoError | None:
    # An environment without anything to remove is a success: it is as requested.
    if request.source.is_dir() or any(file.mode != "untouched" for file in report.files):
        return None
    unregistered = sum(row.file_bytes for file in report.files for row in file.unregistered)
    zero = f"--unregistered zero overwrites {short_size(unregistered)} that these GPUs can't run; "
    return NothingToDoError(
        "\n  ".join((f"{request.source}: there is nothing to take out", *report.notes)),
        hint=f"{zero if unregistered else ''}--copy writes the file as it is",
    )


def _copy_input(
    report: SlimReport, request: SlimRequest, nothing: NothingToDoError, console: Console
) -> SlimReport:
    output = copy_unchanged(request.source, request.out, nothing, console)
    size = output.stat().st_size
    return replace(report, output=str(output), size_after=size, sha256=sha256(output))


def _check(arguments: argparse.Namespace) -> None:
    """Refuse a wrong label, and options that contradict each other.

    Raises:
        UsageError: names them.
    """
    from archsplit.wheels.filename import check_local_label

    if arguments.file is None and arguments.site_packages is None:
        raise UsageError("name a file to slim, or an environment with --site-packages")
    is_site = arguments.file is None
    if not is_site and (arguments.undo or arguments.commit):
        raise UsageError(
            "--undo and --commit are for environments", hint="name --site-packages, and no file"
        )
    if not is_site and arguments.site_packages and not arguments.try_load:
        raise UsageError(
            "with a file, --site-packages only says where --try-load finds libraries",
            hint="add --try-load, or name no file to slim the environment",
        )
    # A restored environment has no old files, so --commit after it would mean nothing.
    if arguments.undo and (arguments.commit or _is_choice(arguments)):
        raise UsageError("use --undo only with --site-packages, without targets or --commit")
    if arguments.dry_run and (arguments.undo or arguments.commit):
        raise UsageError("--dry-run can't be combined with --undo or --commit")
    # pip compares versions with other packages' requirements: a label could break an environment.
    if is_site and arguments.label is not None:
        raise UsageError("--label is for wheels: what is installed keeps its version")
    if arguments.label:
        with options.value_of("--label"):
            check_local_label(arguments.label)
    if is_site and arguments.copy:
        raise UsageError("--copy is for files: an environment stays where it is")


def _is_choice(arguments: argparse.Namespace) -> bool:
    return bool(arguments.device or arguments.keep is not None or arguments.drop is not None)


def _slim(
    request: SlimRequest, arguments: argparse.Namespace
) -> Callable[[SlimRequest, Effects], SlimReport]:
    from archsplit.slim.site_packages import slim_site
    from archsplit.slim.wheel import slim_file, slim_wheel

    if arguments.file is None:
        return slim_site
    return slim_wheel if request.source.suffix == ".whl" else slim_file


def _show(report: SlimReport, request: SlimRequest, arguments: argparse.Namespace) -> None:
    from archsplit.slim.report import slim_text

    if arguments.json:
        options.show(report.as_json(), end="")
    else:
        options.print_all(slim_text(report, request), 80)


def _recompress(arguments: argparse.Namespace) -> int | None:
    from archsplit.devicecode.recompress import level_for_driver, recompress_level
    from archsplit.system.nvidia import driver_version

    if arguments.recompress != _RECOMPRESS:
        return recompress_level(arguments.recompress)
    # An image that is built elsewhere may run with an older driver: without one here, all stays.
    return level_for_driver(driver_version()) if arguments.file is None else None


def _request(arguments: argparse.Namespace) -> SlimRequest:
    from archsplit.arch.gpu_list import require_published
    from archsplit.devicecode.file_plan import EditMode
    from archsplit.devicecode.select import PtxPolicy, Selection
    from archsplit.slim.request import SlimRequest

    drop = arguments.drop is not None
    # --drop names every removed target, PTX included.
    if drop and arguments.keep_ptx is not None:
        raise UsageError("--keep-ptx has no effect with --drop", hint="name the PTX in --drop")
    selection = Selection(
        devices=frozenset(options.capabilities(arguments.device)),
        keep=require_published(options.targets(arguments.keep) or ()),
        drop=frozenset(options.targets(arguments.drop) or ()),
        ptx=PtxPolicy(arguments.keep_ptx or PtxPolicy.NEWEST.value),
    )
    return SlimRequest(
        source=arguments.file or arguments.site_packages,
        out=arguments.out,
        selection=selection,
        mode=EditMode(arguments.mode),
        recompress=_recompress(arguments),
        zeroes_unregistered={"zero": True, "keep": False}.get(arguments.unregistered),
        label=arguments.label,
        ignore_record=arguments.ignore_record,
        dry_run=arguments.dry_run,
        tries_loading=arguments.try_load,
        # Beside a file, --site-packages only has the libraries that the file needs.
        needed_folders=(arguments.site_packages,)
        if arguments.file and arguments.site_packages
        else (),
    )
