"""Sealed blobs: content compressed, as an ``ActionResult`` of the Remote Execution API.

A result has one output file, ``entry``, with its digest and its bytes, so that each store of such
messages holds ordinary entries: this machine's, Bazel's remote caches by HTTP and gRPC, and object
stores. A message without the bytes leads to a blob of the content-addressable storage.

Small content is compressed by zlib, which each Python has, and large content by Zstandard, which is
quicker, but takes 12 ms to import. Each hit of the compiler wrapper reads two blobs, so this module
imports late, and has the few fields that it needs in place of the protobuf library (40 ms).
Source of the fields: https://github.com/bazelbuild/remote-apis
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, TypeAlias

    Buffer: TypeAlias = bytes | memoryview

_LEVEL = 1
_ZSTANDARD = b"\x28\xb5\x2f\xfd"
"""The first bytes of a Zstandard frame (RFC 8878); zlib's streams begin with 0x78."""
_FREE_BYTES = 64 << 20
"""Bytes that any content may have."""
_MOST_RATIO = 64
"""Most bytes of larger content for each compressed byte: a reply of some kilobytes must not fill
the memory. `seal` doesn't compress what this would refuse."""
_LARGE = 1 << 18
"""Bytes from which Zstandard is quicker than zlib, its import included."""
_SMALL = 1 << 19
"""Bytes that OpenSSL doesn't hash sooner than it is loaded (3 ms)."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
"""Wire types; source: https://protobuf.dev/programming-guides/encoding/"""
_OUTPUT_FILES = 2 << 3 | _BYTES
_FILE_PATH = 1 << 3 | _BYTES
_FILE_DIGEST = 2 << 3 | _BYTES
_FILE_CONTENTS = 5 << 3 | _BYTES
_DIGEST_HASH = 1 << 3 | _BYTES
_DIGEST_SIZE = 2 << 3 | _VARINT
_COMMAND_ARGUMENTS = 1 << 3 | _BYTES
_COMMAND_OUTPUT_PATHS = 7 << 3 | _BYTES
_ACTION_COMMAND = 1 << 3 | _BYTES
_ACTION_INPUT_ROOT = 2 << 3 | _BYTES
_BAD_DATA = "its compressed data can't be unpacked"
_MOST_SHIFT = 63
"""Bits before the last byte of the longest varint."""

OUTPUT_NAME = "entry"


class DamagedError(Exception):
    """A blob was changed after it was written; the caller must delete it."""


def seal(content: bytes) -> bytes:
    """Return content compressed, as a message with its digest."""
    import zlib

    if len(content) < _LARGE:
        compressed = zlib.compress(content, _LEVEL)
    else:
        compressor = _zstandard().ZstdCompressor(_LEVEL)
        compressed = compressor.compress(content, compressor.FLUSH_FRAME)
        if len(content) > decompressed_limit(len(compressed)):
            compressed = zlib.compress(content, 0)
    return encode_result(compressed)


def decompressed_limit(size: int) -> int:
    """Return the bytes that compressed data of this size may have."""
    return max(_FREE_BYTES, size * _MOST_RATIO)


def is_sealed(blob: bytes) -> bool:
    """Return True if the digest fits the bytes of the message."""
    try:
        _intact_contents(blob)
    except DamagedError:
        return False
    return True


def sealed_digest(blob: bytes) -> str:
    """Return the digest in a sealed blob, as hexadecimal digits.

    Raises:
        DamagedError: the blob is no such message.
    """
    return decode_result(blob)[0]


def unseal(blob: bytes) -> bytes:
    """Return the content of a sealed blob.

    Raises:
        DamagedError: the digest does not fit, or the blob is no such message.
    """
    compressed = _intact_contents(blob)
    # The frame itself tells which library compressed it.
    if compressed[: len(_ZSTANDARD)] == _ZSTANDARD:
        return _decompress_frame(compressed)
    return _decompress_zlib(compressed)


def _decompress_frame(compressed: memoryview) -> bytes:
    zstd = _zstandard()
    reader = zstd.ZstdDecompressor()
    try:
        content: bytes = reader.decompress(compressed, decompressed_limit(len(compressed)) + 1)
    except (zstd.ZstdError, MemoryError):
        raise DamagedError(_BAD_DATA) from None
    if not reader.eof:
        raise DamagedError(_BAD_DATA)
    return content


def _zstandard() -> Any:  # noqa: ANN401 - two modules
    """Return libzstd's C module without its package, whose enums take 5 ms to define."""
    if sys.version_info >= (3, 14):
        return __import__("_zstd")
    name = "backports.zstd._zstd"
    if name not in sys.modules:
        from _frozen_importlib import module_from_spec
        from _frozen_importlib_external import PathFinder

        folders = [f"{folder}/zstd" for folder in __import__("backports").__path__]
        spec = PathFinder.find_spec(name, folders)
        if spec is None or spec.loader is None:
            return __import__("backports.zstd").zstd
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        # The package, if it is imported later, has the same module.
        sys.modules.setdefault(name, module)
    return sys.modules[name]


