"""``archsplit diff``: the growth from one build to the next, per target and kernel."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.cli import inspect as inspect_verb
from archsplit.cli import options
from archsplit.cli.files import find_subject
from archsplit.cli.history import add_size_options, run_history, wants_sizes
from archsplit.cli.verbs import add_verb
from archsplit.errors import VerifyError
from archsplit.system.fs import write_file

if TYPE_CHECKING:
    import argparse

    from rich.console import Console


DIFF_SCHEMA = 1


_OPTIONS = f"""
files SUBJECT*  files, wheels, folders or installed packages, the oldest first; of two the growth of
             each target and kernel is shown, of more the sizes
{options.PLACES}
--no-kernels  compare targets only: quicker, because nothing has to be unpacked
--bytes      compare two wheels, or the wheels of two folders, byte by byte: print the members that
             differ, and exit with 9
{options.HTML}
{options.SUMMARY}
{options.JSON}
"""


def add_to(verbs: options.Verbs) -> None:
    """Describe the verb."""
    parser = add_verb(
        verbs,
        "diff",
        "archsplit diff xgboost==3.1.0 xgboost==3.2.0",
        "archsplit diff dist/foo-1.2.whl --log sizes.jsonl --max-growth 5%",
    )
    options.add_options(parser, _OPTIONS)
    add_size_options(parser)
    parser.set_defaults(run=run, command_line=())


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Inspect both, compare them, print the differences."""
    from archsplit.devicecode.stats import compare_inventories
    from archsplit.inspect.inspect import InspectRequest, read_inventory
    from archsplit.inspect.inspection import growth_json, growth_markdown
    from archsplit.inspect.text import growth_text
    from archsplit.system.worker_processes import WorkerProcesses

    if wants_sizes(arguments):
        return run_history(arguments, console)
    places = inspect_verb.places(arguments)
    arguments.files = [find_subject(one, places, console) for one in arguments.files]
    if arguments.bytes:
        return _run_bytes(arguments)
    old, new = (
        read_inventory(
            InspectRequest(
                subject=subject,
                site_folders=inspect_verb.places(arguments),
                digest=arguments.json,
                kernels=not arguments.no_kernels,
                workers=WorkerProcesses(),
            )
        )
        for subject in arguments.files
    )
    growth = compare_inventories(old, new)
    if arguments.html is not None:
        from archsplit.inspect.html import growth_page

        origin = inspect_verb.page_origin(arguments)
        write_file(arguments.html, growth_page(old, new, growth, origin))
    inspect_verb.write_summary(arguments, lambda: growth_markdown(old, new, growth))
    if arguments.json:
        print(growth_json(old, new, growth))  # noqa: T201 - standard output is where data goes
    else:
        inspect_verb.print_all(growth_text(growth))
    # At the end: the table may be long, and warnings before it would scroll away.
    for inventory in (old, new):
        inspect_verb.report_problems(inventory, console)
    return 0


def _run_bytes(arguments: argparse.Namespace) -> int:
    """Compare wheels byte by byte."""
    found = wheel_differences(*map(Path, arguments.files))
    if arguments.json:
        print(json.dumps({"schema": DIFF_SCHEMA, "differences": found}, indent=2))  # noqa: T201 - data
    else:
        for name, lines in found.items():
            for line in lines or ("the same bytes",):
                print(f"{name}: {line}")  # noqa: T201 - standard output is where data goes
    return VerifyError.exit_code if any(found.values()) else 0


def wheel_differences(old: Path, new: Path) -> dict[str, tuple[str, ...]]:
    """Return the differences between two wheels, or the wheels of two folders, by name.

    Raises:
        InputError: one of them can't be read.
        WheelError: a wheel that differs is not a valid archive.
    """
    from archsplit.release.wheel_set import wheels_in
    from archsplit.wheels.diff import compare_wheels

    # Two files may have different names and the same bytes.
    if not (old.is_dir() and new.is_dir()):
        return {new.name: compare_wheels(old, new)}
    left, right = ({path.name for path in wheels_in(folder)} for folder in (old, new))
    lacking = dict.fromkeys(left - right, (f"only in {old}",))
    lacking |= dict.fromkeys(right - left, (f"only in {new}",))
    both = {name: compare_wheels(old / name, new / name) for name in left & right}
    return dict(sorted({**lacking, **both}.items()))
