"""The report of a slimmed file, wheel or environment, and the record that it carries.

`SlimReport` is for the user who slims; `slim_text` renders it for a terminal. `removal_note` and
`removal_record` stay in the slimmed wheel or distribution: for a person who reads its page, and for
programs that miss a GPU's code in it. `check_gpus` compares the records of an environment with the
GPUs of a machine. Most libraries report a missing image as an error. Some ignore the error of a
launch and give wrong numbers: on an H100 CuPy did, slimmed for 8.0. So an environment is checked
before its use.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

from rich.text import Text

from archsplit.arch.compat import GPU_BY_CAPABILITY, can_run_on
from archsplit.arch.target import Capability, CodeKind, Target
from archsplit.devicecode.apply import coverage_changes
from archsplit.devicecode.code_files import cubin_folder
from archsplit.devicecode.model import code_form
from archsplit.devicecode.recompress import ZSTD_DRIVER_TEXT, estimate_shares
from archsplit.devicecode.select import Coverage, PtxPolicy
from archsplit.errors import ArchsplitError, TargetError
from archsplit.slim.request import SHARED_FRAMES
from archsplit.system.fs import read_file, sha256
from archsplit.system.terminal import Column, FittingTable, name_column, word_column
from archsplit.system.units import count_text, short_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from rich.console import RenderableType

    from archsplit.devicecode.apply import CoverageChange
    from archsplit.devicecode.file_plan import FilePlan
    from archsplit.devicecode.select import Selection
    from archsplit.slim.request import SlimRequest

SLIM_SCHEMA = 1
_MOST_FILES = 12
_MOST_NOTES = 8
_MOST_TARGETS = 3
"""Rows and lines on a terminal: with the table of GPUs they fit on one screen."""

SLIM_NOTE_FILE = "archsplit-slim.json"
"""The removal record in the ``.dist-info`` folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedImages:
    """Removed images of one kind and target."""

    kind: str
    target: str | None
    count: int
    file_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlimmedFile:
    """A file with device code.

    Attributes:
        path: the member's name in a wheel, else the name of the file.
        size_before, size_after: bytes.
        mode: ``shrink``, ``in-place`` or ``untouched``.
        note: the reason why the file could not be shrunk, or None.
        unregistered: images that only the library finds and no chosen GPU can run, by target.
        zeroed: True if these were overwritten with zeros.
        shared: images in compressed frames of several images (kind 256), which stay.
    """

    path: str
    size_before: int
    size_after: int
    mode: str
    note: str | None
    removed: tuple[RemovedImages, ...]
    unregistered: tuple[RemovedImages, ...] = ()
    zeroed: bool = False
    shared: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SlimReport:
    """The result of slimming a file, wheel or environment.

    Attributes:
        source: the path of the input.
        output: the path of the output; None for a dry run, and if no image was removed.
        size_before, size_after: bytes, of the download for wheels; None after a dry run of a
            wheel, whose packed size is not computed.
        sha256: of the output; None for an environment.
        choice: the selection in options of the command line.
        files: the files with device code.
        effects: changes of coverage by GPU.
        checks: results of the checks, one line each.
        notes: files left unchanged, with reasons, and other remarks.
        newest_ptx_bytes: bytes of the PTX that stays for GPUs newer than all machine code.
        zstd_saves: bytes of the files that ``--recompress 9`` would save, by a sample.
    """

    source: str
    output: str | None
    size_before: int
    size_after: int | None
    sha256: str | None
    choice: str
    files: tuple[SlimmedFile, ...]
    effects: tuple[CoverageChange, ...] = field(repr=False)
    checks: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    newest_ptx_bytes: int = 0
    zstd_saves: int = 0

    def as_json(self) -> str:
        """Return the report as JSON with a final newline."""
        content = {"schema": SLIM_SCHEMA, **asdict(replace(self, effects=()))}
        content["effects"] = list(map(_effect_json, self.effects))
        return json.dumps(content, indent=2) + "\n"


def plan_report(
    request: SlimRequest,
    plans: Mapping[str, FilePlan],
    notes: tuple[str, ...] = (),
    *,
    output: Path | None = None,
    checks: tuple[str, ...] = (),
) -> SlimReport:
    """Return the report of some plans.

    Args:
        plans: by the names of their files.
        output: the new file, or the changed environment; None if nothing was written.
    """
    changed, files = plans.values(), describe_files(request, plans)
    return SlimReport(
        source=str(request.source),
        output=None if output is None else str(output),
        size_before=sum(file.size_before for file in files),
        size_after=sum(file.size_after for file in files),
        sha256=sha256(output) if output is not None and output.is_file() else None,
        choice=request.choice,
        files=files,
        effects=coverage_changes(plan.containers for plan in changed),
        newest_ptx_bytes=newest_ptx_bytes(changed, request.selection),
        zstd_saves=zstd_saves(changed, request),
        checks=checks,
        notes=notes,
    )


