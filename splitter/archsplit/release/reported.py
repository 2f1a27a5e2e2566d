"""The wheels that a folder's report names, whoever wrote it: a build, or a split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pydantic import TypeAdapter, ValidationError

from archsplit.errors import InputError
from archsplit.release.findings import ReleaseKind, finding
from archsplit.release.report import REPORT_FILE, read_report
from archsplit.release.split_report import SPLIT_REPORT_FILE as SPLIT_REPORT
from archsplit.system.decoding import schema_faults
from archsplit.system.fs import read_file, sha256

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from archsplit.errors import Finding

_ROLES = {"core": "core", "pack": "plugin", "meta": "meta"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedFile:
    """What a report says of one file.

    Attributes:
        role: ``core``, ``plugin`` or ``meta``; nobody has checked it.
        serves: the targets of a plugin, or the capabilities that need no other pack.
    """

    file: str
    size: int
    sha256: str
    role: str
    serves: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedWheels:
    """What a report says.

    Attributes:
        build: what its wheels have in common, and no other build's.
    """

    build: str
    rows: tuple[ReportedFile, ...]


def read_reported(folder: Path) -> ReportedWheels | None:
    """Read the report in a folder; None where there is none.

    Raises:
        InputError: it can't be read, or there are two.
    """
    built, split = folder / REPORT_FILE, folder / SPLIT_REPORT
    if built.exists() and split.exists():
        raise InputError(
            f"{folder} has a build's report and a split's", hint="one release a folder"
        )
    if split.exists():
        return _of_split(split)
    return _of_build(built) if built.exists() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _SplitRow:
    """A row of a split's report, where a plugin is called a pack."""

    file: str
    size: int
    sha256: str
    role: Literal["core", "pack", "meta"]
    serves: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _SplitReport:
    """What of a split's report matters here."""

    build_id: str
    wheels: tuple[_SplitRow, ...]


_SPLIT = TypeAdapter(_SplitReport)
_ANY_OBJECT = TypeAdapter(dict[str, Any])


def _of_build(path: Path) -> ReportedWheels:
    report = read_report(path)
    rows = (
        ReportedFile(
            file=one.file,
            size=one.size,
            sha256=one.sha256,
            role=one.role,
            serves=one.targets,
        )
        for one in report.wheels
    )
    return ReportedWheels(build=report.build_id, rows=tuple(rows))


def _of_split(path: Path) -> ReportedWheels:
    try:
        content = _ANY_OBJECT.validate_json(read_file(path))
        if content.get("schema") != 1:
            raise InputError(f"{path} has schema {content.get('schema')}, not 1")
        report = _SPLIT.validate_python(content)
    except ValidationError as error:
        raise InputError(f"{path} is not a split's report: {schema_faults(error)}") from None
    rows = (
        ReportedFile(
            file=row.file,
            size=row.size,
            sha256=row.sha256,
            role=_ROLES[row.role],
            serves=row.serves,
        )
        for row in report.wheels
    )
    return ReportedWheels(build=report.build_id, rows=tuple(rows))


def report_faults(folder: Path, kind: ReleaseKind, wanted: Collection[str] | None) -> list[Finding]:
    """Compare the wheels of a folder with the report beside them, where there is one.

    Args:
        wanted: the targets or capabilities whose wheels have to be there; None for all.
    """
    try:
        reported = read_reported(folder)
    except InputError as error:
        return [finding(kind, "unreadable-report", "", error.message)]
    name = REPORT_FILE if kind is ReleaseKind.BUILT else SPLIT_REPORT
    faults = []
    for row in () if reported is None else reported.rows:
        if not (folder / row.file).exists():
            if wanted is None or set(row.serves) <= set(wanted):
                found = f"{name} names it, but it is not here"
                faults.append(finding(kind, "missing-file", row.file, found))
        elif sha256(folder / row.file) != row.sha256:
            found = f"is not the file that {name} names"
            faults.append(finding(kind, "changed-file", row.file, found))
    return faults
