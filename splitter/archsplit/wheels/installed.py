"""Installed distributions: the files of each, by the RECORDs in a site-packages folder.

An installed RECORD is looser than a wheel's: there are paths that lead out of the folder (scripts),
absolute paths, and rows without hashes (bytecode). An unchanged row keeps its bytes.
Source: https://packaging.python.org/en/latest/specifications/recording-installed-packages/
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

_SUFFIX = ".dist-info"

_SITE_PACKAGES = ("purelib", "platlib")
"""Folders of ``.data`` that installers merge into site-packages (PEP 427)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledFile:
    """A row of an installed RECORD, in the text of the file.

    Attributes:
        path: relative to site-packages, or absolute.
        hash_text: ``sha256=…``, or nothing.
        size: in decimal digits, or nothing.
    """

    path: str
    hash_text: str
    size: str

    @property
    def normalized_path(self) -> str | None:
        """The shortest form of the path; None if the path leads out of site-packages."""
        # As text: a link in the path may lead elsewhere, which the caller checks.
        path = posixpath.normpath(self.path)
        return None if path.startswith(("/", "../")) else path


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledDistribution:
    """A distribution in a site-packages folder.

    Attributes:
        folder: the name of the ``.dist-info`` folder, ``torch-2.9.1.dist-info``.
        rows: the rows of RECORD.
        line_end: the line ends of RECORD, which differ between installers.
    """

    folder: str
    rows: tuple[InstalledFile, ...] = field(repr=False)
    line_end: str = "\n"

    @property
    def name(self) -> str:
        """The name and version, ``torch-2.9.1``."""
        return self.folder.removesuffix(_SUFFIX)

    @property
    def record(self) -> str:
        """The path of RECORD, relative to site-packages."""
        return f"{self.folder}/RECORD"

    def updated_record(self, entries: Mapping[str, RecordRow]) -> bytes:
        """Return RECORD with other hashes and sizes for some files; new files come last."""
        old_paths = {row.normalized_path for row in self.rows}
        rows = [_update_row(row, entries) for row in self.rows]
        # RECORD has to list new files, or uninstalling would leave them.
        rows += [_to_row(entry) for path, entry in entries.items() if path not in old_paths]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator=self.line_end)
        writer.writerows((row.path, row.hash_text, row.size) for row in rows)
        return text.getvalue().encode()


def read_distributions(site: Path) -> Iterator[InstalledDistribution]:
    """Read the distributions that have a RECORD, sorted by name.

    Raises:
        InputError: the folder or a RECORD can't be read.
        WheelError: a RECORD is no CSV of three columns in UTF-8.
    """
    with input_errors(site):
        folders = sorted(path for path in site.iterdir() if path.name.endswith(_SUFFIX))
    for folder in folders:
        # Packages of Linux distributions may have none: their files can't be looked up.
        if (folder / "RECORD").is_file():
            yield read_distribution(site, folder.name)


def read_distribution(site: Path, folder: str) -> InstalledDistribution:
    """Read the distribution of one ``.dist-info`` folder; raises as `read_distributions` does."""
    path = site / folder / "RECORD"
    content = read_file(path)
    try:
        text = content.decode()
        rows = [row for row in csv.reader(io.StringIO(text, newline=""), strict=True) if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise WheelError(
            f"{path} is not CSV in UTF-8: {error}", hint="install the package again"
        ) from None
    wrong = [number for number, row in enumerate(rows, start=1) if len(row) != 3]
    if wrong:
        raise WheelError(
            f"{path}: row {wrong[0]} has {len(rows[wrong[0] - 1])} columns, not {3}",
            hint="install the package again",
        )
    return InstalledDistribution(
        folder=folder,
        rows=tuple(InstalledFile(path=row[0], hash_text=row[1], size=row[2]) for row in rows),
        # Installers on other systems write CRLF, and an unchanged row must keep its bytes.
        line_end="\r\n" if "\r\n" in text else "\n",
    )


def _update_row(row: InstalledFile, entries: Mapping[str, RecordRow]) -> InstalledFile:
    entry = entries.get(row.normalized_path or "")
    if entry is None:
        return row
    # The path stays as the installer wrote it, `./` and all.
    return InstalledFile(path=row.path, hash_text=entry.hash_text, size=str(entry.size))


def _to_row(entry: RecordRow) -> InstalledFile:
    return InstalledFile(path=entry.path, hash_text=entry.hash_text, size=str(entry.size))


def installed_path(wheel: Wheel, member: str) -> str | None:
    """Return the path of a member in site-packages, or None if it is installed elsewhere."""
    data = f"{wheel.dist_info.removesuffix('.dist-info')}.data/"
    if not member.startswith(data):
        return member
    scheme, _, rest = member[len(data) :].partition("/")
    # Scripts, headers and data go to folders that depend on the installer.
    return rest if scheme in _SITE_PACKAGES else None
