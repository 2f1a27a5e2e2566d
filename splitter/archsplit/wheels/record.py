"""RECORD: the hash and size of each member of a wheel or installed file.

An installed RECORD is looser than a wheel's: there are paths that lead out of the folder (scripts),
absolute paths, and rows without hashes (bytecode). An unchanged row keeps its bytes.

Source: https://packaging.python.org/en/latest/specifications/recording-installed-packages/
"""

from __future__ import annotations

import base64
import bisect
import csv
import io
import posixpath
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from archsplit.errors import WheelError
from archsplit.system.fs import input_errors, read_file
from archsplit.system.units import count_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path


__pure__ = True

FILE_MODE = 0o644
PROGRAM_MODE = 0o755

MAX_COMPONENT_BYTES = 255
"""NAME_MAX of every file system that Linux commonly mounts."""

MAX_NAME_BYTES = 4095 - 512
"""PATH_MAX without its NUL and the path of site-packages; a zip could hold 65535."""

MAX_FOLDERS = 256
"""Folders of a member. pip makes them by recursion, and fails with about 900 of them."""

_FORBIDDEN = (
    (re.compile(r"[\x00-\x1f\x7f]"), "it has control characters"),
    (re.compile(r"\\"), "it has a backslash, which some systems take for a separator"),
    (re.compile(r"^(/|[A-Za-z]:)"), "it is absolute"),
    (re.compile(r"(^|/)\.{0,2}(/|$)"), "it has an empty, '.' or '..' component"),
)


def member_fault(name: str) -> str | None:
    """Return the reason why no file of a wheel may have that name, or None.

    Some installer would write such a file outside of site-packages, or under another name than the
    one in RECORD.
    """
    for pattern, fault in _FORBIDDEN:
        if pattern.search(name):
            return fault
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    # In bytes, as file systems count: one character may be four.
    longest = max(map(len, encoded.split(b"/")))
    if longest > MAX_COMPONENT_BYTES or len(encoded) > MAX_NAME_BYTES:
        return "it is too long for a file system"
    if name.count("/") > MAX_FOLDERS:
        return f"it is in more than {MAX_FOLDERS} folders, so pip can't install it"
    return None


def duplicate_names(names: Iterable[str]) -> list[str]:
    """Return a finding for each name of two members, or a file and folder.

    The findings are sorted; there are none if all names can be files beside each other.
    """
    counts = Counter(names)
    ordered = sorted(counts)
    return [
        *(f"{name}: occurs {counts[name]} times" for name in ordered if counts[name] > 1),
        # Installers that make folders first would fail at the file, others at the folder.
        *(f"{name}: is a file, and a folder of others" for name in _files_with_members(ordered)),
    ]


def _files_with_members(ordered: Sequence[str]) -> Iterator[str]:
    """Yield the names that are a folder of another name, of sorted names."""
    # The first name from "a/" on is below "a", if one is. A set of all folders would grow with the
    # depth of the names.
    for name in ordered:
        at = bisect.bisect_left(ordered, f"{name}/")
        if at < len(ordered) and ordered[at].startswith(f"{name}/"):
            yield name


ALGORITHMS = {"sha256": 32, "sha384": 48, "sha512": 64}
"""Digest sizes in bytes: the specification forbids md5 and sha1."""

