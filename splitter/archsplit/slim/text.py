"""The report of slimming as text for a terminal."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.text import Text

from archsplit.arch.compat import GPU_BY_CAPABILITY
from archsplit.devicecode.compression import MIN_DRIVERS
from archsplit.devicecode.cubin_files import cubin_family
from archsplit.devicecode.select import Coverage, PtxPolicy
from archsplit.system.table import Column, FittingTable, name_column, word_column
from archsplit.system.units import size_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rich.console import RenderableType

    from archsplit.arch.target import Capability
    from archsplit.devicecode.effects import CoverageChange
    from archsplit.slim.report import SlimmedFile, SlimReport
    from archsplit.slim.request import SlimRequest

_COVERAGE_TEXT = {
    Coverage.NATIVE: "native",
    Coverage.OLDER_MINOR: "older minor",
    Coverage.PTX: "PTX",
    Coverage.NONE: "not at all",
}
"""The words of ``archsplit inspect``."""


def slim_text(report: SlimReport, request: SlimRequest) -> Iterator[RenderableType]:
    """Yield the output of ``archsplit slim``."""
    yield report.choice
    if report.files:
        yield _slimmed_files(report)
    # Empty if every GPU runs what it ran before.
    if report.effects:
        yield ""
        yield _effects(report.effects, request.selection.devices)
        yield ""
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


def _slimmed_files(report: SlimReport) -> FittingTable:
    table = FittingTable(
        (
            name_column("file"),
            Column(heading="before"),
            Column(heading="after"),
            name_column("removed"),
        )
    )
    for file in _grouped(report.files):
        size_by_target: Counter[str] = Counter()
        for row in file.removed:
            size_by_target[row.target or row.kind] += row.file_bytes
        # The largest first: they explain the difference of the sizes.
        removed = ", ".join(
            f"{name} {size_text(size)}" for name, size in size_by_target.most_common()
        )
        sizes = (size_text(size) for size in (file.size_before, file.size_after))
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


def _effects(effects: tuple[CoverageChange, ...], asked: Iterable[Capability]) -> FittingTable:
    """Return the containers that serve each GPU, by their code; the GPUs asked for are first."""
    table = FittingTable(
        (
            name_column("GPU"),
            word_column("containers, before", rank=2),
            word_column("after"),
            word_column(""),
        )
    )
    changed = {effect.capability: effect for effect in effects}
    asked = sorted(asked)
    for capability in asked:
        if capability not in changed:
            table.add_row(_gpu_text(capability), "", "as before", "")
    for capability in sorted(changed, key=lambda one: (one not in asked, one)):
        effect = changed[capability]
        before, after = (
            ", ".join(
                f"{side[coverage]} {_COVERAGE_TEXT[coverage]}"
                for coverage in Coverage
                if coverage in side
            )
            for side in (effect.before, effect.after)
        )
        # The one word that must not be overlooked: launches fail on this GPU afterwards.
        stops = Text("stops", style="bold red") if effect.stops > 0 else ""
        table.add_row(_gpu_text(capability), before, after, stops)
    return table


def _gpu_text(capability: Capability) -> str:
    known = GPU_BY_CAPABILITY.get(capability)
    return str(capability) if known is None else f"{capability} {known.display}"


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
