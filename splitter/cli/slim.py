"""``archsplit slim``: the same library or wheel without the device code that one can't use."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from splitter.arch.compat import describe
from splitter.arch.target import Capability, parse_targets
from splitter.devicecode.choose import Service
from splitter.devicecode.fileplan import Mode
from splitter.devicecode.recompress import DRIVER_FLOORS, Packing
from splitter.devicecode.selection import PtxPolicy, Selection
from splitter.errors import UsageError
from splitter.slimming.file import slim_file
from splitter.slimming.request import SlimRequest
from splitter.slimming.wheel import slim_wheel
from splitter.system.progress import Silent
from splitter.workshop import Workshop

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from rich.console import RenderableType

    from splitter.cli import options
    from splitter.devicecode.effects import Effect
    from splitter.slimming.report import SlimReport

_WORDS = {
    Service.NATIVE: "native",
    Service.OLDER_MINOR: "by an older minor",
    Service.PTX: "by PTX",
    Service.NONE: "not at all",
}


def add_to(verbs: options.Verbs) -> None:
    """Describe the verb."""
    parser = verbs.add_parser("slim", help="take device code out of a library or wheel")
    parser.add_argument("file", type=Path, help="a .so, .o, .a, .fatbin or .whl file")
    choice = parser.add_argument_group("what stays (one of the three)")
    choice.add_argument(
        "--device",
        action="append",
        default=[],
        metavar="9.0",
        help="keep what this GPU takes, container by container; may be repeated",
    )
    choice.add_argument("--keep", metavar="LIST", help="keep these targets: sm_90,compute_120")
    choice.add_argument("--drop", metavar="LIST", help="take these targets out, keep the others")
    parser.add_argument(
        "--keep-ptx",
        choices=[policy.value for policy in PtxPolicy],
        help="which PTX stays beside it; the newest of each container is what GPUs that are newer"
        " than all machine code need to start (default: newest; with --drop, all that isn't named)",
    )
    parser.add_argument(
        "--mode",
        choices=[mode.value for mode in Mode],
        default=Mode.SHRINK.value,
        help="shrink makes files shorter; in-place only makes them pack better",
    )
    floors = "; ".join(f"{packing.value} needs {floor}" for packing, floor in DRIVER_FLOORS.items())
    parser.add_argument(
        "--recompress",
        choices=[packing.value for packing in Packing],
        help=f"pack machine code that isn't packed; {floors}",
    )
    parser.add_argument(
        "--label",
        nargs="?",
        const="",
        metavar="TEXT",
        help="mark the wheel in its version (3.2.0+TEXT), which the public index refuses, and not"
        " with a build tag",
    )
    parser.add_argument(
        "--ignore-record",
        action="store_true",
        help="slim a wheel although members aren't what RECORD has the hash of",
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would happen, no more")
    parser.add_argument(
        "--out", type=Path, default=Path(), help="the folder to write to (default: this one)"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Slim, and say what came of it."""
    del console
    request = _request(arguments)
    workshop = Workshop(progress=Silent(), environment=os.environ, jobs=1)
    slim = slim_wheel if request.source.suffix == ".whl" else slim_file
    report = slim(request, workshop)
    if arguments.json:
        print(report.as_json(), end="")  # noqa: T201 - standard output is where data goes
    else:
        screen = Console()
        for part in _shown(report, request):
            screen.print(part, highlight=False, soft_wrap=isinstance(part, str))
    return 0


def _request(arguments: argparse.Namespace) -> SlimRequest:
    drop = arguments.drop is not None
    if drop and arguments.keep_ptx is not None:
        raise UsageError("--keep-ptx means nothing with --drop", hint="name the PTX in --drop")
    selection = Selection(
        devices=frozenset(map(Capability.parse, arguments.device)),
        keep=frozenset(parse_targets(arguments.keep) if arguments.keep is not None else ()),
        drop=frozenset(parse_targets(arguments.drop) if drop else ()),
        ptx=PtxPolicy(arguments.keep_ptx or PtxPolicy.NEWEST.value),
    )
    packing = None if arguments.recompress is None else Packing(arguments.recompress)
    return SlimRequest(
        source=arguments.file,
        out=arguments.out,
        selection=selection,
        mode=Mode(arguments.mode),
        packing=packing,
        label=arguments.label,
        believe_record=not arguments.ignore_record,
        dry_run=arguments.dry_run,
    )


def _shown(report: SlimReport, request: SlimRequest) -> Iterator[RenderableType]:
    yield _files(report)
    if report.effects:
        yield _effects(report.effects)
    yield from _notes(report, request)
    if report.output is not None:
        saved = f"{report.size_before / 1e6:.1f} MB before"
        yield f"{report.output}: {(report.size_after or 0) / 1e6:.1f} MB, {saved}"
    elif request.dry_run:
        yield "nothing was written (--dry-run)"
    else:
        yield "there is nothing to take out; nothing was written"


def _files(report: SlimReport) -> Table:
    table = Table(title=report.choice)
    table.add_column("file", overflow="fold")
    table.add_column("MB before", justify="right")
    table.add_column("MB after", justify="right")
    table.add_column("removed", overflow="fold")
    for file in report.files:
        sums: Counter[str] = Counter()
        for row in file.removed:
            sums[row.target or row.kind] += row.file_bytes
        removed = ", ".join(f"{name} {size / 1e6:.1f}" for name, size in sums.items())
        sizes = (f"{size / 1e6:.2f}" for size in (file.size_before, file.size_after))
        table.add_row(file.path, *sizes, removed or "nothing")
    return table


def _effects(effects: tuple[Effect, ...]) -> Table:
    table = Table(title="containers, by how they run")
    table.add_column("GPU", overflow="fold")
    table.add_column("before")
    table.add_column("after")
    for effect in effects:
        stops = " [bold red]stops[/]" if effect.stops > 0 else ""
        before, after = (
            ", ".join(
                f"{side[service]} {_WORDS[service]}" for service in Service if service in side
            )
            for side in (effect.before, effect.after)
        )
        table.add_row(describe(effect.capability), before, after + stops)
    return table


def _notes(report: SlimReport, request: SlimRequest) -> Iterator[str]:
    for file in report.files:
        if file.note is not None:
            yield f"{file.path} was changed in place, and is as long as before: {file.note}"
    if request.packing is not None:
        yield f"what was packed anew needs {DRIVER_FLOORS[request.packing]}"
    if not request.selection.drop and request.selection.ptx is PtxPolicy.NEWEST:
        yield "the newest PTX of each container stays, for GPUs newer than all machine code"
    yield from report.checks
