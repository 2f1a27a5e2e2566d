"""What a build made, as a file beside the wheels: the one list that later steps go by.

The wheels that a folder's report names, whoever wrote it: a build, or a split.

Options of a split.

What an earlier split left in the output folder: the same wheels may be replaced, no others.

Packs of two builds in one folder look like one release, and each core refuses the other's.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from pydantic import TypeAdapter, ValidationError

from archsplit.errors import InputError, OutputError
from archsplit.release.findings import ReleaseKind, finding
from archsplit.release.listing import read_listing, with_earlier
from archsplit.release.split_report import SPLIT_REPORT_FILE, SPLIT_SCHEMA
from archsplit.release.split_report import SPLIT_REPORT_FILE as SPLIT_REPORT
from archsplit.system.fs import read_file, sha256
from archsplit.system.schema import schema_faults

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from archsplit.system.finding import Finding

__pure__ = True


REPORT_SCHEMA = 1
REPORT_FILE = "archsplit-report.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelEntry:
    """One wheel of a build.

    Attributes:
        file: its name in the output folder.
        role: ``core``, ``plugin`` or ``meta``.
        distribution: the name that pip knows it by.
        targets: whose device code is inside.
        size: bytes.
        sha256: of the file, 64 hexadecimal digits.
    """

    file: str
    role: str
    distribution: str
    targets: tuple[str, ...]
    size: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A build, as far as it is the same on every machine: no path, no time, no user.

    Attributes:
        build_id: 64 hexadecimal digits, also in the core and in every plugin.
        interface_hash: the same.
        toolkit: CUDA's version.
        host: what the host's tools say of themselves.
        deflate: the version of what packs, on which the bytes of every wheel depend.
        epoch: the time that all files carry, in seconds since 1970.
        targets: all of the recipe's, built now or not.
        wheels: sorted by file name.
    """

    project: str
    version: str
    build_id: str
    interface_hash: str
    toolkit: str
    host: tuple[str, ...]
    deflate: str
    epoch: int
    targets: tuple[str, ...]
    wheels: tuple[WheelEntry, ...]

    def together_with(self, path: Path) -> Report:
        """This report, and the wheels of an earlier one of the same build that are still there.

        So the plugins of one release may be built one after the other, each by itself.

        Raises:
            InputError: there is a report, and it can't be read.
        """
        earlier = read_report(path) if path.exists() else self
        if (earlier.build_id, earlier.version) != (self.build_id, self.version):
            return self
        return replace(self, wheels=with_earlier(self.wheels, earlier.wheels, path.parent))

    def as_json(self) -> str:
        """The file's text: sorted keys, one final newline."""
        content: Mapping[str, object] = {"schema": REPORT_SCHEMA, **asdict(self)}
        return json.dumps(content, indent=2, sort_keys=True) + "\n"


def read_report(path: Path) -> Report:
    """Read a report's file.

    Raises:
        InputError: it can't be read, or is not a report of this schema.
    """
    return read_listing(path, _REPORT, schema=REPORT_SCHEMA, what="a build's report")


_REPORT = TypeAdapter(Report)

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Earlier:
    """What of an earlier split's report matters here."""

    source: str
    build_id: str


_EARLIER_REPORT = TypeAdapter(_Earlier)


def refuse_another(folder: Path, build_id: str) -> None:
    """Refuse a folder that has the wheels of another split than this one.

    Raises:
        OutputError: it has.
        InputError: its report can't be read.
    """
    path = folder / SPLIT_REPORT_FILE
    if not path.exists():
        return
    earlier = read_listing(path, _EARLIER_REPORT, schema=SPLIT_SCHEMA, what="a split's report")
    if earlier.build_id != build_id:
        raise OutputError(
            f"{folder} has another split of {earlier.source}: of other bytes, with other options or"
            " by another version of archsplit",
            hint="remove it, or choose another folder with --out",
        )
