"""Try a slimmed wheel: read it again, install it, load its libraries.

Find the members of a wheel that hold device code, and plan each of them.

Slim a wheel: every library in it, then RECORD, WHEEL, METADATA and the name.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from archsplit.devicecode.apply import check_plan, plan_file, write_plan
from archsplit.devicecode.effects import check_code_stays, check_coverage_stays, coverage_changes
from archsplit.devicecode.scan import HEAD_SIZE, Form, detect_form
from archsplit.errors import OutputError, TargetError, WheelError
from archsplit.release.trial import Trial, counted
from archsplit.slim.idle import kept_code_reasons_of_wheel
from archsplit.slim.report import (
    SLIM_NOTE_FILE,
    SlimReport,
    describe_file,
    earlier_slim_hint,
    removal_note,
    removal_record,
)
from archsplit.system.fs import output_dir, output_errors, put_file, sha256, temporary_dir
from archsplit.system.units import BLOCK
from archsplit.wheels.filename import WheelName
from archsplit.wheels.metadata import edit_metadata, edit_wheel_info
from archsplit.wheels.offsets import read_head
from archsplit.wheels.reader import extract_member, open_wheel
from archsplit.wheels.record import RecordRow
from archsplit.wheels.rewrite import WheelRewrite, new_dist_info
from archsplit.wheels.zip_writer import pack, pack_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from archsplit.devicecode.file_plan import FilePlan
    from archsplit.devicecode.verify import KeptImage
    from archsplit.release.context import Effects
    from archsplit.slim.report import SlimmedFile
    from archsplit.slim.request import SlimRequest
    from archsplit.wheels.reader import Wheel
    from archsplit.wheels.zip_writer import PackedContent


def prepare_trial(request: SlimRequest, workshop: Effects, folder: Path) -> Trial:
    """Prepare to load libraries, with the wheels installed that they need.

    Raises:
        VerifyError: pip refuses one of those wheels.
        WheelError: one has no wheel's name.
    """
    trial = Trial(runner=workshop.runner, folder=folder, environment=dict(workshop.environment))
    needed = folder / "needed"
    for wheel in request.needed_wheels:
        trial.install(wheel.absolute(), WheelName.parse(wheel.name), needed)
    places = (*request.needed_places, *([needed] if request.needed_wheels else []))
    return replace(trial, places=places)


def check_slimmed_wheel(
    libraries: tuple[SlimmedLibrary, ...], name: WheelName, new: Path, trial: Trial
) -> tuple[str, ...]:
    """Read the new wheel, install it, load what was changed."""
    site = new.parent / "site"
    with ThreadPoolExecutor(1) as worker, open_wheel(new) as again:
        installing = worker.submit(trial.install, new, name, site)
        again.check_contents()
        obstacle = installing.result()
    if obstacle is not None:
        return ("RECORD and all contents agree", f"install: {obstacle}")
    loads = {
        library.name: _load(trial, library, site)
        for library in libraries
        if library.plan.is_changed
    }
    return ("RECORD and all contents agree", "pip installs it", *counted(loads))


def _load(trial: Trial, library: SlimmedLibrary, site: Path) -> str:
    installed = site / library.name
    if library.plan.form is not Form.ELF or not installed.exists():
        return "not tried, because it installs as no library"
    # The old one takes the new one's place for a moment, if it is asked for at all.
    old = installed.with_name(f"{installed.name}.old")
    old.symlink_to(library.path)
    try:
        return trial.load(installed, old)
    finally:
        old.unlink()


SLIMMABLE_FORMS = {Form.ELF, Form.STATIC_LIBRARY, Form.FATBIN}
"""What containers can be taken out of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlimmedLibrary:
    """A member with device code: its plan, and what was unpacked for it."""

    name: str
    path: Path
    plan: FilePlan = field(repr=False)


