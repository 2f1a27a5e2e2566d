"""Entries of the cache and their encoding as a sealed blob.

The content of the blob is the length of a description in JSON, the description, and the contents of
the files one after the other.
"""

from __future__ import annotations

import json
import struct
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from archsplit.cache.keys import KeyComponent
from archsplit.cache.sealed import DamagedError, seal, unseal

if TYPE_CHECKING:
    from collections.abc import Mapping

__pure__ = True

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
        seconds: wall seconds of the command.
        cpu_seconds: CPU seconds of the command.
        memory: peak bytes of the command.
        versions: versions of the tools, for people; no key depends on them.
    """

    components: tuple[KeyComponent, ...]
    files: Mapping[str, bytes]
    notes: Mapping[str, str] = _NOTHING
    stdout: str = ""
    stderr: str = ""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    memory: int = 0
    versions: Mapping[str, str] = _NOTHING


def encode_entry(entry: CacheEntry) -> bytes:
    """Return an entry as a blob."""
    # Sorted, so that the same result has the same bytes everywhere.
    names = sorted(entry.files)
    described = {
        "parts": entry.components,
        "files": [(name, len(entry.files[name])) for name in names],
        "notes": dict(entry.notes),
        "stdout": entry.stdout,
        "stderr": entry.stderr,
        "seconds": entry.seconds,
        "cpu_seconds": entry.cpu_seconds,
        "memory": entry.memory,
        "versions": dict(entry.versions),
    }
    head = json.dumps(described).encode()
    return seal(b"".join([_LENGTH.pack(len(head)), head, *(entry.files[name] for name in names)]))


def decode_entry(blob: bytes) -> CacheEntry:
    """Return the entry in a blob.

    Raises:
        DamagedError: the blob was changed or cut, or is no entry.
    """
    content = unseal(blob)
    try:
        fields, spans = _description(content)
        files = {name: content[start:end] for name, (start, end) in spans.items()}
        parts = tuple(KeyComponent(*part) for part in fields.pop("parts"))
        return CacheEntry(components=parts, files=files, **fields)
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
