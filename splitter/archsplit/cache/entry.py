"""Keys, entries and manifests of the cache, and their encoding as sealed blobs.

A key follows from components that a person can read. The content of an entry's blob is the length
of a description in JSON, the description, and the contents of the files one after the other.

The inputs of a request, such as a command line, are known only after it ran. A manifest keeps them
with their digests, as ccache's direct mode does: one entry for each different set.
"""

from __future__ import annotations

import functools
import json
import struct
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from archsplit.cache.sealed_blob import DamagedError, seal, sha256_digest, unseal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

__pure__ = True

KEY_SCHEMA = "archsplit cache 5"
"""Version of keys and entries; a part of each key."""
_DIGEST_DIGITS = 64


class KeyComponent(NamedTuple):
    """A dependency of a result.

    Attributes:
        name: such as ``flag -O3``, ``program cicc``, ``environment LANG``; may repeat.
        value: the text itself, or the SHA-256 of a file's content.
    """

    name: str
    value: str


def environment_components(
    environment: Mapping[str, str], names: Iterable[str]
) -> tuple[KeyComponent, ...]:
    """Return variables as components; a missing one is like an empty one."""
    return tuple(KeyComponent(f"environment {name}", environment.get(name, "")) for name in names)


def compute_key(components: Iterable[KeyComponent]) -> str:
    """Return the key as 64 hexadecimal digits; the order of the components counts."""
    return _compute_key(tuple(components))


# Hundreds of headers are in one list, and its key is asked for five times.
@functools.lru_cache(maxsize=32)
def _compute_key(components: tuple[KeyComponent, ...]) -> str:
    # With lengths, no two lists of texts have the same bytes.
    contents = (text.encode(errors="surrogateescape") for each in components for text in each)
    pieces = (b"%d:%b" % (len(content), content) for content in contents)
    return sha256_digest(KEY_SCHEMA.encode() + b"".join(pieces)).hex()


def key_differences(old: Sequence[KeyComponent], new: Sequence[KeyComponent]) -> tuple[str, ...]:
    """Return the differences of two results' components, sorted by name."""
    before, after = _by_name(old), _by_name(new)
    lines = []
    for name in sorted(before.keys() | after.keys()):
        was, now = before.get(name, []), after.get(name, [])
        # Names may repeat, so that all values of a name are compared at once.
        if was != now:
            lines.append(_difference(name, was, now))
    return tuple(lines)


