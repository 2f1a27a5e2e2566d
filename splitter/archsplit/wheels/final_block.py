"""The end of a deflate stream, changed so that another stream can follow.

libdeflate makes whole streams only, and a member of a zip file is one stream. So each piece of a
member but the last loses its end, and an empty stored block fills the piece up to a byte:

    libdeflate   [block][block][LAST block]                 LAST is one bit at an unknown offset
    piece        [block][block][     block][stored, empty]  the bit is cleared, the end is aligned
    member       piece piece piece ... [block][LAST block]  the last piece stays

zlib's inflater can stop between two blocks, and returns the bit that it stopped at. Python's `zlib`
has no such call, so `_block_ends` calls the C library: five calls for a piece, and other threads
run meanwhile. Each manylinux policy promises ``libz.so.1``. Source of the format: RFC 1951.
"""

from __future__ import annotations

import ctypes
import zlib
from functools import cache

from archsplit.errors import ToolNotFoundError
from archsplit.system.parallel import are_equal

__pure__ = True

_NO_STOP, _STOP_AT_BLOCK, _END_OF_STREAM = 0, 5, 1
"""``Z_NO_FLUSH``, ``Z_BLOCK`` and ``Z_STREAM_END``. Source: zlib.h, also of what follows."""
_AT_BLOCK_END, _UNUSED_BITS = 128, 7
"""Parts of ``data_type``: a flag, and the bits of the last byte that no block has used."""
_BLOCK_BITS = 3
"""Bits before a stored block is filled up to a byte."""
_RAW = -zlib.MAX_WBITS
_ZLIB = "libz.so.1"
_INSTALL_ZLIB = "install zlib, such as Debian's package zlib1g"
_LONGEST_BLOCK = 310_000
"""Unpacked bytes: a block of libdeflate has 300000, the last one up to 5000 more."""
_ENDINGS = (b"\0\0\xff\xff", b"\0\0\0\xff\xff")
"""An empty stored block: its three first bits fit into the last byte, or don't."""


class _State(ctypes.Structure):
    """``z_stream`` of zlib."""

    _fields_ = (
        ("next_in", ctypes.c_void_p),
        ("avail_in", ctypes.c_uint),
        ("total_in", ctypes.c_ulong),
        ("next_out", ctypes.c_void_p),
        ("avail_out", ctypes.c_uint),
        ("total_out", ctypes.c_ulong),
        ("message", ctypes.c_char_p),
        ("state", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p),
        ("free", ctypes.c_void_p),
        ("opaque", ctypes.c_void_p),
        ("data_type", ctypes.c_int),
        ("adler", ctypes.c_ulong),
        ("reserved", ctypes.c_ulong),
    )


@cache
def _zlib() -> ctypes.CDLL:
    """Return the C library zlib.

    Raises:
        ToolNotFoundError: there is no such library.
    """
    try:
        # Not `PyDLL`: other threads run during a call.
        return ctypes.CDLL(_ZLIB)
    except OSError as error:
        raise ToolNotFoundError(f"can't load zlib: {error}", hint=_INSTALL_ZLIB) from None


def without_final_block(stream: bytearray, content: bytes) -> bytearray:
    """Return a stream without its final block bit, aligned so that another stream can follow.

    Args:
        stream: raw deflate, made by libdeflate; it is changed.
        content: the unpacked stream; not empty.
    """
    *_, start, end = _block_ends(stream, content)
    stream[start // 8] ^= 1 << start % 8
    # The unused bits of the last byte are zeros, as the first three of the empty block are.
    stream += _ENDINGS[-end % 8 < _BLOCK_BITS]
    return stream


def _block_ends(stream: bytearray, content: bytes) -> list[int]:
    """Return the offsets in bits where the last blocks end, at least two."""
    library = _zlib()
    packed = (ctypes.c_char * len(stream)).from_buffer(stream)
    output = (ctypes.c_char * len(content))()
    state = _State(
        next_in=ctypes.addressof(packed),
        avail_in=len(stream),
        next_out=ctypes.addressof(output),
        # No stop before the last block can begin: each call waits for the interpreter afterwards.
        avail_out=max(0, len(content) - _LONGEST_BLOCK),
    )
    pointer = ctypes.byref(state)
    library.inflateInit2_(pointer, _RAW, zlib.ZLIB_VERSION.encode(), ctypes.sizeof(state))
    # A block that began before the first stop has no known beginning.
    ends, code = [] if state.avail_out else [0], 0
    try:
        if state.avail_out:
            code = library.inflate(pointer, _NO_STOP)
        state.avail_out = len(content) - state.total_out
        while code == 0:
            code = library.inflate(pointer, _STOP_AT_BLOCK)
            if state.data_type & _AT_BLOCK_END:
                ends.append(8 * state.total_in - (state.data_type & _UNUSED_BITS))
    finally:
        library.inflateEnd(pointer)
    # Another content than the packed one would be another error, found much later.
    is_content = state.total_out == len(content) and are_equal(
        memoryview(content), memoryview(output).cast("B")
    )
    if code != _END_OF_STREAM or len(ends) == 1 or not is_content:
        raise AssertionError("a deflate stream has a last block")
    return ends
