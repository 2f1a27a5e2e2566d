"""Manifests: the files that a request read, as ccache's direct mode keeps them.

The inputs of a request, such as a command line, are known only after it ran. A manifest keeps them
with their digests: one entry for each different set.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from archsplit.cache.keys import KeyComponent
from archsplit.cache.sealed import DamagedError, seal, unseal

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__pure__ = True

_MOST_ROWS = 16


class ManifestEntry(NamedTuple):
    """A set of input files, from which one result was made.

    Attributes:
        files: paths as the command spelled them, and the SHA-256 of the contents.
        programs: names that were searched on the PATH, and the SHA-256 of the programs.
        folders: folders in which a new file could shadow one that was read.
        names: possible names of such files, relative to the folders.
        beside: files with such names that existed already and were not read.
    """

    files: tuple[tuple[str, str], ...]
    programs: tuple[tuple[str, str], ...] = ()
    folders: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()

    def components(self, request: str) -> tuple[KeyComponent, ...]:
        """Return the key components of the result."""
        return (
            KeyComponent("request", request),
            *(KeyComponent(f"file {path}", digest) for path, digest in self.files),
            *(KeyComponent(f"program {name}", digest) for name, digest in self.programs),
            *(KeyComponent("beside", path) for path in self.beside),
        )


def encode_manifest(rows: Sequence[ManifestEntry], *, request: str) -> bytes:
    """Return a manifest as a blob; only the first entries are kept."""
    # The newest entries are first, and a lookup compares each of them.
    described = {"request": request, "rows": [row._asdict() for row in rows[:_MOST_ROWS]]}
    return seal(json.dumps(described).encode())


def decode_manifest(blob: bytes, *, request: str) -> tuple[ManifestEntry, ...]:
    """Return the entries of a request's manifest.

    Raises:
        DamagedError: the blob was changed or cut, or is no manifest of this request.
    """
    try:
        described = json.loads(unseal(blob))
        # A file that was copied to a wrong name has a right digest all the same.
        if described["request"] != request:
            raise DamagedError("the manifest of another request")
        return tuple(parse_manifest_entry(fields) for fields in described["rows"])
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DamagedError(f"it is no manifest: {error}") from None


def parse_manifest_entry(fields: dict[str, list[object]]) -> ManifestEntry:
    """Return the manifest entry in a decoded JSON object.

    Raises:
        ValueError: a field is invalid; `TypeError` and `KeyError` mean the same.
    """
    return ManifestEntry(
        files=tuple(_pairs(fields["files"])),
        programs=tuple(_pairs(fields["programs"])),
        folders=tuple(map(str, fields["folders"])),
        names=tuple(map(str, fields["names"])),
        beside=tuple(map(str, fields["beside"])),
    )


def _pairs(rows: list[object]) -> Iterator[tuple[str, str]]:
    for row in rows:
        if not (isinstance(row, list) and len(row) == 2 and all(isinstance(x, str) for x in row)):  # noqa: PLR2004 - a pair
            raise ValueError(f"{row!r} is not a path and a digest")
        yield row[0], row[1]