def _decompress_zlib(compressed: memoryview) -> bytes:
    import zlib

    inflate = zlib.decompressobj()
    try:
        # `seal` writes smaller contents, and large ones without compression.
        content = inflate.decompress(compressed, max(_LARGE, len(compressed)))
    except (zlib.error, MemoryError):
        raise DamagedError(_BAD_DATA) from None
    if not inflate.eof:
        raise DamagedError(_BAD_DATA)
    return content


def encode_result(compressed: Buffer, *, inline: bool = True) -> bytes:
    """Return the ``ActionResult`` with one output file of these bytes.

    Args:
        inline: False for a message without the bytes, which are a blob of their own.
    """
    file: list[Buffer] = [
        _field(_FILE_PATH, OUTPUT_NAME.encode()),
        _field(_FILE_DIGEST, _digest_message(compressed)),
    ]
    size = sum(map(len, file))
    if inline:
        file += [_varint(_FILE_CONTENTS), _varint(len(compressed)), compressed]
        size += len(file[-3]) + len(file[-2]) + len(compressed)
    # One copy of the bytes, which may be many.
    return b"".join([_varint(_OUTPUT_FILES), _varint(size), *file])


def decode_result(blob: Buffer) -> tuple[str, int, memoryview | None]:
    """Return digest, size and bytes of a message's output file.

    The digest is a SHA-256 in hexadecimal digits; the bytes are None if they are a blob of their
    own. Fields that servers add are ignored.

    Raises:
        DamagedError: the message is cut, or has no such file.
    """
    for tag, value in _fields(memoryview(blob)):
        if tag != _OUTPUT_FILES or isinstance(value, int):
            continue
        file = dict(_fields(value))
        if bytes(_as_bytes(file.get(_FILE_PATH)) or b"") == OUTPUT_NAME.encode():
            return *_read_digest(file.get(_FILE_DIGEST)), _as_bytes(file.get(_FILE_CONTENTS))
    raise DamagedError("it is not a result of an action")


def entry_action(path: str) -> list[bytes]:
    """Return the messages of the action of an entry: input root, command, and the action, last.

    The command is never run; it tells people what the entry is.

    Args:
        path: ``ac/<key>``.
    """
    arguments = (_field(_COMMAND_ARGUMENTS, word.encode()) for word in ("archsplit", "cache", path))
    root, command = b"", b"".join(arguments) + _field(_COMMAND_OUTPUT_PATHS, OUTPUT_NAME.encode())
    action = _field(_ACTION_COMMAND, _digest_message(command))
    return [root, command, action + _field(_ACTION_INPUT_ROOT, _digest_message(root))]


def _intact_contents(blob: bytes) -> memoryview:
    digest, size, contents = decode_result(blob)
    if contents is None or len(contents) != size or sha256_digest(contents).hex() != digest:
        raise DamagedError("its digest is wrong")
    return contents


def _digest_message(content: Buffer) -> bytes:
    digest = _field(_DIGEST_HASH, sha256_digest(content).hex().encode())
    # A number that is 0 is left out, as the library does: actions have one encoding.
    return digest + (_varint(_DIGEST_SIZE) + _varint(len(content)) if len(content) else b"")


def _read_digest(message: memoryview | int | None) -> tuple[str, int]:
    found = {} if message is None or isinstance(message, int) else dict(_fields(message))
    size, digest = found.get(_DIGEST_SIZE, 0), _as_bytes(found.get(_DIGEST_HASH))
    if digest is None or not isinstance(size, int):
        raise DamagedError("it has no digest")
    return bytes(digest).decode("ascii", "replace"), size


def _as_bytes(value: memoryview | int | None) -> memoryview | None:
    return None if isinstance(value, int) else value


def _field(tag: int, content: bytes) -> bytes:
    return _varint(tag) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:  # noqa: PLR2004 - seven bits a byte
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview | int]]:
    """Yield tags and values of a message; a field of fixed size has the value 0."""
    at = 0
    while at < len(message):
        tag, at = _read_varint(message, at)
        kind, value, end = tag & 7, 0, at
        if kind == _VARINT:
            value, end = _read_varint(message, at)
        elif kind == _BYTES:
            size, at = _read_varint(message, at)
            end = at + size
        elif kind in {_FIXED64, _FIXED32}:
            end = at + (8 if kind == _FIXED64 else 4)
        else:
            raise DamagedError("it is not a message")
        if end > len(message):
            raise DamagedError("it is truncated")
        yield tag, message[at:end] if kind == _BYTES else value
        at = end


def _read_varint(message: memoryview, at: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, _MOST_SHIFT + 1, 7):
        if at >= len(message):
            raise DamagedError("it is truncated")
        byte, at = message[at], at + 1
        number |= (byte & 0x7F) << shift
        if byte <= 0x7F:  # noqa: PLR2004 - the last byte has no such bit
            return number, at
    raise DamagedError("it has a number that is too long")


def sha256_digest(content: Buffer) -> bytes:
    """Return the SHA-256 of a content; a small one needs no OpenSSL, which is quicker."""
    if "hashlib" in sys.modules or memoryview(content).nbytes > _SMALL:
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
