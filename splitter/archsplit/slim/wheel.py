"""Slim a wheel, or one library (of Linux or Windows) or fatbin.

In: a wheel and a request. Out: a smaller wheel under another name, and a report. Every library is
slimmed, then RECORD, WHEEL, METADATA and the file name follow. Unchanged members are copied as
packed bytes. The new wheel is read again and installed by pip before it takes its name; no code of
the wheel runs, unless the user asks to load the libraries. `slim_file` does the same for a file
outside of wheels.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from archsplit.devicecode.apply import (
    check_code_stays,
    check_coverage_stays,
    check_plan,
    write_plan,
)
from archsplit.devicecode.code_files import (
    bitcode_target,
    cubin_folder,
    plan_code_file,
    unused_bitcode,
)
from archsplit.devicecode.file_forms import HEAD_SIZE, Form, detect_form
from archsplit.devicecode.file_plan import is_linker_input, plan_rewrite
from archsplit.errors import BinaryFormatError, OutputError, TargetError, UsageError, WheelError
from archsplit.formats.reader import open_file
from archsplit.release.trial import Trial, trial_results
from archsplit.slim.report import (
    SLIM_NOTE_FILE,
    SlimReport,
    describe_files,
    earlier_slim_hint,
    plan_report,
    removal_note,
    removal_record,
)
from archsplit.slim.request import NO_CODE, kept_code_reasons, wheel_kept_code_reasons
from archsplit.system.fs import output_dir, output_errors, put_file, sha256, temporary_dir
from archsplit.system.parallel import ThreadPool
from archsplit.system.units import BLOCK
from archsplit.wheels.metadata import edit_metadata, edit_wheel_info
from archsplit.wheels.reader import extract_member, open_wheel
from archsplit.wheels.rewrite import WheelRewrite, new_dist_info
from archsplit.wheels.zip_reader import read_head
from archsplit.wheels.zip_writer import pack

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.devicecode.file_plan import FileEdit, FilePlan
    from archsplit.release.context import Effects
    from archsplit.slim.report import SlimmedFile
    from archsplit.slim.request import SlimRequest
    from archsplit.wheels.filename import WheelName
    from archsplit.wheels.reader import Wheel
    from archsplit.wheels.zip_writer import PackedContent

SLIMMABLE_FORMS = {Form.ELF, Form.PE, Form.FATBIN}
"""Forms of files from which containers can be removed."""

_PLATFORM = re.compile(r"(manylinux|linux).*_(x86_64|aarch64)|win_(amd64|arm64)|any")


def slim_wheel(request: SlimRequest, effects: Effects) -> SlimReport:
    """Write a wheel with less device code, if it has images to remove.

    Raises:
        InputError: the wheel can't be read.
        WheelError: the wheel is not sound, or not for Linux with glibc.
        BinaryFormatError: a library in it is damaged.
        TargetError: a GPU of the choice would be left without code.
        VerifyError: the new wheel fails its checks, and was removed.
        OutputError: the output can't be written.
    """
    ignored = request.ignore_record
    with open_wheel(request.source, same_tags=False, ignore_record=ignored) as wheel:
        _check_platform(wheel)
        try:
            return _slim_open_wheel(wheel, request, effects)
        # A wheel that was slimmed before may lack the code that is to be kept now.
        except TargetError as error:
            error.hint = _earlier_hint(wheel) or error.hint
            raise


def _earlier_hint(wheel: Wheel) -> str | None:
    note = f"{wheel.dist_info}/{SLIM_NOTE_FILE}"
    return earlier_slim_hint([wheel.read(note)] if note in wheel.names else [])


def _slim_open_wheel(wheel: Wheel, request: SlimRequest, effects: Effects) -> SlimReport:
    if request.dry_run:
        with temporary_dir() as folder:
            libraries = plan_libraries(wheel, request, folder)
            return _report(request, libraries, _notes(wheel, request, libraries, folder))
    with output_errors(request.out):
        is_new = not request.out.exists()
    # An error of the system that no step has named is told too.
    with output_errors(request.out), output_dir(request.out) as out, temporary_dir(out) as folder:
        report = _slim_libraries(wheel, request, effects, folder)
    if is_new and not report.output:
        # Without a wheel there is nothing to keep a folder for.
        out.rmdir()
    return report


def _slim_libraries(
    wheel: Wheel, request: SlimRequest, effects: Effects, folder: Path
) -> SlimReport:
    libraries = plan_libraries(wheel, request, folder)
    # No wheel is written: an equal one under another name would only confuse.
    if not any(library.plan.is_changed for library in libraries):
        notes = _notes(wheel, request, libraries, folder)
        hint = _earlier_hint(wheel)
        return _report(request, libraries, (*notes, *([hint] if hint else [])))
    new_name = _new_name(wheel.name, request)
    path = folder / str(new_name)
    _write_wheel(wheel, request, libraries, new_name, path)
    checks = check_slimmed_wheel(
        libraries if request.tries_loading else (),
        new_name,
        path,
        prepare_trial(request, effects, folder),
    )
    target = folder.parent / path.name
    _refuse_input(target, request.source)
    with output_errors(target):
        path.chmod(0o644)
        put_file(path, target)
    return _report(request, libraries, wheel.info.notes, output=target, checks=checks)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlimmedLibrary:
    """A library with device code, unpacked, and its plan."""

    name: str
    path: Path
    plan: FilePlan = field(repr=False)


def plan_libraries(wheel: Wheel, request: SlimRequest, folder: Path) -> tuple[SlimmedLibrary, ...]:
    """Plan the members with device code, and compare all members with RECORD.

    Raises:
        WheelError: a member is damaged, or doesn't match RECORD.
        BinaryFormatError: a library is damaged.
        TargetError: a GPU of the choice would be left without code.
    """
    libraries = []
    bitcode = unused_bitcode(wheel.names, request.selection)
    for number, name in enumerate(wheel.names):
        # By number, because two members may have the same file name in different folders.
        path = folder / f"{number}.old"
        if not _unpack_library(wheel, name, path, is_unused=name in bitcode):
            continue
        plan = plan_member(name, path, request.file_edit, source=f"{wheel.path}: {name}")
        if plan.containers or plan.unregistered:
            libraries.append(SlimmedLibrary(name=name, path=path, plan=plan))
        else:
            path.unlink()
    containers = [one for library in libraries for one in library.plan.containers]
    check_code_stays(request.selection, containers, subject=str(wheel.path))
    # Each library by itself: one that serves the GPU would otherwise hide one that doesn't.
    for library in libraries:
        check_coverage_stays(request.selection, library.plan.containers, subject=library.name)
    return tuple(libraries)


def plan_member(name: str, path: Path, edit: FileEdit, *, source: str = "") -> FilePlan:
    """Plan a file by the rule for its name; raise the same errors as `plan_rewrite`.

    Bitcode that a GPU of the choice needs must not be given.
    """
    window = open_file(path, source=source)
    if (bitcode := bitcode_target(name)) is not None or cubin_folder(name) is not None:
        return plan_code_file(window, edit, bitcode=bitcode)
    return plan_rewrite(window, edit)


def _unpack_library(wheel: Wheel, name: str, path: Path, *, is_unused: bool) -> bool:
    """Unpack a member that can have device code; read others to check them."""
    head = read_head(wheel.archive, wheel.archive.members[name], HEAD_SIZE)
    if is_unused or detect_form(head) in SLIMMABLE_FORMS or cubin_folder(name) is not None:
        extract_member(wheel.archive, wheel.row(name), path)
        return True
    with wheel.open(name) as stream:
        # The reader compares size, CRC-32 and digest at the end of the member.
        while stream.read(BLOCK):
            pass
    return False


def _check_platform(wheel: Wheel) -> None:
    unsupported = [tag for tag in wheel.name.platforms if not _PLATFORM.fullmatch(tag)]
    if unsupported:
        raise WheelError(
            f"{wheel.path} is for {', '.join(unsupported)}, expected Linux with glibc on x86_64 or "
            "aarch64, or Windows",
            hint="`archsplit inspect` reads any wheel",
        )


def _new_name(name: WheelName, request: SlimRequest) -> WheelName:
    # A build tag keeps the version, so `==` pins of other packages hold; the public index refuses
    # local versions (+slim).
    if request.label is not None:
        return name.add_local_label(request.label or f"slim.{request.name_label}")
    return name.add_build_tag(f"slim.{request.name_label}")


def _write_wheel(
    wheel: Wheel,
    request: SlimRequest,
    libraries: tuple[SlimmedLibrary, ...],
    name: WheelName,
    new: Path,
) -> None:
    """Write a wheel with the changed libraries, and the record of what was removed."""
    # Hashing the input takes a core of its own while libraries are rewritten.
    files = describe_files(request, _plans(libraries))
    with ThreadPool(1) as worker:
        source = worker.submit(sha256, wheel.path)
        changed = _rewrite_libraries(libraries)
        note = removal_record(
            source={"file": wheel.path.name, "sha256": source.result()},
            choice=request.choice,
            files=files,
        )
    dist_info = new_dist_info(wheel, name)
    rewrite = WheelRewrite(
        wheel=wheel,
        name=name,
        changed={**changed, **_edited_metadata(wheel, files, name)},
        added={f"{dist_info}/{SLIM_NOTE_FILE}": pack(note)},
        # RECORD keeps its place among the members, as in the input.
        moves_record=False,
    )
    with output_errors(new), new.open("wb") as file:
        rewrite.write(file)


def _rewrite_libraries(libraries: tuple[SlimmedLibrary, ...]) -> dict[str, PackedContent]:
    """Rewrite the changed libraries; return their packed bytes."""
    changed = {}
    for library in libraries:
        if library.plan.is_changed:
            path = library.path.with_suffix(".new")
            write_plan(library.path, library.plan, path)
            # Packing takes longest, and releases the interpreter lock: check meanwhile.
            with ThreadPool(1) as worker:
                packing = worker.submit(pack, path)
                check_plan(library.plan, open_file(path))
                changed[library.name] = packing.result()
            # It is packed by now; the new files of all libraries together could fill the disk.
            path.unlink()
    return changed


def _edited_metadata(
    wheel: Wheel, files: tuple[SlimmedFile, ...], name: WheelName
) -> dict[str, PackedContent]:
    """Return METADATA and WHEEL with the new version, tags and note."""
    metadata, info = f"{wheel.dist_info}/METADATA", f"{wheel.dist_info}/WHEEL"
    # Changed only with a local label: METADATA and file name must have the same version.
    version = name.version if name.version != wheel.name.version else ""
    text = edit_metadata(wheel.read(metadata), version=version, note=removal_note(files))
    return {
        metadata: pack(text),
        info: pack(edit_wheel_info(wheel.read(info), tags=name.tags, build=name.build)),
    }


def prepare_trial(request: SlimRequest, effects: Effects, folder: Path) -> Trial:
    """Return the setting for trials of the new files."""
    return Trial(
        runner=effects.runner,
        folder=folder,
        environment=dict(effects.environment),
        places=request.needed_folders,
    )


def check_slimmed_wheel(
    libraries: tuple[SlimmedLibrary, ...], name: WheelName, new: Path, trial: Trial
) -> tuple[str, ...]:
    """Read the new wheel, install it with pip, and load some libraries."""
    site = new.parent / "site"
    with ThreadPool(1) as worker, open_wheel(new) as reread:
        # pip runs in a process of its own, so the other core reads the wheel meanwhile.
        installing = worker.submit(trial.install, new, name, site)
        reread.check_contents()
        obstacle = installing.result()
    # For this machine's Python or platform pip may refuse a sound wheel; that isn't an error.
    if obstacle is not None:
        return ("RECORD and all contents agree", f"install: {obstacle}")
    results = {
        # A member of `.data/platlib` lies elsewhere in the archive than in site-packages.
        one.name: _load_library(trial, one, site / (reread.installed_path(one.name) or ""))
        for one in libraries
        if one.plan.is_changed and not one.plan.is_emptied
    }
    return ("RECORD and all contents agree", "pip installs it", *trial_results(results))


def _load_library(trial: Trial, library: SlimmedLibrary, installed: Path) -> str:
    if library.plan.form is not Form.ELF or not installed.is_file():
        return "not tried: it is not installed as a library"
    # The trial compares with the old library, if at all, in the same folder.
    old = installed.with_name(f"{installed.name}.old")
    old.symlink_to(library.path)
    try:
        return trial.load(installed, old)
    finally:
        old.unlink()


def _notes(
    wheel: Wheel, request: SlimRequest, libraries: tuple[SlimmedLibrary, ...], folder: Path
) -> tuple[str, ...]:
    if any(library.plan.is_changed for library in libraries):
        return wheel.info.notes
    return (*wheel.info.notes, *wheel_kept_code_reasons(wheel, request.choice, folder))


def _plans(libraries: tuple[SlimmedLibrary, ...]) -> dict[str, FilePlan]:
    return {library.name: library.plan for library in libraries}


def _report(
    request: SlimRequest,
    libraries: tuple[SlimmedLibrary, ...],
    notes: tuple[str, ...],
    *,
    output: Path | None = None,
    checks: tuple[str, ...] = (),
) -> SlimReport:
    return replace(
        plan_report(request, _plans(libraries), notes, output=output, checks=checks),
        # Of the download, not of the files: that is what the limits of an index are about.
        size_before=request.source.stat().st_size,
        size_after=None if output is None else output.stat().st_size,
    )


def slim_file(request: SlimRequest, effects: Effects) -> SlimReport:
    """Write a copy of a file without the images outside of the choice.

    Raises:
        InputError: the file can't be read.
        UsageError: a file of that form has no separate images.
        BinaryFormatError: the file is damaged, or has no section headers.
        TargetError: a GPU of the choice would be left without code.
        VerifyError: the new file fails its checks, and was removed.
        OutputError: the output can't be written, or would be the input.
    """
    source = request.source
    plan = plan_rewrite(open_file(source), request.file_edit)
    _check_form(source, plan)
    check_code_stays(request.selection, plan.containers, subject=str(source))
    check_coverage_stays(request.selection, plan.containers, subject=str(source))
    if request.dry_run or not plan.is_changed:
        return _file_report(request, plan)
    with output_dir(request.out) as out, temporary_dir(out) as folder:
        target = out / f"{source.stem}.slim.{request.name_label}{source.suffix}"
        _refuse_input(target, source)
        new = folder / source.name
        write_plan(source, plan, new)
        check_plan(plan, open_file(new))
        checks = (
            _load_both(source, new, plan, prepare_trial(request, effects, folder))
            if request.tries_loading
            else ()
        )
        with output_errors(target):
            new.chmod(source.stat().st_mode & 0o777)
            put_file(new, target)
    return _file_report(request, plan, output=target, checks=checks)


def _refuse_input(target: Path, source: Path) -> None:
    # The path may differ and lead to the input through a link.
    if target.exists() and target.samefile(source):
        raise OutputError(f"{target} is the input", hint="choose another folder with --out")


def _check_form(source: Path, plan: FilePlan) -> None:
    if plan.form is Form.CUBIN:
        raise UsageError(
            f"{source} is a cubin, a single image: nothing can be removed",
            hint="`archsplit inspect` shows the GPUs that run it",
        )
    if plan.form is Form.DEVICE_PACK:
        raise UsageError(
            f"{source} is a device pack: its core would refuse it with less code",
            hint="split the fat wheel with --targets, or slim the fat wheel",
        )
    if is_linker_input(plan.window):
        raise UsageError(
            f"{source} is linker input, which no driver loads",
            hint="nvprune removes targets from objects and static libraries",
        )
    if plan.form is None:
        raise BinaryFormatError(
            f"{source} is not a library for Linux or Windows, a fatbin or a wheel",
            hint="slim takes .so, .dll, .pyd, .fatbin and .whl files",
        )


def _load_both(source: Path, new: Path, plan: FilePlan, trial: Trial) -> tuple[str, ...]:
    if plan.form is not Form.ELF:
        return ()
    # Both are loaded from folders of the same depth without other files: a library may load
    # its neighbors.
    old_folder = new.parent / "old"
    old_folder.mkdir()
    old = old_folder / source.name
    old.symlink_to(source.resolve())
    folders = [str(source.resolve().parent), trial.environment.get("LD_LIBRARY_PATH", "")]
    environment = {**trial.environment, "LD_LIBRARY_PATH": ":".join(filter(None, folders))}
    return trial_results({source.name: replace(trial, environment=environment).load(new, old)})


def _file_report(
    request: SlimRequest,
    plan: FilePlan,
    *,
    output: Path | None = None,
    checks: tuple[str, ...] = (),
) -> SlimReport:
    name = request.source.name
    notes: tuple[str, ...] = ()
    if not plan.is_changed:
        notes = tuple(kept_code_reasons(name, request.source, request.choice)) or (NO_CODE,)
    return plan_report(request, {name: plan}, notes, output=output, checks=checks)