_COLUMNS = 3
_HASH = re.compile(r"(?P<algorithm>\w+)=(?P<digest>[A-Za-z0-9_-]*)", re.ASCII)
_SIZE = re.compile(r"[0-9]{1,19}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordRow:
    """A row of RECORD.

    Attributes:
        path: the member's name.
        digest: the hash of the content; None for RECORD itself and its signatures.
        size: bytes of content, or None where the row has no size.
        algorithm: the hash function.
    """

    path: str
    digest: bytes | None = None
    size: int | None = None
    algorithm: str = "sha256"

    def __post_init__(self) -> None:
        fault = member_fault(self.path)
        if fault is not None:
            raise WheelError(f"{self.path!r} can't be a member of a wheel: {fault}")
        if self.digest is not None and ALGORITHMS.get(self.algorithm) != len(self.digest):
            size = count_text(len(self.digest), "byte")
            raise WheelError(f"{self.path} has a hash of {size} of {self.algorithm}")

    @property
    def hash_text(self) -> str:
        """Second column: ``sha256=`` and the digest in URL-safe base64 without padding."""
        if self.digest is None:
            return ""
        return f"{self.algorithm}={base64.urlsafe_b64encode(self.digest).decode().rstrip('=')}"


def encode_record(entries: Iterable[RecordRow]) -> bytes:
    r"""Write RECORD: one row for each entry, in the given order, lines ending in ``\n``."""
    return _encode_rows(((one.path, one.hash_text, one.size) for one in entries), "\n")


def _encode_rows(rows: Iterable[tuple[object, ...]], line_end: str) -> bytes:
    text = io.StringIO()
    # CSV, because a name may have commas and quotes. None is an empty field.
    csv.writer(text, lineterminator=line_end).writerows(rows)
    return text.getvalue().encode()


def decode_record(content: bytes) -> tuple[RecordRow, ...]:
    """Read RECORD.

    Raises:
        WheelError: it is not CSV in UTF-8, or rows are wrong; the message lists all of those.
    """
    try:
        # No translation of line ends: a quoted name may contain one.
        rows = list(csv.reader(io.StringIO(content.decode(), newline=""), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise WheelError(f"RECORD is not CSV in UTF-8: {error}") from None
    parsed, faults = [], []
    for number, row in enumerate(rows, start=1):
        try:
            parsed.append(_parse_row(row))
        except WheelError as error:  # noqa: PERF203 - the error names all rows that are wrong
            faults.append(f"RECORD, row {number}: {error}")
    if faults:
        raise WheelError("\n".join(faults))
    return tuple(parsed)


def _parse_row(row: list[str]) -> RecordRow:
    if len(row) != _COLUMNS:
        raise WheelError(f"{count_text(len(row), 'column')}, expected {_COLUMNS}")
    path, hash_text, size = row
    if size and not _SIZE.fullmatch(size):
        raise WheelError(f"{path} can't have {size!r} bytes")
    algorithm, digest = _parse_hash(hash_text)
    entry = RecordRow(
        path=path, digest=digest, size=int(size) if size else None, algorithm=algorithm
    )
    # Encoding again finds padding, stray characters and unknown algorithms in one comparison.
    if entry.hash_text != hash_text:
        raise WheelError(
            f"{path} has the hash {hash_text!r}, which is not algorithm=digest "
            "in URL-safe base64 without padding"
        )
    return entry


def _parse_hash(text: str) -> tuple[str, bytes | None]:
    # An empty field: RECORD itself and signatures have none.
    match = _HASH.fullmatch(text)
    if match is None:
        return "sha256", None
    digest = match["digest"]
    try:
        # The padding that the specification leaves out, but Python wants.
        return match["algorithm"], base64.urlsafe_b64decode(digest + "=" * (-len(digest) % 4))
    except ValueError:
        return match["algorithm"], None


_SUFFIX = ".dist-info"


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
        """Shortest form of the path; None if the path leads out of site-packages."""
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
        """Name and version, ``torch-2.9.1``."""
        return self.folder.removesuffix(_SUFFIX)

    @property
    def record(self) -> str:
        """Path of RECORD, relative to site-packages."""
        return f"{self.folder}/RECORD"

    def updated_record(self, entries: Mapping[str, RecordRow]) -> bytes:
        """Return RECORD with other hashes and sizes for some files; new files come last."""
        old = [(row, row.normalized_path or "") for row in self.rows]
        rows = [
            # The path stays as the installer wrote it, `./` and all.
            _installed_row(row.path, entries[path]) if path in entries else row
            for row, path in old
        ]
        # RECORD has to list new files, or uninstalling would leave them.
        new = entries.keys() - {path for _, path in old}
        rows += [_installed_row(one.path, one) for path, one in entries.items() if path in new]
        return _encode_rows(((row.path, row.hash_text, row.size) for row in rows), self.line_end)


def read_distributions(site: Path) -> Iterator[InstalledDistribution]:
    """Read the distributions that have a RECORD, sorted by name.

    Raises:
        InputError: the folder or a RECORD can't be read.
        WheelError: a RECORD is not a CSV of three columns in UTF-8.
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
    wrong = [number for number, row in enumerate(rows, start=1) if len(row) != _COLUMNS]
    if wrong:
        columns = count_text(len(rows[wrong[0] - 1]), "column")
        raise WheelError(
            f"{path}: row {wrong[0]} has {columns}, not {_COLUMNS}",
            hint="install the package again",
        )
    return InstalledDistribution(
        folder=folder,
        rows=tuple(InstalledFile(path=row[0], hash_text=row[1], size=row[2]) for row in rows),
        # Installers on other systems write CRLF, and an unchanged row must keep its bytes.
        line_end="\r\n" if "\r\n" in text else "\n",
    )


def _installed_row(path: str, entry: RecordRow) -> InstalledFile:
    return InstalledFile(path=path, hash_text=entry.hash_text, size=str(entry.size))
