"""Slim one library (of Linux or Windows), object, static library or fatbin."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from archsplit.devicecode.apply import check_plan, plan_file, write_plan
from archsplit.devicecode.effects import check_code_stays, check_coverage_stays, coverage_changes
from archsplit.devicecode.scan import Form
from archsplit.errors import OutputError, UsageError
from archsplit.release.trial import trial_results
from archsplit.slim.kept_code import NO_CODE, kept_code_reasons
from archsplit.slim.report import SlimReport, describe_file
from archsplit.slim.wheel import prepare_trial
from archsplit.system.fs import output_dir, output_errors, put_file, sha256, temporary_dir

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from archsplit.devicecode.file_plan import FilePlan
    from archsplit.devicecode.verify import KeptImage
    from archsplit.release.context import Effects
    from archsplit.release.trial import Trial
    from archsplit.slim.request import SlimRequest

_PERMISSIONS = 0o777


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
    plan = plan_file(source, request.file_edit)
    _check_form(source, plan)
    check_code_stays(request.selection, plan.containers, subject=str(source))
    check_coverage_stays(request.selection, plan.containers, subject=str(source))
    if request.dry_run or not plan.is_changed:
        return _report(request, plan)
    with output_dir(request.out) as out, temporary_dir(out) as folder:
        target = out / f"{source.stem}.slim.{request.name_label}{source.suffix}"
        if target.exists() and target.samefile(source):
            raise OutputError(f"{target} is the input", hint="choose another folder with --out")
        new = folder / source.name
        write_plan(source, plan, new)
        kept = check_plan(plan, new)
        checks = _load_both(source, new, plan, prepare_trial(request, effects, folder))
        with output_errors(target):
            new.chmod(source.stat().st_mode & _PERMISSIONS)
            put_file(new, target)
    return _report(request, plan, output=target, kept=kept, checks=checks)


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
    if plan.form is None:
        raise UsageError(
            f"{source} is not an ELF file, Windows library, static library, fatbin or wheel",
            hint="slim takes .so, .o, .a, .dll, .pyd, .fatbin and .whl files",
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


def _report(
    request: SlimRequest,
    plan: FilePlan,
    *,
    output: Path | None = None,
    kept: Iterable[KeptImage] = (),
    checks: tuple[str, ...] = (),
) -> SlimReport:
    name = request.source.name
    notes: tuple[str, ...] = ()
    if not plan.is_changed:
        notes = tuple(kept_code_reasons(name, request.source, request.choice)) or (NO_CODE,)
    return SlimReport(
        source=str(request.source),
        output=None if output is None else str(output),
        size_before=len(plan.window),
        size_after=plan.size,
        sha256=None if output is None else sha256(output),
        choice=request.choice,
        files=(describe_file(name, plan, request.mode.value, kept),),
        effects=coverage_changes(plan.containers),
        checks=checks,
        notes=notes,
    )
