"""Sealed blobs: content compressed, with its own digest in front.

A blob is a line with the format's name, the SHA-256 of the rest, and the rest, compressed: small
content by zlib, which each Python has, and large content by Zstandard, which is quicker, but takes
12 ms to import. Each hit of the compiler wrapper reads two of them, so this module imports late.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias

    Buffer: TypeAlias = bytes | memoryview

_MAGIC = b"archsplit cache entry 2\n"
_DIGEST_SIZE = 32
_AT = len(_MAGIC) + _DIGEST_SIZE
_LEVEL = 1
_ZSTANDARD = b"\x28\xb5\x2f\xfd"
"""The first bytes of a Zstandard frame (RFC 8878); zlib's streams begin with 0x78."""
_LARGE = 1 << 18
"""Bytes from which Zstandard is quicker than zlib, its import included."""
_SMALL = 1 << 19
"""Bytes that OpenSSL doesn't hash sooner than it is loaded (3 ms)."""


class DamagedError(Exception):
    """A blob was changed after it was written; the caller must delete it."""


def load_compressor() -> None:
    """Import what `seal` imports for large content, at a time when nobody waits."""
    import zstandard  # noqa: F401 - for its effect


def seal(content: bytes) -> bytes:
    """Return content compressed, with its digest in front."""
    if len(content) < _LARGE:
        import zlib

        packed = zlib.compress(content, _LEVEL)
    else:
        import zstandard

        packed = zstandard.ZstdCompressor(level=_LEVEL).compress(content)
    return _MAGIC + sha256_digest(packed) + packed


def is_sealed(blob: bytes) -> bool:
    """Return True if the digest fits the rest of the blob."""
    digest = sha256_digest(memoryview(blob)[_AT:])
    return blob[:_AT] == _MAGIC + digest


def sealed_digest(blob: bytes) -> str:
    """Return the digest that a sealed blob begins with, as hexadecimal digits."""
    return blob[len(_MAGIC) : _AT].hex()


def unseal(blob: bytes) -> bytes:
    """Return the content of a sealed blob.

    Raises:
        DamagedError: the digest does not fit the rest of the blob.
    """
    if not is_sealed(blob):
        raise DamagedError("its digest is wrong")
    packed = memoryview(blob)[_AT:]
    # The frame itself tells which library packed it.
    if packed[: len(_ZSTANDARD)] == _ZSTANDARD:
        import zstandard

        try:
            return zstandard.ZstdDecompressor().decompress(packed)
        except (zstandard.ZstdError, MemoryError) as error:
            raise DamagedError(f"it can't be decompressed: {error}") from None
    import zlib

    try:
        return zlib.decompress(packed)
    except (zlib.error, MemoryError) as error:
        raise DamagedError(f"it can't be decompressed: {error}") from None


def sha256_digest(content: Buffer) -> bytes:
    """Return the SHA-256 of a content; a small one needs no OpenSSL."""
    if memoryview(content).nbytes > _SMALL:
        from hashlib import sha256

        return sha256(content).digest()
    return _builtin_sha256(content)


def _builtin_sha256(content: Buffer) -> bytes:
    """Hash with the interpreter's own module, as `random` of the standard library does."""
    name = "_sha2" if sys.version_info >= (3, 12) else "_sha256"
    try:
        module = __import__(name)
    except ImportError:
        # Another interpreter, or one that was built without it.
        module = __import__("hashlib")
    digest: bytes = module.sha256(content).digest()
    return digest
