"""Comparison of a folder with the lists beside its wheels: the report and the manifest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from archsplit.errors import InputError
from archsplit.release.findings import ReleaseKind, finding
from archsplit.release.manifest import MANIFEST_FILE, read_manifest
from archsplit.release.report import OLD_SPLIT_REPORT_FILE, REPORT_FILE, find_report
from archsplit.release.wheel_set import wheels_in
from archsplit.system.fs import sha256

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from archsplit.release.report import ReleaseWheel
    from archsplit.system.finding import Finding


def report_faults(
    folder: Path, kind: ReleaseKind, wanted: Collection[str] | None, damaged: Collection[str] = ()
) -> Iterator[Finding]:
    """Compare a folder with its report; a folder without one has no fault by that.

    Args:
        wanted: the targets or capabilities whose wheels must be there; None for all.
        damaged: files that have a finding already, which are not compared.
    """
    try:
        release = find_report(folder)
    except InputError as error:
        yield finding(kind, "unreadable-report", "", error.message)
        return
    name = REPORT_FILE if (folder / REPORT_FILE).exists() else OLD_SPLIT_REPORT_FILE
    for wheel in () if release is None else release.wheels:
        is_here = (folder / wheel.file).exists()
        # Who wants one target has not copied the wheels of the others.
        is_wanted = is_here or wanted is None or set(wheel.gpus) <= set(wanted)
        if is_wanted and wheel.file not in damaged:
            yield from file_faults(folder / wheel.file, wheel, kind, report=name)


def file_faults(
    path: Path, wheel: ReleaseWheel, kind: ReleaseKind, *, report: str = REPORT_FILE
) -> Iterator[Finding]:
    """Compare a file with the row of a report, by its SHA-256.

    Raises:
        InputError: the file can't be read.
    """
    if not path.exists():
        found = f"{report} names it, but it is not here"
        yield finding(kind, "missing-file", wheel.file, found)
    elif sha256(path) != wheel.sha256:
        found = f"is not the file that {report} names"
        yield finding(kind, "changed-file", wheel.file, found)


def manifest_faults(folder: Path, kind: ReleaseKind) -> Iterator[Finding]:
    """Compare a folder with its manifest; a folder without one has no fault by that."""
    if not (folder / MANIFEST_FILE).exists():
        return
    try:
        manifest = read_manifest(folder / MANIFEST_FILE)
    except InputError as error:
        yield finding(kind, "unreadable-report", "", error.message)
        return
    listed = {wheel.file: wheel for wheel in manifest.wheels}
    here = {path.name: path for path in wheels_in(folder)}
    for name in sorted(set(listed) - set(here)):
        yield finding(kind, "missing-file", name, f"{MANIFEST_FILE} lists it, but it is not here")
    for name in sorted(set(here) - set(listed)):
        yield finding(kind, "not-in-report", name, f"{MANIFEST_FILE} doesn't list it")
    for name in sorted(set(here) & set(listed)):
        if (found := sha256(here[name])) != listed[name].sha256:
            expected = listed[name].sha256
            text = f"has SHA-256 {found[:16]}…, but {MANIFEST_FILE} says {expected[:16]}…"
            yield finding(kind, "changed-file", name, text)
