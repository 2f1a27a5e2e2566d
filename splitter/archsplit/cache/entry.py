"""Entries of the cache and their encoding as a blob with its own digest.

A blob is a line with the format's name, the SHA-256 of the rest, and the rest, compressed: the
length of a description in JSON, the description, and the contents of the files one after the other.
"""

from __future__ import annotations

import hashlib
import json
import struct
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from archsplit.cache.keys import KeyComponent

if TYPE_CHECKING:
    from collections.abc import Mapping

__pure__ = True

_MAGIC = b"archsplit cache entry 1\n"
_AT = len(_MAGIC) + hashlib.sha256().digest_size
_LENGTH = struct.Struct("<I")
_LEVEL = 1
_NOTHING: Mapping[str, str] = MappingProxyType({})


class DamagedError(Exception):
    """A blob was changed after it was written; the caller must delete it."""


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
        (length,) = _LENGTH.unpack_from(content)
        at = _LENGTH.size + length
        fields = json.loads(content[_LENGTH.size : at])
        files = {}
        for name, size in fields.pop("files"):
            files[name] = content[at : at + size]
            at += size
        if at != len(content):
            raise DamagedError("the files' lengths are wrong")
        parts = tuple(KeyComponent(*part) for part in fields.pop("parts"))
        return CacheEntry(components=parts, files=files, **fields)
    except (ValueError, TypeError, KeyError, AttributeError, struct.error) as error:
        raise DamagedError(f"its description is invalid: {error}") from None


def seal(content: bytes) -> bytes:
    """Return content compressed, with its digest in front."""
    # Imported late: most of this package needs no compression.
    import zstandard  # noqa: PLC0415

    packed = zstandard.ZstdCompressor(level=_LEVEL).compress(content)
    return _MAGIC + hashlib.sha256(packed).digest() + packed


def is_sealed(blob: bytes) -> bool:
    """Return True if the digest fits the rest of the blob."""
    digest = hashlib.sha256(memoryview(blob)[_AT:]).digest()
    return blob[:_AT] == _MAGIC + digest


def unseal(blob: bytes) -> bytes:
    """Return the content of a sealed blob.

    Raises:
        DamagedError: the digest does not fit the rest of the blob.
    """
    import zstandard  # noqa: PLC0415 - see `seal`

    if not is_sealed(blob):
        raise DamagedError("its digest is wrong")
    try:
        return zstandard.ZstdDecompressor().decompress(memoryview(blob)[_AT:])
    except (zstandard.ZstdError, MemoryError) as error:
        raise DamagedError(f"it can't be decompressed: {error}") from None
