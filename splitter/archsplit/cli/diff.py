"""``archsplit diff``: the growth from one build to the next, per target and kernel.

Other than two files, or a log, give a table of the sizes of releases, with a limit.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.cli import inspect as inspect_verb
from archsplit.cli import options
from archsplit.cli.files import find_file, find_subject, finding_files, read_text
from archsplit.cli.verbs import add_verb
from archsplit.errors import InputError, UsageError, VerifyError
from archsplit.system.fs import write_file
from archsplit.system.units import size_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console, RenderableType

    from archsplit.inspect.history import ReleaseSize


DIFF_SCHEMA = HISTORY_SCHEMA = 1
_PAIR = 2


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
_SIZES = f"""
--log FILE         add the files to this log, one line of JSON each, and show all of it
--max-growth 5%    exit with 9 if the last release grew by more than this
{options.FINDINGS}
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
    group = parser.add_argument_group(
        "sizes of releases", "with one of these, or for other than two files: a table of sizes"
    )
    options.add_options(group, _SIZES, types={"5%": _percent})
    parser.set_defaults(run=run, command_line=())


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Inspect both, compare them, print the differences."""
    from archsplit.devicecode.stats import compare_inventories
    from archsplit.inspect.inspect import InspectRequest, read_inventory
    from archsplit.inspect.inspection import growth_json, growth_markdown
    from archsplit.inspect.text import growth_text
    from archsplit.system.worker_processes import WorkerProcesses

    if len(arguments.files) != _PAIR or (arguments.log, arguments.max_growth) != (None, None):
        # A gate for reproducible builds would pass.
        if arguments.bytes:
            raise UsageError("--bytes needs two wheels or two folders, and no log or limit")
        return _run_history(arguments, console)
    folders = inspect_verb.site_folders(arguments)
    arguments.files = [find_subject(one, folders, console) for one in arguments.files]
    if arguments.bytes:
        return _run_bytes(arguments)
    old, new = (
        read_inventory(
            InspectRequest(
                subject=subject,
                site_folders=folders,
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
        options.show(growth_json(old, new, growth))
    else:
        options.print_all(growth_text(growth))
    # At the end: the table may be long, and warnings before it would scroll away.
    for inventory in (old, new):
        inspect_verb.report_problems(inventory, console)
    return 0


def _run_bytes(arguments: argparse.Namespace) -> int:
    """Compare wheels byte by byte."""
    found = wheel_differences(*map(Path, arguments.files))
    if arguments.json:
        options.show(options.json_text({"schema": DIFF_SCHEMA, "differences": found}))
    else:
        for name, lines in found.items():
            for line in lines or ("the same bytes",):
                options.show(f"{name}: {line}")
    return VerifyError.exit_code if any(found.values()) else 0


def wheel_differences(old: Path, new: Path) -> dict[str, tuple[str, ...]]:
    """Return the differences between two wheels, or the wheels of two folders, by name.

    Raises:
        InputError: one of them can't be read, or neither folder has a wheel.
        WheelError: a wheel that differs is not a valid archive.
    """
    from archsplit.release.wheel_set import wheels_in
    from archsplit.wheels.diff import compare_wheels

    # Two files may have different names and the same bytes.
    if not (old.is_dir() and new.is_dir()):
        return {new.name: compare_wheels(old, new)}
    left, right = ({path.name for path in wheels_in(folder)} for folder in (old, new))
    if not left | right:
        raise InputError(f"no wheel in {old} and {new}", hint="name the folders of two builds")
    lacking = dict.fromkeys(left - right, (f"only in {old}",))
    lacking |= dict.fromkeys(right - left, (f"only in {new}",))
    both = {name: compare_wheels(old / name, new / name) for name in left & right}
    return dict(sorted({**lacking, **both}.items()))


def _run_history(arguments: argparse.Namespace, console: Console) -> int:
    """Measure the files, show all releases, and check the limit."""
    from archsplit.inspect.history import measure_release, merge_releases
    from archsplit.inspect.inspect import InspectRequest, read_inventory
    from archsplit.inspect.inspection import history_markdown

    if not arguments.files and arguments.log is None:
        raise UsageError("nothing to show", hint="name wheels, or a log with --log FILE")
    arguments.files = [find_file(Path(path), console) for path in arguments.files]
    logged = _read_log(arguments)
    requests = [InspectRequest(subject=str(path), digest=True) for path in arguments.files]
    measured = [measure_release(read_inventory(request)) for request in requests]
    releases = merge_releases(logged, measured)
    # A log is whole or as it was: all files were read before it is written.
    if arguments.log is not None and len(releases) > len(logged):
        write_file(arguments.log, "".join(f"{release.as_line()}\n" for release in releases))
    inspect_verb.write_summary(arguments, lambda: history_markdown(releases))
    if arguments.json:
        lines = [json.loads(release.as_line()) for release in releases]
        options.show(options.json_text({"schema": HISTORY_SCHEMA, "releases": lines}))
    else:
        options.print_all([_table(releases)])
    last = releases[-1].name if releases else str(arguments.log)
    with finding_files(arguments, check="diff", checked=last):
        _check_growth(releases, arguments.max_growth)
    return 0


def _percent(text: str) -> float:
    try:
        value = float(text.removesuffix("%"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a percentage, such as 5%") from None
    return value / 100


def _read_log(arguments: argparse.Namespace) -> tuple[ReleaseSize, ...]:
    from archsplit.inspect.history import read_log

    log: Path | None = arguments.log
    if log is None:
        return ()
    if not log.exists():
        # The first run of a CI job starts the log; without files there is nothing to start.
        if arguments.files:
            return ()
        raise InputError(f"no such file: {log}", hint="name wheels to start a log")
    text = read_text(log, hint="name a log of archsplit diff --log")
    return read_log(text, where=str(log))


def _table(releases: Sequence[ReleaseSize]) -> RenderableType:
    from archsplit.system.terminal import Column, FittingTable, name_column, word_column

    numbers = (Column(heading=head) for head in ("size", "device code", "growth"))
    table = FittingTable(name_column("release"), *numbers, word_column("largest targets", rank=2))
    before = 0
    for release in releases:
        # The first release has nothing to compare with.
        growth = f"{100 * (release.size / before - 1):+.1f} %" if before else ""
        largest = sorted(release.targets.items(), key=lambda item: (-item[1], item[0]))[:3]
        table.add_row(
            release.version,
            size_text(release.size),
            size_text(release.device_code),
            growth,
            ", ".join(f"{target} {size_text(size)}" for target, size in largest),
        )
        before = release.size
    return table


def _check_growth(releases: Sequence[ReleaseSize], most: float | None) -> None:
    from archsplit.inspect.history import growth_of_last

    growth = growth_of_last(releases)
    if most is None or growth <= most:
        return
    # The table belongs before the message in a log that has both streams.
    sys.stdout.flush()
    old, new = releases[-2:]
    raise VerifyError(
        f"{new.name} has {size_text(new.size)}, {100 * growth:.1f} % more than {old.name}"
        f" ({size_text(old.size)}); the limit is {100 * most:g} %",
        hint=f"see what grew: archsplit diff {old.name} {new.name}",
    )
