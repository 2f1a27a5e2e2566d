"""Installed distributions: which files are whose, by the RECORDs in a site-packages folder.

An installed RECORD is looser than a wheel's: it has paths that lead out of the folder (scripts), or
absolute ones, and rows without hashes (bytecode). Rows that nobody changes stay what they were.
Source: https://packaging.python.org/en/latest/specifications/recording-installed-packages/

Moved from archsplit.split.find.
"""

from __future__ import annotations

import csv
import io
import posixpath
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from archsplit.errors import WheelError
from archsplit.system.fs import input_errors, read_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from archsplit.wheels.reader import Wheel
    from archsplit.wheels.record import RecordRow

__pure__ = True

_COLUMNS = 3
_SUFFIX = ".dist-info"


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledFile:
    """One row of an installed RECORD, as it stands there.

    Attributes:
        path: relative to site-packages, or absolute.
        hash_text: ``sha256=…``, or nothing.
        size: in decimal digits, or nothing.
    """

    path: str
    hash_text: str
    size: str

    @property
    def place(self) -> str | None:
        """The path in its shortest form; None where it leads out of site-packages."""
        path = posixpath.normpath(self.path)
        return None if path.startswith(("/", "../")) else path


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledDistribution:
    """A distribution in a site-packages folder.

    Attributes:
        folder: the name of its own folder, ``torch-2.9.1.dist-info``.
        rows: of its RECORD.
        line_end: how the lines of RECORD end, which differs between installers.
    """

    folder: str
    rows: tuple[InstalledFile, ...] = field(repr=False)
    line_end: str = "\n"

    @property
    def name(self) -> str:
        """What people call it: ``torch-2.9.1``."""
        return self.folder.removesuffix(_SUFFIX)

    @property
    def record(self) -> str:
        """Where its RECORD is."""
        return f"{self.folder}/RECORD"

    def revised(self, entries: Mapping[str, RecordRow]) -> bytes:
        """Its RECORD with other hashes and sizes for some files; those that are new come last."""
        known = {row.place for row in self.rows}
        rows = [_revised(row, entries) for row in self.rows]
        rows += [_row(entry) for path, entry in entries.items() if path not in known]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator=self.line_end)
        writer.writerows((row.path, row.hash_text, row.size) for row in rows)
        return text.getvalue().encode()


def read_distributions(site: Path) -> Iterator[InstalledDistribution]:
    """All distributions that have a RECORD, by name.

    Raises:
        InputError: the folder or a RECORD can't be read.
        WheelError: a RECORD is no CSV of three columns in UTF-8.
    """
    with input_errors(site):
        folders = sorted(path for path in site.iterdir() if path.name.endswith(_SUFFIX))
    for folder in folders:
        if (folder / "RECORD").is_file():
            yield read_distribution(site, folder.name)


def read_distribution(site: Path, folder: str) -> InstalledDistribution:
    """The distribution whose own folder has that name; raises as `read_distributions` does."""
    path = site / folder / "RECORD"
    content = read_file(path)
    try:
        text = content.decode()
        rows = [row for row in csv.reader(io.StringIO(text, newline=""), strict=True) if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise WheelError(f"{path} is not CSV in UTF-8: {error}") from None
    wrong = [number for number, row in enumerate(rows, start=1) if len(row) != _COLUMNS]
    if wrong:
        raise WheelError(f"{path}: row {wrong[0]} has not {_COLUMNS} columns")
    return InstalledDistribution(
        folder=folder,
        rows=tuple(InstalledFile(path=row[0], hash_text=row[1], size=row[2]) for row in rows),
        line_end="\r\n" if "\r\n" in text else "\n",
    )


def _revised(row: InstalledFile, entries: Mapping[str, RecordRow]) -> InstalledFile:
    entry = entries.get(row.place or "")
    if entry is None:
        return row
    return InstalledFile(path=row.path, hash_text=entry.hash_text, size=str(entry.size))


def _row(entry: RecordRow) -> InstalledFile:
    return InstalledFile(path=entry.path, hash_text=entry.hash_text, size=str(entry.size))


_SITE_PACKAGES = ("purelib", "platlib")


def installed_path(wheel: Wheel, member: str) -> str | None:
    """Where a member is once it is installed, in site-packages; None for what goes elsewhere."""
    data = f"{wheel.dist_info.removesuffix('.dist-info')}.data/"
    if not member.startswith(data):
        return member
    scheme, _, rest = member[len(data) :].partition("/")
    return rest if scheme in _SITE_PACKAGES else None
