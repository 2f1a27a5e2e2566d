"""Slim one library, object, static library or fatbin."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from archsplit.devicecode.apply import check_plan, plan_file, write_plan
from archsplit.devicecode.effects import check_code_stays, check_coverage_stays, coverage_changes
from archsplit.devicecode.scan import Form
from archsplit.errors import OutputError, UsageError
from archsplit.release.trial import counted
from archsplit.slim.idle import NO_CODE, kept_code_reasons
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


def slim_file(request: SlimRequest, workshop: Effects) -> SlimReport:
    """Write a file without some of its images, under a name that says so, or nothing.

    Raises:
        InputError: the file can't be read.
        UsageError: it is of no form that has several images.
        BinaryFormatError: it is damaged, or was stripped of its section headers.
        TargetError: the choice leaves a GPU without code that it is meant for.
        VerifyError: what was written fails its checks; it was removed.
        OutputError: the output can't be written, or would be the input.
    """
    source = request.source
    plan = plan_file(source, request.order)
    _check_form(source, plan)
    check_code_stays(request.selection, plan.containers, of=str(source))
    check_coverage_stays(request.selection, plan.containers, of=str(source))
    if request.dry_run or not plan.is_changed:
        return _report(request, plan)
    with output_dir(request.out) as out, temporary_dir(out) as folder:
        target = out / f"{source.stem}.slim.{request.selection.label}{source.suffix}"
        if target.exists() and target.samefile(source):
            raise OutputError(f"{target} is the input", hint="choose another folder with --out")
        new = folder / source.name
        write_plan(source, plan, new)
        kept = check_plan(plan, new)
        checks = _loaded(source, new, plan, prepare_trial(request, workshop, folder))
        with output_errors(target):
            new.chmod(source.stat().st_mode & _PERMISSIONS)
            put_file(new, target)
    return _report(request, plan, output=target, kept=kept, checks=checks)


def _check_form(source: Path, plan: FilePlan) -> None:
    if plan.form is Form.CUBIN:
        raise UsageError(
            f"{source} is one image, and not several: nothing can be taken out of it",
            hint="nothing was written; `archsplit inspect` says which GPUs take it",
        )
    if plan.form is Form.DEVICE_PACK:
        raise UsageError(
            f"{source} is a device pack: its core would refuse it with less code",
            hint="split the fat wheel with --targets, or slim the fat wheel",
        )
    if plan.form is None:
        raise UsageError(
            f"{source} is no ELF file, static library or fatbin, and no wheel",
            hint="slim takes .so, .o, .a, .fatbin and .whl files",
        )


def _loaded(source: Path, new: Path, plan: FilePlan, trial: Trial) -> tuple[str, ...]:
    if plan.form is not Form.ELF:
        return ()
    # Both are loaded from folders of the same depth without neighbours, so that what a library
    # finds beside itself makes no difference.
    old_folder = new.parent / "old"
    old_folder.mkdir()
    old = old_folder / source.name
    old.symlink_to(source.resolve())
    places = [str(source.resolve().parent), trial.environment.get("LD_LIBRARY_PATH", "")]
    environment = {**trial.environment, "LD_LIBRARY_PATH": ":".join(filter(None, places))}
    return counted({source.name: replace(trial, environment=environment).load(new, old)})


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
