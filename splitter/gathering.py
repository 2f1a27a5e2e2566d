"""The wheels of one release, built in several places, in one folder with one report."""

from __future__ import annotations

import shutil
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from splitter.errors import VerifyError
from splitter.provenance.manifest import FILE_NAME as MANIFEST
from splitter.provenance.manifest import Manifest, read_manifest
from splitter.report import FILE_NAME as REPORT
from splitter.report import Report, read_report
from splitter.system.files import (
    output_folder,
    private_folder,
    reading,
    sha256,
    write_file,
    writing,
)
from splitter.system.moving import check_free, move_all

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from splitter.report import WheelEntry

_Record = TypeVar("_Record", Report, Manifest)


def gather(folders: Sequence[Path], *, out: Path) -> Report:
    """Copy the wheels that the folders' reports name to ``out``, with one report and manifest.

    Raises:
        InputError: a report, a manifest or a wheel can't be read.
        VerifyError: they are of different builds, or a wheel isn't what its report says.
        OutputError: ``out`` can't be written; it is as it was.
    """
    reports = {folder: read_report(folder / REPORT) for folder in folders}
    manifests = {folder: read_manifest(folder / MANIFEST) for folder in folders}
    report, manifest = _merged(reports), _merged(manifests)
    with output_folder(out) as target, private_folder(target) as staging:
        check_free(target, [MANIFEST, REPORT])
        for folder, part in reports.items():
            for wheel in part.wheels:
                _copy(folder / wheel.file, staging / wheel.file, wheel)
        whole = report.together_with(target / REPORT)
        write_file(staging / MANIFEST, manifest.together_with(target / MANIFEST).as_json())
        write_file(staging / REPORT, whole.as_json())
        names = [wheel.file for wheel in report.wheels]
        move_all([*names, MANIFEST, REPORT], source=staging, target=target)
    return whole


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
                hint="build all parts from the same files, with the same tools and at the same"
                " SOURCE_DATE_EPOCH",
            )
        for wheel in other.wheels:
            if wheels.setdefault(wheel.file, wheel) != wheel:
                raise VerifyError(f"{wheel.file} is in {folder} and before, and not the same")
    return replace(first, wheels=tuple(wheels[name] for name in sorted(wheels)))


def _copy(source: Path, target: Path, wheel: WheelEntry) -> None:
    with reading(source):
        source.open("rb").close()
    with writing(target):
        shutil.copyfile(source, target)
    if sha256(target) != wheel.sha256:
        raise VerifyError(f"{source} is not the file that the report beside it names")
