"""RECORD: the hash and size of each file that a wheel installs.

Source: https://packaging.python.org/en/latest/specifications/recording-installed-packages/
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from archsplit.errors import WheelError
from archsplit.wheels.member_names import member_fault

if TYPE_CHECKING:
    from collections.abc import Iterable

__pure__ = True

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
            raise WheelError(
                f"{self.path} has a hash of {len(self.digest)} bytes of {self.algorithm}"
            )

    @property
    def hash_text(self) -> str:
        """The second column: ``sha256=`` and the digest in URL-safe base64 without padding."""
        if self.digest is None:
            return ""
        return f"{self.algorithm}={base64.urlsafe_b64encode(self.digest).decode().rstrip('=')}"


def record_digest(content: bytes) -> bytes:
    """Return the SHA-256 of a content."""
    return hashlib.sha256(content).digest()


def encode_record(entries: Iterable[RecordRow]) -> bytes:
    r"""Write RECORD: one row for each entry, in the given order, lines ending in ``\n``."""
    text = io.StringIO()
    # CSV, because a name may have commas and quotes.
    writer = csv.writer(text, lineterminator="\n")
    for entry in entries:
        writer.writerow((entry.path, entry.hash_text, "" if entry.size is None else entry.size))
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
    # All rows are read, so that the error names all that are wrong.
    parsed = [_parse_row_or_fault(row) for row in rows]
    faults = [
        f"RECORD, row {number}: {fault}"
        for number, fault in enumerate(parsed, start=1)
        if isinstance(fault, WheelError)
    ]
    if faults:
        raise WheelError("\n".join(faults))
    return tuple(entry for entry in parsed if isinstance(entry, RecordRow))


def _parse_row_or_fault(row: list[str]) -> RecordRow | WheelError:
    try:
        return _parse_row(row)
    except WheelError as error:
        return error


def _parse_row(row: list[str]) -> RecordRow:
    if len(row) != _COLUMNS:
        raise WheelError(f"{len(row)} columns, expected {_COLUMNS}")
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
