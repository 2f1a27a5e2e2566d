"""``archsplit diff`` of releases: a table of their sizes, with a log and a limit."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.cli import options
from archsplit.cli.files import find_file, finding_files
from archsplit.cli.inspect import print_all, write_summary
from archsplit.errors import InputError, UsageError, VerifyError
from archsplit.system.fs import read_file, write_file
from archsplit.system.units import size_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console, RenderableType

    from archsplit.inspect.history import ReleaseSize

HISTORY_SCHEMA = 1
_PAIR = 2


def add_size_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for more than two files, or for a log of releases."""
    group = parser.add_argument_group(
        "sizes of releases", "with one of these, or for other than two files: a table of sizes"
    )
    table = f"""
--log FILE         add the files to this log, one line of JSON each, and show all of it
--max-growth 5%    exit with 9 if the last release grew by more than this
{options.FINDINGS}
"""
    options.add_options(group, table, types={"5%": _percent})


def wants_sizes(arguments: argparse.Namespace) -> bool:
    """Return True if a table of sizes is asked for."""
    chosen = (arguments.log, arguments.max_growth)
    return len(arguments.files) != _PAIR or any(one is not None for one in chosen)


def run_history(arguments: argparse.Namespace, console: Console) -> int:
    """Measure the files, show all releases, and check the limit."""
    from archsplit.inspect.history import merge_releases
    from archsplit.inspect.inspection import history_markdown

    if not arguments.files and arguments.log is None:
        raise UsageError("nothing to show", hint="name wheels, or a log with --log FILE")
    arguments.files = [find_file(Path(path), console) for path in arguments.files]
    logged = _read_log(arguments)
    releases = merge_releases(logged, _measure(arguments.files))
    # A log is whole or as it was: all files were read before it is written.
    if arguments.log is not None and len(releases) > len(logged):
        write_file(arguments.log, "".join(f"{release.as_line()}\n" for release in releases))
    write_summary(arguments, lambda: history_markdown(releases))
    if arguments.json:
        lines = [json.loads(release.as_line()) for release in releases]
        print(json.dumps({"schema": HISTORY_SCHEMA, "releases": lines}, indent=2))  # noqa: T201 - data
    else:
        print_all([_table(releases)])
    last = releases[-1].name if releases else str(arguments.log)
    with finding_files(arguments, check="diff", checked=last):
        _check_growth(releases, arguments.max_growth)
    return 0


def _percent(text: str) -> float:
    try:
        value = float(text.removesuffix("%"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a percentage, as in 5%") from None
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
    try:
        return read_log(read_file(log).decode(), where=str(log))
    except UnicodeDecodeError:
        raise InputError(f"{log} is not UTF-8", hint="name a log of archsplit diff --log") from None


def _measure(files: Sequence[Path]) -> list[ReleaseSize]:
    from archsplit.inspect.history import measure_release
    from archsplit.inspect.inspect import InspectRequest, read_inventory

    return [
        measure_release(read_inventory(InspectRequest(subject=str(path), digest=True)))
        for path in files
    ]


def _table(releases: Sequence[ReleaseSize]) -> RenderableType:
    from archsplit.system.terminal import Column, FittingTable, name_column, word_column

    numbers = (Column(heading=head) for head in ("size", "device code", "growth"))
    table = FittingTable((name_column("release"), *numbers, word_column("largest targets", rank=2)))
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
