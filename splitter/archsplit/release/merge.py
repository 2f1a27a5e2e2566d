"""The wheels of one release, built in several places, in one folder with one report."""

from __future__ import annotations

import shutil
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from archsplit.errors import OutputError, VerifyError
from archsplit.release.manifest import MANIFEST_FILE as MANIFEST
from archsplit.release.manifest import Manifest, read_manifest
from archsplit.release.report import REPORT_FILE as REPORT
from archsplit.release.report import Report, read_report
from archsplit.release.split_report import SPLIT_REPORT_FILE as SPLIT_REPORT
from archsplit.release.split_report import SplitReport, read_split_report
from archsplit.system.fs import (
    check_targets,
    input_errors,
    output_dir,
    output_errors,
    replace_all,
    sha256,
    temporary_dir,
    write_file,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from archsplit.release.report import WheelEntry
    from archsplit.release.split_report import SplitWheel

_Record = TypeVar("_Record", Report, SplitReport, Manifest)
_AnyReport = TypeVar("_AnyReport", Report, SplitReport)

_SAME_BUILD = (
    "build all parts from the same files, with the same tools and at the same SOURCE_DATE_EPOCH"
)
_HINTS = {
    Report: _SAME_BUILD,
    Manifest: _SAME_BUILD,
    SplitReport: "take all parts from one split: of the same wheel, with the same options",
}


def gather(folders: Sequence[Path], *, out: Path) -> Report | SplitReport:
    """Copy the wheels that the folders' reports name to ``out``, with one report and manifest.

    All parts are of one build, or all of one split.

    Raises:
        InputError: a report, a manifest or a wheel can't be read.
        VerifyError: they are of different builds, or a wheel isn't what its report says.
        OutputError: ``out`` can't be written, or has another release; it is as it was.
    """
    splits = [(folder / SPLIT_REPORT).exists() for folder in folders]
    if any(splits):
        if not all(splits) or any((folder / REPORT).exists() for folder in folders):
            raise VerifyError(
                "some of the folders have a split's wheels and some a build's",
                hint="gather the parts of one split, or those of one build",
            )
        parts = {folder: read_split_report(folder / SPLIT_REPORT) for folder in folders}
        return _gathered(parts, _merged(parts), out=out, name=SPLIT_REPORT)
    built = {folder: read_report(folder / REPORT) for folder in folders}
    return _gathered(built, _merged(built), out=out, name=REPORT)


def _gathered(
    parts: Mapping[Path, _AnyReport], report: _AnyReport, *, out: Path, name: str
) -> _AnyReport:
    manifests = {folder: read_manifest(folder / MANIFEST) for folder in parts}
    manifest = _merged(manifests)
    for folder, part in parts.items():
        _check_lists(folder, part, manifests[folder])
    with output_dir(out) as target, temporary_dir(target) as staging:
        check_targets(target, [MANIFEST, name])
        _refuse_another(target, name, manifest)
        for folder, part in parts.items():
            for wheel in part.wheels:
                _copy(folder / wheel.file, staging / wheel.file, wheel)
        whole: _AnyReport = report.together_with(target / name)
        write_file(staging / MANIFEST, manifest.together_with(target / MANIFEST).as_json())
        write_file(staging / name, whole.as_json())
        names: list[str] = [wheel.file for wheel in report.wheels]
        replace_all([*names, MANIFEST, name], source=staging, target=target)
    return whole


def _check_lists(folder: Path, report: Report | SplitReport, manifest: Manifest) -> None:
    """Compare the two lists of one folder, which were written together."""
    reported = {wheel.file: wheel.sha256 for wheel in report.wheels}
    listed = {wheel.file: wheel.sha256 for wheel in manifest.wheels}
    differing = sorted(
        file for file in reported.keys() | listed if reported.get(file) != listed.get(file)
    )
    if differing or report.build_id != manifest.build_id:
        what = ", ".join(differing) or "the build id"
        raise VerifyError(
            f"{folder}: {MANIFEST} and the report beside it differ about {what}",
            hint="copy the folder again from where it was written",
        )


def _refuse_another(target: Path, name: str, manifest: Manifest) -> None:
    other = REPORT if name == SPLIT_REPORT else SPLIT_REPORT
    path = target / MANIFEST
    if (target / other).exists() or (
        path.exists() and read_manifest(path).build_id != manifest.build_id
    ):
        raise OutputError(
            f"{target} has another release", hint="remove it, or choose another folder with --out"
        )


def _merged(parts: Mapping[Path, _Record]) -> _Record:
    """All wheels of records that say the same of everything else."""
    (first_folder, first), *others = parts.items()
    # A report's rows or a manifest's: both have a file and can be compared.
    wheels: dict[str, Any] = {wheel.file: wheel for wheel in first.wheels}
    for folder, other in others:
        differing = [
            field.name
            for field in fields(first)
            if field.name != "wheels" and getattr(first, field.name) != getattr(other, field.name)
        ]
        if differing:
            raise VerifyError(
                f"{first_folder} and {folder} are of different builds:"
                f" {', '.join(differing)} differ",
                hint=_HINTS[type(first)],
            )
        for wheel in other.wheels:
            if wheels.setdefault(wheel.file, wheel) != wheel:
                raise VerifyError(f"{wheel.file} is in {folder} and before, and not the same")
    return replace(first, wheels=tuple(wheels[name] for name in sorted(wheels)))


def _copy(source: Path, target: Path, wheel: WheelEntry | SplitWheel) -> None:
    with input_errors(source):
        source.open("rb").close()
    with output_errors(target):
        shutil.copyfile(source, target)
    if sha256(target) != wheel.sha256:
        raise VerifyError(f"{source} is not the file that the report beside it names")
