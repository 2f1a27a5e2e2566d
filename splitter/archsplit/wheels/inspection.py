"""What makes an archive a wheel: its own folder, with RECORD, WHEEL and METADATA that agree."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, TypeVar

from archsplit.errors import WheelError
from archsplit.wheels import metadata, record
from archsplit.wheels.info import WheelInfo
from archsplit.wheels.record import RecordRow
from archsplit.wheels.zip_checks import refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from archsplit.wheels.filename import WheelName
    from archsplit.wheels.zip_checks import Archive

__pure__ = True

MAX_TEXT = 64 << 20
"""Bytes of METADATA, WHEEL or RECORD that are read into memory; half a million rows fit."""

_SUFFIX = ".dist-info"
_SIGNATURES = ("RECORD.jws", "RECORD.p7s")

_T = TypeVar("_T")


def inspected(
    archive: Archive, name: WheelName, *, same_tags: bool, full_record: bool
) -> tuple[str, WheelInfo, tuple[RecordRow, ...]]:
    """Find a wheel's own folder, and read WHEEL and RECORD; contents are not read otherwise.

    Args:
        archive: the wheel.
        name: of its file.
        same_tags: refuse a wheel that was given another file name after it was made.
        full_record: refuse one whose RECORD has not all members, with their sizes and hashes.

    Raises:
        WheelError: they are missing, wrong, or don't fit each other, the archive's members or the
            file name; the message lists every finding.
    """
    folder = _own_folder(archive)
    findings: list[str] = []
    rows = _tried(findings, lambda: record.decode_record(_text(archive, f"{folder}/RECORD")))
    info = _tried(findings, lambda: WheelInfo.decode(_text(archive, f"{folder}/WHEEL")))
    release = _tried(findings, lambda: metadata.identity(_text(archive, f"{folder}/METADATA")))
    if rows is not None and full_record:
        findings += _record_findings(archive, rows, folder)
    if info is not None and same_tags:
        findings += _tag_findings(name, info)
    if not name.is_of(*folder.removesuffix(_SUFFIX).rpartition("-")[::2]):
        findings.append(f"{folder} is of another release than the file name")
    if release and not name.is_of(*release):
        findings.append(f"METADATA is of {' '.join(release)}, another release than the file name")
    if findings or rows is None or info is None:
        raise refusal(archive.path, findings)
    return folder, info, rows


def _own_folder(archive: Archive) -> str:
    folders = {name.partition("/")[0] for name in archive.members if "/" in name}
    own = sorted(folder for folder in folders if folder.endswith(_SUFFIX))
    if len(own) != 1:
        found = ", ".join(own) or "none"
        raise refusal(archive.path, [f"it needs one folder *{_SUFFIX}, and has {found}"])
    return own[0]


def _text(archive: Archive, name: str) -> bytes:
    with archive.open(RecordRow(path=name)) as stream:
        content = stream.read(MAX_TEXT + 1)
    if len(content) > MAX_TEXT:
        raise WheelError(f"{name} has more than {MAX_TEXT} bytes")
    return content


def _tried(findings: list[str], read: Callable[[], _T]) -> _T | None:
    try:
        return read()
    except WheelError as error:
        findings += str(error).splitlines()
        return None


def _record_findings(archive: Archive, rows: tuple[RecordRow, ...], folder: str) -> Iterator[str]:
    times = Counter(row.path for row in rows)
    yield from (f"{path}: RECORD has {n} rows of it" for path, n in times.items() if n > 1)
    signatures = {f"{folder}/{file}" for file in _SIGNATURES}
    unlisted = archive.members.keys() - times.keys() - signatures
    yield from (f"{path}: not in RECORD" for path in unlisted)
    for row in rows:
        if row.path not in archive.members:
            yield f"{row.path}: in RECORD, but not in the archive"
        elif row.path in signatures:
            yield f"{row.path}: in RECORD, which it signs"
        elif row.path == f"{folder}/RECORD":
            yield from _own_row_findings(row)
        else:
            yield from _row_findings(row, archive.members[row.path].file_size)


def _own_row_findings(row: RecordRow) -> Iterator[str]:
    if row.digest is not None or row.size is not None:
        yield f"{row.path}: it can't have its own hash and size"


def _row_findings(row: RecordRow, size: int) -> Iterator[str]:
    if row.digest is None:
        yield f"{row.path}: RECORD has no hash of it"
    if row.size != size:
        found = "no size" if row.size is None else f"{row.size} bytes"
        yield f"{row.path}: {size} bytes, and {found} in RECORD"


def _tag_findings(name: WheelName, info: WheelInfo) -> Iterator[str]:
    if info.tags != name.tags:
        found, expected = ", ".join(info.tags), ", ".join(name.tags)
        yield f"WHEEL has the tags {found}, the file name {expected}"
    if info.build != name.build:
        yield f"WHEEL has the build tag {info.build!r}, the file name {name.build!r}"
