"""Encoders that make the payloads of nvcc's images again, byte for byte.

In: the raw bytes of an image, and the payload that a vendor shipped. Out: the `Encoder` that makes
the payload of the raw bytes, or None. A split stores an image in another form only if it has an
encoder. nvcc's writer of CUDA 11.8 to 13.5 uses three LZ4 encoders and two zstd levels, which were
found by comparing 2,111 LZ4 images of seven wheels.

The bytes mustn't depend on an installed LZ4: 1.9.4 and 1.10.0 write other blocks at the same level.
So the LZ4 encoders are compiled from ``lz4/lz4_encoders.c`` (``tools/build_encoders.py``), and the
release of libzstd is checked: `backports.zstd`, which has it inside, is pinned.
"""

from __future__ import annotations

import ctypes
import enum
import hashlib
import platform
from contextlib import suppress
from functools import lru_cache
from importlib import import_module, resources
from typing import TYPE_CHECKING

from archsplit.errors import ToolFailedError
from archsplit.formats.fatbin import Compression
from archsplit.formats.zstd import zstd

if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.resources.abc import Traversable

ENCODER_LIBRARY = "liblz4_encoders.so"
ENCODER_DIGESTS = "SHA256SUMS"

_LIBZSTD = "1.5.7"


class Encoder(enum.IntEnum):
    """Encoders of vendors' payloads; their numbers are in packs, and never change."""

    LZ4HC1_1_9_4 = 1  # CUDA up to 12.8
    LZ4HC1_1_10 = 2  # CUDA 12.9 and 13.0
    LZ4HC3 = 3  # CUDA 13.2 and later
    NONE = 4
    ZSTD5_1_5_7 = 5  # the default of CUDA 13

    @property
    def compression(self) -> Compression:
        """Compression of the payloads that it makes."""
        if self is Encoder.ZSTD5_1_5_7:
            return Compression.ZSTD
        return Compression.NONE if self is Encoder.NONE else Compression.LZ4


def find_encoder(raw: bytes, payload: bytes, compression: Compression) -> Encoder | None:
    """Return the encoder that makes a payload from its raw bytes; None if all differ.

    Of several encoders that do, the one with the lowest number: so the result depends on nothing
    but the image. An LZ4 encoder that doesn't fit stops at its first other byte. zstd level 19 is
    not tried, because such images stay as they are.
    """
    if compression is Compression.NONE:
        return Encoder.NONE if raw == payload else None
    if compression is Compression.LZ4:
        lz4 = (one for one in Encoder if one.compression is Compression.LZ4)
        block = ctypes.create_string_buffer(len(payload))
        return next(
            (one for one in lz4 if _encode_lz4(one, raw, block, payload) == len(block)), None
        )
    if compression is Compression.ZSTD and compress_zstd(raw, 5) == payload:
        return Encoder.ZSTD5_1_5_7
    return None


def encode_payload(encoder: Encoder, raw: bytes, size: int) -> bytes:
    """Return the payload that an encoder makes; b"" if it isn't of the given size."""
    if encoder is Encoder.NONE:
        payload = raw
    elif encoder.compression is Compression.LZ4:
        block = ctypes.create_string_buffer(size)
        written = _encode_lz4(encoder, raw, block)
        payload = block.raw[:written]
    else:
        payload = compress_zstd(raw, 5)
    return payload if len(payload) == size else b""


def compress_zstd(raw: bytes, level: int) -> bytes:
    """Return a zstd frame as nvcc writes it: with the size of its content, without a checksum.

    Raises:
        ToolFailedError: libzstd is another release.
    """
    return _zstd_writer()(raw, level)


def has_lz4_encoders() -> bool:
    """Return True if the LZ4 encoders are compiled for this machine."""
    return (compiled_encoders() / platform.machine() / ENCODER_LIBRARY).is_file()


def compiled_encoders() -> Traversable:
    """Return the folder of the encoders' source and of the compiled libraries."""
    return resources.files("archsplit") / "devicecode" / "lz4"


@lru_cache(maxsize=1)
def _zstd_writer() -> Callable[[bytes, int], bytes]:
    # A frame depends on the release of libzstd, most of all at high levels.
    if zstd.zstd_version == _LIBZSTD:
        return zstd.compress
    # A Python 3.14 that links another release; the zstandard wheel has libzstd inside.
    with suppress(ImportError):
        zstandard = import_module("zstandard")
        if zstandard.ZSTD_VERSION == (1, 5, 7):
            return lambda raw, level: zstandard.ZstdCompressor(level=level).compress(raw)
    raise ToolFailedError(
        f"this Python has libzstd {zstd.zstd_version}, expected {_LIBZSTD}",
        hint="pip install zstandard==0.25.0",
    )


def _encode_lz4(
    encoder: Encoder, raw: bytes, block: ctypes.Array[ctypes.c_char], expected: bytes | None = None
) -> int:
    """Fill a block; return its bytes, 0 if it needs more room or differs from the expected one."""
    # A foreign function leaves the interpreter to other threads.
    size = _library().archsplit_lz4_encode(encoder, raw, len(raw), block, len(block), expected)
    return int(size)


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    name = f"{platform.machine()}/{ENCODER_LIBRARY}"
    folder = compiled_encoders()
    try:
        content = (folder / name).read_bytes()
        lines = (folder / ENCODER_DIGESTS).read_text().splitlines()
    except OSError as error:
        raise _damaged(f"{name} can't be read ({error})") from None
    # A changed encoder would only be noticed when a library can't be restored any more.
    if f"{hashlib.sha256(content).hexdigest()}  {name}" not in lines:
        raise _damaged(f"{name} is not the file that {ENCODER_DIGESTS} names")
    with resources.as_file(folder / name) as path:
        library = ctypes.CDLL(str(path))
    library.archsplit_lz4_encode.restype = ctypes.c_size_t
    library.archsplit_lz4_encode.argtypes = (
        ctypes.c_uint32,
        ctypes.c_char_p,
        ctypes.c_size_t,
        ctypes.c_char_p,
        ctypes.c_size_t,
        ctypes.c_char_p,
    )
    return library


def _damaged(fault: str) -> ToolFailedError:
    return ToolFailedError(
        f"the LZ4 encoders of archsplit are damaged: {fault}",
        hint="pip install --force-reinstall --no-deps archsplit",
    )
