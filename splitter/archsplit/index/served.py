"""What a package index has, as records; pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping  # noqa: TC003 - a record's fields
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

__pure__ = True

_STRONGEST = ("sha512", "sha384", "sha256", "blake2b", "sha1", "md5")


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexFile:
    """One file, as its project's page describes it.

    Attributes:
        digests: by hashlib's names, 64 hexadecimal digits for ``sha256``; some indexes give none.
        size: in bytes, where the index says so (PEP 700).
        uploaded: the time, where the index says so.
        yanked: why, or None where it isn't; "" where nobody said why.
        metadata: the digests of its PEP 658 file; None where there is none.
        is_attested: whether there is a PEP 740 provenance.
    """

    name: str
    url: str
    digests: Mapping[str, str]
    size: int | None = None
    uploaded: datetime | None = None
    yanked: str | None = None
    metadata: Mapping[str, str] | None = None
    metadata_url: str = ""
    is_attested: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexPage:
    """A project's page.

    Attributes:
        exists: whether the index knows the name.
        files: by their names.
        status: PEP 792's, where it is something else than active.
    """

    name: str
    exists: bool
    files: Mapping[str, IndexFile] = field(default_factory=dict, repr=False)
    status: str = ""

    @property
    def size(self) -> int:
        """Bytes of all files whose size the index says."""
        return sum(file.size or 0 for file in self.files.values())

    @property
    def unmeasured(self) -> int:
        """How many files have no size there."""
        return sum(file.size is None for file in self.files.values())

    @property
    def created(self) -> datetime | None:
        """When its first file came, as far as the index says."""
        times = [file.uploaded for file in self.files.values() if file.uploaded is not None]
        return min(times, default=None)


def sha256_hex(blocks: Iterable[bytes], algorithm: str = "sha256") -> str:
    """The digest of a content, in hexadecimal digits."""
    digest = hashlib.new(algorithm, usedforsecurity=False)
    for block in blocks:
        digest.update(block)
    return digest.hexdigest()


def comparable(digests: Mapping[str, str]) -> str | None:
    """The strongest algorithm of those that an index used, or None."""
    return next((name for name in _STRONGEST if name in digests), None)