def plan_libraries(wheel: Wheel, request: SlimRequest, folder: Path) -> tuple[SlimmedLibrary, ...]:
    """Read all members to their end, which checks RECORD; plan those with device code.

    Raises:
        WheelError: a member is damaged, or not what RECORD promises.
        BinaryFormatError: a library is damaged.
        TargetError: the choice leaves a GPU without code that it is meant for.
    """
    libraries = []
    for number, name in enumerate(wheel.names):
        path = folder / f"{number}.old"
        if not _unpacked(wheel, name, path, believe_record=request.believe_record):
            continue
        plan = plan_file(path, request.order)
        if plan.containers:
            check_coverage_stays(request.selection, plan.containers, of=name)
            libraries.append(SlimmedLibrary(name=name, path=path, plan=plan))
        else:
            path.unlink()
    containers = [one for library in libraries for one in library.plan.containers]
    check_code_stays(request.selection, containers, of=str(wheel.path))
    return tuple(libraries)


def _unpacked(wheel: Wheel, name: str, path: Path, *, believe_record: bool) -> bool:
    """Unpack a member if it can hold device code; read it to its end in any case."""
    entry = wheel.record.get(name, RecordRow(path=name)) if believe_record else RecordRow(path=name)
    head = read_head(wheel.archive, wheel.archive.members[name], HEAD_SIZE)
    if detect_form(head) in SLIMMABLE_FORMS:
        extract_member(wheel.archive, entry, path)
        return True
    with wheel.archive.open(entry) as stream:
        while stream.read(BLOCK):
            pass
    return False


_PLATFORM = re.compile(r"(manylinux|linux).*_(x86_64|aarch64)|any")


def slim_wheel(request: SlimRequest, workshop: Effects) -> SlimReport:
    """Write a wheel with less device code in it, under a name that says so, or nothing.

    Raises:
        InputError: the wheel can't be read.
        WheelError: it is not a sound one, or not for Linux with glibc.
        BinaryFormatError: a library in it is damaged.
        TargetError: the choice leaves a GPU without code that it is meant for.
        VerifyError: what was written fails its checks; it was removed.
        OutputError: the output can't be written.
    """
    with open_wheel(request.source, same_tags=False, full_record=request.believe_record) as wheel:
        _check_platform(wheel)
        try:
            return _wheel_slimmed(wheel, request, workshop)
        except TargetError as error:
            note = f"{wheel.dist_info}/{SLIM_NOTE_FILE}"
            hint = earlier_slim_hint([wheel.read(note)] if note in wheel.names else [])
            if hint is None:
                raise
            raise TargetError(error.args[0], hint=hint) from error


def _wheel_slimmed(wheel: Wheel, request: SlimRequest, workshop: Effects) -> SlimReport:
    if request.dry_run:
        with temporary_dir() as folder:
            libraries = plan_libraries(wheel, request, folder)
            return _report(request, libraries, _notes(wheel, request, libraries, folder))
    with output_dir(request.out) as out, temporary_dir(out) as folder:
        return _slimmed(wheel, request, workshop, folder)


def _slimmed(wheel: Wheel, request: SlimRequest, workshop: Effects, folder: Path) -> SlimReport:
    libraries = plan_libraries(wheel, request, folder)
    if not any(library.plan.is_changed for library in libraries):
        return _report(request, libraries, _notes(wheel, request, libraries, folder))
    name = _new_name(wheel.name, request)
    new = folder / str(name)
    kept = _write(wheel, request, libraries, name, new)
    checks = check_slimmed_wheel(libraries, name, new, prepare_trial(request, workshop, folder))
    target = folder.parent / new.name
    if target.exists() and target.samefile(request.source):
        raise OutputError(f"{target} is the input", hint="choose another folder with --out")
    with output_errors(target):
        new.chmod(0o644)
        put_file(new, target)
    return _report(request, libraries, wheel.info.notes, output=target, kept=kept, checks=checks)


def _notes(
    wheel: Wheel, request: SlimRequest, libraries: tuple[SlimmedLibrary, ...], folder: Path
) -> tuple[str, ...]:
    if any(library.plan.is_changed for library in libraries):
        return wheel.info.notes
    return (*wheel.info.notes, *kept_code_reasons_of_wheel(wheel, request.choice, folder))