def _effect_json(effect: CoverageChange) -> Mapping[str, object]:
    return {
        "capability": str(effect.capability),
        "before": {coverage.value: count for coverage, count in effect.before.items()},
        "after": {coverage.value: count for coverage, count in effect.after.items()},
        "stops": effect.stops,
    }


def describe_files(request: SlimRequest, plans: Mapping[str, FilePlan]) -> tuple[SlimmedFile, ...]:
    """Return the effect of each plan on its file."""
    return tuple(_describe_file(path, plan, request.mode.value) for path, plan in plans.items())


def _describe_file(path: str, plan: FilePlan, mode: str) -> SlimmedFile:
    unregistered = _add_up((image.kind, image.target, image.size) for image in plan.unregistered)
    return SlimmedFile(
        path=path,
        size_before=len(plan.window),
        size_after=plan.size,
        # An unchanged file has all of its images, whatever mode was requested.
        mode=mode if plan.is_changed else "untouched",
        note=plan.note,
        # An emptied file is removed as a whole: nothing of it stays in its place.
        removed=unregistered if plan.is_emptied else _add_up(_removed_images(plan)),
        unregistered=() if plan.is_emptied else unregistered,
        zeroed=bool(plan.zeroed),
        shared=sum(len(container.shared) for container in plan.containers),
    )


def _removed_images(plan: FilePlan) -> Iterator[tuple[str, str | None, int]]:
    """Yield kind, target and size of each image that is left out."""
    for container in plan.containers:
        # By offset, which identifies an entry.
        kept = {entry.offset for entry in container.kept}
        for entry in container.entries:
            if entry.offset not in kept:
                target = None if entry.target is None else str(entry.target)
                yield entry.kind_name, target, entry.size


def _add_up(images: Iterable[tuple[str, str | None, int]]) -> tuple[RemovedImages, ...]:
    groups: dict[tuple[str, str | None], list[int]] = {}
    for kind, target, size in images:
        groups.setdefault((kind, target), []).append(size)
    return tuple(
        RemovedImages(kind=kind, target=target, count=len(sizes), file_bytes=sum(sizes))
        # `str`, because the target may be None, which doesn't compare with text.
        for (kind, target), sizes in sorted(groups.items(), key=lambda item: str(item[0]))
    )


def removal_note(files: Iterable[SlimmedFile]) -> str:
    """Return a paragraph for the project's page about the removed device code."""
    totals: Counter[str] = Counter()
    for file in files:
        for row in (*file.removed, *(file.unregistered if file.zeroed else ())):
            totals[row.target or row.kind] += row.file_bytes
    parts = [f"{target} ({short_size(size)})" for target, size in sorted(totals.items())]
    # With --recompress a file may change without losing an image.
    removed = ", ".join(parts) or "none; it was only compressed again"
    return f"This wheel was slimmed with archsplit. Device code that was removed: {removed}."


def removal_record(
    *, source: Mapping[str, str], choice: str, files: Iterable[SlimmedFile]
) -> bytes:
    """Return the content of `SLIM_NOTE_FILE`; ``source`` identifies the original."""
    rows = [
        {
            "path": file.path,
            "removed": [asdict(row) for row in file.removed],
            # Zeros in their places: these images keep their offsets.
            "zeroed": [asdict(row) for row in file.unregistered] if file.zeroed else [],
        }
        for file in files
    ]
    # Names and digests, no paths of this machine: the record is published with the wheel.
    content = {"schema": SLIM_SCHEMA, "source": dict(source), "choice": choice, "files": rows}
    return (json.dumps(content, indent=2) + "\n").encode()


def earlier_slim_hint(texts: Iterable[bytes]) -> str | None:
    """Return a hint that names the earlier choices of removal records, or None."""
    choices = sorted({record[0] for record in map(_read_record, texts) if record})
    if not choices:
        return None
    options = ", ".join(f"`{choice}`" for choice in choices)
    return f"device code was removed from it by {options}; slim the original instead"


def _read_record(text: bytes) -> tuple[str, bool] | None:
    """Return the choice of a removal record, and True for an environment."""
    try:
        content = json.loads(text)
        # Records of wheels that were slimmed before their installation name a file instead.
        return str(content["choice"]), "distribution" in content.get("source", {})
    # The file may come from a wheel, which anyone may have edited.
    except (ValueError, KeyError, TypeError):
        return None


