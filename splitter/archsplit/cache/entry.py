"""One result as one sequence of bytes, with its own digest; pure.

A blob is a line that names the format, the SHA-256 of what follows, and what follows: the length of
a description in JSON, the description, the contents of the files one after the other; compressed.
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
    """A blob isn't what was once written; it is to be dropped."""


class CacheEntry(NamedTuple):
    """What a step, or a whole compilation, made.

    Attributes:
        components: what it depends on; its key follows from them.
        files: contents, by names that mean something to whoever stored them.
        notes: further facts as text, by name.
        stdout: what was printed.
        stderr: warnings.
        seconds: wall seconds that making it took.
        cpu_seconds: CPU seconds of the same.
        memory: bytes that it took at most.
        versions: of what made it, for people: nothing depends on them.
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
    """The bytes of an entry."""
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
    """The entry that the bytes are.

    Raises:
        DamagedError: they have been changed, cut, or are something else.
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
        raise DamagedError(f"its description is odd: {error}") from None


def seal(content: bytes) -> bytes:
    """The content, compressed, behind its digest."""
    # Looked for only here: most of what this package does needs no compression.
    import zstandard  # noqa: PLC0415

    packed = zstandard.ZstdCompressor(level=_LEVEL).compress(content)
    return _MAGIC + hashlib.sha256(packed).digest() + packed


def is_sealed(blob: bytes) -> bool:
    """Whether the digest is that of what follows it."""
    digest = hashlib.sha256(memoryview(blob)[_AT:]).digest()
    return blob[:_AT] == _MAGIC + digest


def unseal(blob: bytes) -> bytes:
    """The content that was sealed.

    Raises:
        DamagedError: the digest isn't that of what follows it.
    """
    import zstandard  # noqa: PLC0415 - see `seal`

    if not is_sealed(blob):
        raise DamagedError("its digest is wrong")
    try:
        return zstandard.ZstdDecompressor().decompress(memoryview(blob)[_AT:])
    except (zstandard.ZstdError, MemoryError) as error:
        raise DamagedError(f"it can't be decompressed: {error}") from None