def _check_platform(wheel: Wheel) -> None:
    others = [tag for tag in wheel.name.platforms if not _PLATFORM.fullmatch(tag)]
    if others:
        raise WheelError(
            f"{wheel.path} is for {', '.join(others)}; slim knows wheels for Linux with glibc on "
            "x86_64 and aarch64",
            hint="`archsplit inspect` says what it can about any wheel",
        )


def _new_name(name: WheelName, request: SlimRequest) -> WheelName:
    if request.label is not None:
        return name.add_local_label(request.label or f"slim.{request.selection.label}")
    return name.add_build_tag(f"slim.{request.selection.label}")


def _write(
    wheel: Wheel,
    request: SlimRequest,
    libraries: tuple[SlimmedLibrary, ...],
    name: WheelName,
    new: Path,
) -> dict[str, tuple[KeptImage, ...]]:
    """Write the wheel, and give the images that are in its libraries now."""
    with ThreadPoolExecutor(1) as worker:
        source = worker.submit(sha256, wheel.path)
        kept, changed = _rewritten(libraries)
        note = removal_record(
            source={"file": wheel.path.name, "sha256": source.result()},
            choice=request.choice,
            files=_files(request, libraries),
        )
    own = new_dist_info(wheel, name)
    rewrite = WheelRewrite(
        wheel=wheel,
        name=name,
        changed={**changed, **_edited_metadata(wheel, request, libraries, name)},
        added={f"{own}/{SLIM_NOTE_FILE}": pack(note)},
        trust_record=request.believe_record,
        moves_record=False,
    )
    with output_errors(new), new.open("wb") as file:
        rewrite.write(file)
    return kept


def _edited_metadata(
    wheel: Wheel,
    request: SlimRequest,
    libraries: tuple[SlimmedLibrary, ...],
    name: WheelName,
) -> dict[str, PackedContent]:
    """Return METADATA and WHEEL with the new version, tags and the note for the project's page."""
    metadata, info = f"{wheel.dist_info}/METADATA", f"{wheel.dist_info}/WHEEL"
    return {
        metadata: pack(
            edit_metadata(
                wheel.read(metadata),
                version=name.version if name.version != wheel.name.version else "",
                note=removal_note(_files(request, libraries)),
            )
        ),
        info: pack(edit_wheel_info(wheel.read(info), tags=name.tags, build=name.build)),
    }


def _rewritten(
    libraries: tuple[SlimmedLibrary, ...],
) -> tuple[dict[str, tuple[KeptImage, ...]], dict[str, PackedContent]]:
    """What each changed library holds, and its packed bytes."""
    kept, changed = {}, {}
    for library in libraries:
        if library.plan.is_changed:
            path = library.path.with_suffix(".new")
            write_plan(library.path, library.plan, path)
            # Packing takes the longest, and leaves the interpreter to others meanwhile.
            with ThreadPoolExecutor(1) as worker:
                packing = worker.submit(pack_file, path)
                kept[library.name] = check_plan(library.plan, path)
                changed[library.name] = packing.result()
            path.unlink()
    return kept, changed


def _files(
    request: SlimRequest,
    libraries: tuple[SlimmedLibrary, ...],
    kept: Mapping[str, tuple[KeptImage, ...]] = MappingProxyType({}),
) -> tuple[SlimmedFile, ...]:
    mode = request.mode.value
    return tuple(
        describe_file(each.name, each.plan, mode, kept.get(each.name, ())) for each in libraries
    )


def _report(
    request: SlimRequest,
    libraries: tuple[SlimmedLibrary, ...],
    notes: tuple[str, ...],
    *,
    output: Path | None = None,
    kept: Mapping[str, tuple[KeptImage, ...]] = MappingProxyType({}),
    checks: tuple[str, ...] = (),
) -> SlimReport:
    return SlimReport(
        source=str(request.source),
        output=None if output is None else str(output),
        size_before=request.source.stat().st_size,
        size_after=None if output is None else output.stat().st_size,
        sha256=None if output is None else sha256(output),
        choice=request.choice,
        files=_files(request, libraries, kept),
        effects=coverage_changes(one for each in libraries for one in each.plan.containers),
        checks=checks,
        notes=notes,
    )