def slim_text(report: SlimReport, request: SlimRequest) -> Iterator[RenderableType]:
    """Yield the output of ``archsplit slim``."""
    yield report.choice
    if report.files:
        yield _slimmed_files(report)
    # Empty if every GPU runs what it ran before.
    if report.effects:
        yield ""
        yield _coverage_table(report.effects, request.selection.devices)
        yield ""
    notes = list(_notes(report, request))
    yield from notes[:_MOST_NOTES]
    if len(notes) > _MOST_NOTES:
        yield f"{count_text(len(notes) - _MOST_NOTES, 'more note')}: --json has all"
    if report.zstd_saves:
        saves = short_size(report.zstd_saves)
        yield f"--recompress 9 saves about {saves} more on disk, for {ZSTD_DRIVER_TEXT}"
    # The result is last: a reader of a terminal looks there first.
    if report.output is not None:
        if report.size_after is not None:
            size_note = f"{short_size(report.size_before)} before"
            if request.source.is_dir():
                size_note += "; --undo restores it, --commit removes the old files"
            yield f"{report.output}: {short_size(report.size_after)}, {size_note}"
    # Sizes of files: the size of a download is known only after packing.
    elif request.dry_run:
        difference = sum(file.size_before - file.size_after for file in report.files)
        yield f"{short_size(difference)} would be saved; nothing was written (--dry-run)"
    elif request.source.is_dir():
        yield "no image can be removed; nothing was written"


def _slimmed_files(report: SlimReport) -> FittingTable:
    table = FittingTable(
        name_column("file"),
        Column(heading="before"),
        Column(heading="after"),
        word_column("removed", rank=1),
    )
    # The largest changes first; one screen.
    files = sorted(_group_cubins(report.files), key=lambda one: one.size_after - one.size_before)
    for file in files[:_MOST_FILES]:
        size_by_target: Counter[str] = Counter()
        for row in file.removed:
            size_by_target[row.target or row.kind] += row.file_bytes
        # The largest first: they explain the difference of the sizes.
        shown = size_by_target.most_common(_MOST_TARGETS)
        removed = ", ".join(f"{name} {short_size(size)}" for name, size in shown)
        if len(size_by_target) > len(shown):
            removed += f", {len(size_by_target) - len(shown)} more"
        sizes = (short_size(size) for size in (file.size_before, file.size_after))
        table.add_row(file.path, *sizes, removed or "nothing")
    if len(files) > _MOST_FILES:
        rest = files[_MOST_FILES:]
        before = short_size(sum(one.size_before for one in rest))
        after = short_size(sum(one.size_after for one in rest))
        table.add_row(count_text(len(rest), "more file"), before, after, "--json lists them")
    return table


def _group_cubins(files: tuple[SlimmedFile, ...]) -> Iterator[SlimmedFile]:
    """Yield the files of the table, with one row for all cubins of a folder."""
    cubins: dict[str, list[SlimmedFile]] = {}
    for file in files:
        folder = cubin_folder(file.path)
        if folder is None:
            yield file
        else:
            cubins.setdefault(folder, []).append(file)
    for folder, group in cubins.items():
        yield replace(
            group[0],
            path=f"{folder}: {count_text(len(group), 'cubin')} for other GPUs",
            size_before=sum(file.size_before for file in group),
            size_after=sum(file.size_after for file in group),
            removed=tuple(row for file in group for row in file.removed),
        )


