"""The report of slimming as text for a terminal."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.table import Table

from archsplit.arch.compat import capability_text
from archsplit.devicecode.compression import MIN_DRIVERS
from archsplit.devicecode.cubin_files import cubin_family
from archsplit.devicecode.select import Coverage, PtxPolicy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from archsplit.devicecode.effects import CoverageChange
    from archsplit.slim.report import SlimmedFile, SlimReport
    from archsplit.slim.request import SlimRequest

_COVERAGE_TEXT = {
    Coverage.NATIVE: "native",
    Coverage.OLDER_MINOR: "by an older minor",
    Coverage.PTX: "by PTX",
    Coverage.NONE: "not at all",
}


def slim_text(report: SlimReport, request: SlimRequest) -> Iterator[RenderableType]:
    """Yield the output of ``archsplit slim``."""
    if report.files:
        yield _slimmed_files(report)
    if report.effects:
        # Empty if every GPU runs what it ran before.
        yield _effects(report.effects)
    yield from _notes(report, request)
    if report.output is not None:
        if report.size_after is not None:
            size_note = f"{report.size_before / 1e6:.1f} MB before"
            if request.source.is_dir():
                size_note += "; --undo restores it, --commit removes the old files"
            yield f"{report.output}: {report.size_after / 1e6:.1f} MB, {size_note}"
    # Sizes of files: the size of a download is known only after packing.
    elif request.dry_run:
        difference = sum(file.size_before - file.size_after for file in report.files)
        yield f"{difference / 1e6:.1f} MB would be saved; nothing was written (--dry-run)"
    elif request.source.is_dir():
        yield "no image can be removed; nothing was written"


def _slimmed_files(report: SlimReport) -> Table:
    table = Table(title=report.choice)
    table.add_column("file", overflow="fold")
    table.add_column("MB before", justify="right")
    table.add_column("MB after", justify="right")
    table.add_column("removed", overflow="fold")
    for file in _grouped(report.files):
        size_by_target: Counter[str] = Counter()
        for row in file.removed:
            size_by_target[row.target or row.kind] += row.file_bytes
        removed = ", ".join(f"{name} {size / 1e6:.1f}" for name, size in size_by_target.items())
        sizes = (f"{size / 1e6:.2f}" for size in (file.size_before, file.size_after))
        table.add_row(file.path, *sizes, removed or "nothing")
    return table


def _grouped(files: tuple[SlimmedFile, ...]) -> Iterator[SlimmedFile]:
    """Yield the files of the table, with one row for all cubins of a family."""
    cubins: dict[str, list[SlimmedFile]] = {}
    for file in files:
        family = cubin_family(file.path)
        if family is None:
            yield file
        else:
            cubins.setdefault(family.folder, []).append(file)
    for folder, group in cubins.items():
        yield replace(
            group[0],
            path=f"{folder}: {len(group)} cubins for other GPUs",
            size_before=sum(file.size_before for file in group),
            size_after=sum(file.size_after for file in group),
            removed=tuple(row for file in group for row in file.removed),
        )


def _effects(effects: tuple[CoverageChange, ...]) -> Table:
    table = Table(title="containers by the kind of code that runs")
    table.add_column("GPU", overflow="fold")
    table.add_column("before")
    table.add_column("after")
    for effect in effects:
        # The one line that must not be overlooked: launches fail on this GPU afterwards.
        stops = " [bold red]stops[/]" if effect.stops > 0 else ""
        before, after = (
            ", ".join(
                f"{side[coverage]} {_COVERAGE_TEXT[coverage]}"
                for coverage in Coverage
                if coverage in side
            )
            for side in (effect.before, effect.after)
        )
        table.add_row(capability_text(effect.capability), before, after + stops)
    return table


def _unregistered_text(file: SlimmedFile) -> str:
    count = sum(row.count for row in file.unregistered)
    size = sum(row.file_bytes for row in file.unregistered) / 1e6
    images = f"{file.path}: {count} images, {size:.1f} MB, that only the library finds and these"
    if file.zeroed:
        return f"{images} GPUs can't run, are zeros now: they pack better and can be holes"
    return f"{images} GPUs can't run, stay; --unregistered zero overwrites them"


def _notes(report: SlimReport, request: SlimRequest) -> Iterator[str]:
    for file in report.files:
        if file.note is not None:
            yield f"{file.path} was changed in place, and has its old size: {file.note}"
        if file.unregistered:
            yield _unregistered_text(file)
    if request.recompress is not None:
        yield f"compressed images need {MIN_DRIVERS[request.recompress]}"
    # Users who ask for one GPU are surprised to find PTX of another in the result.
    if not request.selection.drop and request.selection.ptx is PtxPolicy.NEWEST:
        yield "the newest PTX of each container stays, for GPUs newer than all machine code"
    yield from report.checks
    yield from report.notes