def _by_name(components: Iterable[KeyComponent]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in components:
        found.setdefault(name, []).append(value)
    return found


def _difference(name: str, old: list[str], new: list[str]) -> str:
    if not old:
        return f"{name} is new: {_values_text(new)}"
    if not new:
        return f"{name} is gone: {_values_text(old)}"
    removed = [value for value in old if value not in new]
    added = [value for value in new if value not in old]
    # Only added, or only removed: the other half would be noise.
    if bool(removed) != bool(added):
        return f"{name} is {'new' if added else 'gone'}: {_values_text(added or removed)}"
    return f"{name}: {_values_text(added or new)}, before {_values_text(removed or old)}"


def _values_text(values: list[str]) -> str:
    short = [value[:12] if _is_digest(value) else value for value in values]
    return " ".join(short) or "nothing"


def _is_digest(value: str) -> bool:
    return len(value) == _DIGEST_DIGITS and value.isalnum()


_LENGTH = struct.Struct("<I")
_NOTHING: Mapping[str, str] = MappingProxyType({})


class CacheEntry(NamedTuple):
    """The result of a step or of a whole compilation.

    Attributes:
        components: key components; the key follows from them.
        files: contents by name; the names are the caller's.
        notes: further text by name.
        stdout: standard output of the command.
        stderr: standard error: warnings.
        cpu_seconds: CPU seconds of the command.
    """

    components: tuple[KeyComponent, ...]
    files: Mapping[str, bytes]
    notes: Mapping[str, str] = _NOTHING
    stdout: str = ""
    stderr: str = ""
    cpu_seconds: float = 0.0


def encode_entry(entry: CacheEntry) -> bytes:
    """Return an entry as a sealed blob."""
    # Sorted, so that the same result has the same bytes everywhere.
    names = sorted(entry.files)
    described = {
        "parts": entry.components,
        "files": [(name, len(entry.files[name])) for name in names],
        "notes": dict(entry.notes),
        "stdout": entry.stdout,
        "stderr": entry.stderr,
        "cpu_seconds": entry.cpu_seconds,
    }
    head = json.dumps(described).encode()
    return seal(b"".join([_LENGTH.pack(len(head)), head, *(entry.files[name] for name in names)]))


def decode_entry(blob: bytes) -> CacheEntry:
    """Return the entry in a blob.

    Raises:
        DamagedError: the blob was changed or cut, or is not an entry.
    """
    content = unseal(blob)
    try:
        fields, spans = _description(content)
        files = {name: content[start:end] for name, (start, end) in spans.items()}
        components = tuple(KeyComponent(*pair) for pair in fields.pop("parts"))
        # Entries of older versions have more fields.
        known = {name: fields[name] for name in CacheEntry._fields[2:]}
        return CacheEntry(components=components, files=files, **known)
    except (ValueError, TypeError, KeyError, AttributeError, struct.error) as error:
        raise DamagedError(f"its description is invalid: {error}") from None


def file_spans(blob: bytes) -> dict[str, tuple[int, int]]:
    """Return the place of each file in the content of an entry's blob.

    Raises:
        DamagedError: as for `decode_entry`.
    """
    try:
        return _description(unseal(blob))[1]
    except (ValueError, TypeError, KeyError, AttributeError, struct.error) as error:
        raise DamagedError(f"its description is invalid: {error}") from None


def _description(content: bytes) -> tuple[dict[str, Any], dict[str, tuple[int, int]]]:
    """Return an entry's fields but the files, and each file's place in the content."""
    (length,) = _LENGTH.unpack_from(content)
    at = _LENGTH.size + length
    fields = json.loads(content[_LENGTH.size : at])
    spans = {}
    for name, size in fields.pop("files"):
        spans[name] = (at, at + size)
        at += size
    # A seal covers the bytes, not their meaning.
    if at != len(content):
        raise DamagedError("the files' lengths are wrong")
    return fields, spans


_MOST_ROWS = 16
"""Rows of a manifest; each lookup compares all of them."""


class ManifestRow(NamedTuple):
    """A set of input files, from which one result was made.

    Attributes:
        files: paths as the command spelled them, and the SHA-256 of the contents.
        programs: names that were searched on the PATH, and the SHA-256 of the programs; also of
            headers that were only tested for, "" for none.
        folders: folders in which a new file could shadow one that was read.
        names: possible names of such files, relative to the folders.
        shadowing: files with such names that existed already and were not read.
    """

    files: tuple[tuple[str, str], ...]
    programs: tuple[tuple[str, str], ...] = ()
    folders: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    shadowing: tuple[str, ...] = ()

    def components(self, request: str) -> tuple[KeyComponent, ...]:
        """Return the key components of the result."""
        return (
            KeyComponent("request", request),
            *(KeyComponent(f"file {path}", digest) for path, digest in self.files),
            *(KeyComponent(f"program {name}", digest) for name, digest in self.programs),
            *(KeyComponent("shadowing", path) for path in self.shadowing),
        )


def encode_manifest(rows: Sequence[ManifestRow], *, request: str) -> bytes:
    """Return a manifest as a sealed blob; only the first rows are kept."""
    # Rows differ in few texts: each is written once, and a row has their numbers.
    numbers: dict[str, int] = {}
    # The newest rows are first.
    described = [
        [[numbers.setdefault(text, len(numbers)) for text in texts] for texts in _flat(row)]
        for row in rows[:_MOST_ROWS]
    ]
    content = {"request": request, "texts": [*numbers], "rows": described}
    return seal(json.dumps(content).encode())


def _flat(row: ManifestRow) -> Iterator[Iterable[str]]:
    yield from map(chain.from_iterable, (row.files, row.programs))
    yield from (row.folders, row.names, row.shadowing)


def decode_manifest(blob: bytes, *, request: str) -> tuple[ManifestRow, ...]:
    """Return the rows of a request's manifest.

    Raises:
        DamagedError: the blob was changed or cut, or is not a manifest of this request.
    """
    try:
        described = json.loads(unseal(blob))
        # A file that was copied to a wrong name still has a right digest.
        if described["request"] != request:
            raise DamagedError("the manifest of another request")
        texts = described["texts"]
        # An element that is not a text raises `TypeError`.
        "".join(texts)
        return tuple(_row(texts, numbers) for numbers in described["rows"])
    except (ValueError, TypeError, LookupError) as error:
        raise DamagedError(f"it is not a manifest: {error}") from None


def _row(texts: Sequence[str], numbers: list[list[int]]) -> ManifestRow:
    files, programs, *others = (tuple(texts[at] for at in each) for each in numbers)
    folders, names, shadowing = others
    return ManifestRow(_pairs(files), _pairs(programs), folders, names, shadowing)


def _pairs(texts: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    return tuple(zip(texts[::2], texts[1::2], strict=True))
