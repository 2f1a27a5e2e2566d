"""Which files a result was made from; pure.

Of a request (a command line, say) the files that it reads are known only when it has been carried
out. A manifest remembers them, with their digests: one row for each different set.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from archsplit.cache.entry import DamagedError, seal, unseal
from archsplit.cache.keys import KeyComponent

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__pure__ = True

_MOST_ROWS = 16


class ManifestEntry(NamedTuple):
    """One set of files, and the result that was made from it.

    Attributes:
        files: paths as they were spelled, and the SHA-256 of the contents.
        programs: names that were looked for on the PATH, and the SHA-256 of what was found.
        folders: where a file that appears could take the place of one that was read.
        names: what such files could be called, relative to the folders.
        beside: files that were such already, and weren't read.
    """

    files: tuple[tuple[str, str], ...]
    programs: tuple[tuple[str, str], ...] = ()
    folders: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()

    def components(self, request: str) -> tuple[KeyComponent, ...]:
        """What the result depends on."""
        return (
            KeyComponent("request", request),
            *(KeyComponent(f"file {path}", digest) for path, digest in self.files),
            *(KeyComponent(f"program {name}", digest) for name, digest in self.programs),
            *(KeyComponent("beside", path) for path in self.beside),
        )


def encode_manifest(rows: Sequence[ManifestEntry], *, request: str) -> bytes:
    """The bytes of the manifest of the request with this key; only the first rows are kept."""
    described = {"request": request, "rows": [row._asdict() for row in rows[:_MOST_ROWS]]}
    return seal(json.dumps(described).encode())


def decode_manifest(blob: bytes, *, request: str) -> tuple[ManifestEntry, ...]:
    """The rows of the manifest of the request with this key.

    Raises:
        DamagedError: the bytes have been changed, cut, or are something else.
    """
    try:
        described = json.loads(unseal(blob))
        if described["request"] != request:
            raise DamagedError("it is another request's manifest")
        return tuple(parse_manifest_entry(fields) for fields in described["rows"])
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DamagedError(f"it is no manifest: {error}") from None


def parse_manifest_entry(fields: dict[str, list[object]]) -> ManifestEntry:
    """Return the row that has been described.

    Raises:
        ValueError: a field is odd. So are `TypeError` and `KeyError`.
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