def _coverage_table(
    effects: tuple[CoverageChange, ...], requested: Iterable[Capability]
) -> FittingTable:
    """Return the containers that serve each GPU, by their code; the GPUs asked for are first."""
    table = FittingTable(
        name_column("GPU"),
        word_column("containers, before", rank=2),
        word_column("after"),
        word_column(""),
    )
    changed = {effect.capability: effect for effect in effects}
    requested = sorted(requested)
    for capability in requested:
        if capability not in changed:
            table.add_row(_gpu_text(capability), "", "as before", "")
    for capability in sorted(changed, key=lambda one: (one not in requested, one)):
        effect = changed[capability]
        before, after = (
            ", ".join(
                f"{side[coverage]} {coverage.words}" for coverage in Coverage if coverage in side
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


def _newest_ptx_text(report: SlimReport, selection: Selection) -> str:
    newest = max(
        (*selection.devices, *(target.capability for target in selection.keep)), default=None
    )
    subject = "newer GPUs find" if newest is None else f"GPUs newer than {newest} find"
    return (
        f"--keep-ptx none saves {short_size(report.newest_ptx_bytes)} more on disk; then"
        f" {subject} no code"
    )


def newest_ptx_bytes(plans: Iterable[FilePlan], selection: Selection) -> int:
    """Return the bytes that stay only because the newest PTX of each container is kept."""
    if selection.drop or selection.ptx is not PtxPolicy.NEWEST:
        return 0
    without = replace(selection, ptx=PtxPolicy.NONE)
    return sum(
        sum(entry.size for entry in filtered.kept)
        - sum(entry.size for entry in without.kept(filtered.entries, filtered.linked))
        for plan in plans
        for filtered in plan.containers
    )


def zstd_saves(plans: Iterable[FilePlan], request: SlimRequest) -> int:
    """Return the bytes that kept images would save as zstd frames, by a sample."""
    if request.recompress is not None:
        return 0
    images = [
        (filtered.container, entry)
        for plan in plans
        for filtered in plan.containers
        if filtered.is_for_driver
        for entry in filtered.kept
    ]
    shares = estimate_shares(images)
    return int(sum(one.size * (1 - shares.get(code_form(one), 1.0)) for _, one in images))


def _unregistered_text(file: SlimmedFile) -> str:
    images = count_text(sum(row.count for row in file.unregistered), "image")
    size = short_size(sum(row.file_bytes for row in file.unregistered))
    what = f"{file.path}: {images}, {size}, that only the library finds and these GPUs can't run"
    if file.zeroed:
        return f"{what}: zeros now, which pack better and can be holes"
    return f"{what}: kept; --unregistered zero overwrites such code"


def _notes(report: SlimReport, request: SlimRequest) -> Iterator[str]:
    for file in report.files:
        if file.note is not None:
            yield f"{file.path} keeps its length, with zeros in place of the code: {file.note}"
        if file.unregistered:
            yield _unregistered_text(file)
    if shared := sum(file.shared for file in report.files):
        yield f"kept {count_text(shared, 'image')}: {SHARED_FRAMES}"
    if request.recompress is not None:
        yield f"compressed images need {ZSTD_DRIVER_TEXT}"
    # Users who ask for one GPU are surprised to find PTX of another in the result.
    if report.newest_ptx_bytes:
        yield _newest_ptx_text(report, request.selection)
    # An environment moves with its image to machines with other GPUs.
    if request.source.is_dir() and request.selection.devices and not request.dry_run:
        yield (
            "on another GPU some libraries give wrong numbers without an error: where programs"
            f" start, `archsplit doctor --site-packages {request.source}` refuses it"
        )
    if request.tries_loading:
        yield from report.checks
    yield from report.notes


_OPTION = re.compile(r"--(device|keep) (\S+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlimmedDistribution:
    """A slimmed distribution, with the machine code that its libraries were to keep."""

    name: str
    choice: str
    targets: tuple[Target, ...]

    def runs_on(self, capability: Capability) -> bool:
        """Return True if the GPU may have machine code; PTX doesn't count."""
        return any(can_run_on(target, capability) for target in self.targets)


def slimmed_in_place(site: Path) -> Iterator[str]:
    """Yield name and version, joined by "-", of each distribution that was slimmed in ``site``.

    Raises:
        InputError: a removal record can't be read.
    """
    return (name for name, (_, is_here) in _read_records(site) if is_here)


def _read_records(site: Path) -> Iterator[tuple[str, tuple[str, bool]]]:
    for path in sorted(site.glob(f"*.dist-info/{SLIM_NOTE_FILE}")):
        if record := _read_record(read_file(path)):
            yield path.parent.name.removesuffix(".dist-info"), record


def _slimmed_distributions(site: Path) -> Iterator[SlimmedDistribution]:
    """Yield the distributions that were slimmed for some GPUs; ``--drop`` names none."""
    for name, (choice, _) in _read_records(site):
        # Any text may be there.
        with contextlib.suppress(ArchsplitError):
            if targets := tuple(_targets(choice)):
                yield SlimmedDistribution(name=name, choice=choice, targets=targets)


def _targets(choice: str) -> Iterator[Target]:
    for option, words in _OPTION.findall(choice):
        for word in words.split(","):
            if option == "device":
                yield Target(kind=CodeKind.SASS, capability=Capability.parse(word))
            else:
                yield Target.parse(word)


def check_gpus(site: Path, capabilities: Iterable[Capability]) -> tuple[str, ...]:
    """Return a line for the slimmed distributions, or refuse GPUs that they are not for.

    Raises:
        TargetError: a GPU has no machine code in some of them; the message lists all.
        InputError: a removal record can't be read.
    """
    slimmed = tuple(_slimmed_distributions(site))
    capabilities = sorted(capabilities)
    unfit = [
        f"{one.name} was slimmed with {one.choice}: no machine code for {capability}"
        for one in slimmed
        for capability in capabilities
        if not one.runs_on(capability)
    ]
    if unfit:
        raise TargetError(
            "\n  ".join((f"{site} was slimmed for other GPUs; results may be wrong:", *unfit)),
            hint="install the packages again, or put them back with `archsplit slim --undo`",
        )
    text = ", ".join(map(str, capabilities))
    packages = count_text(len(slimmed), "slimmed distribution")
    return (f"{packages} in {site}: all may run on {text}",)
