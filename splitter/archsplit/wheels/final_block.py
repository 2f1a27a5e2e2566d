"""The end of a deflate stream, changed so that another stream can follow.

libdeflate makes whole streams only, and a member of a zip file is one stream. So each piece of a
member but the last loses its end, and an empty stored block fills the piece up to a byte:

    libdeflate   [block][block][LAST block]                 LAST is one bit at an unknown offset
    piece        [block][block][     block][stored, empty]  the bit is cleared, the end is aligned
    member       piece piece piece ... [block][LAST block]  the last piece stays

zlib's inflater can stop between two blocks, and tells the bit that it stopped at. Python's `zlib`
has no such call, so `_block_ends` calls the C library: five calls for a piece, and other threads
run meanwhile.

Where the C library isn't found, `_search` finds the same bit: while an inflater reads
the code tables at the start of a block, it gives nothing out. Each candidate is verified: with the
bit cleared the stream has to unpack to the same content and to go on. That takes thousands of short
calls. Source of the format: RFC 1951.
"""

from __future__ import annotations

import ctypes
import threading
import zlib
from typing import TYPE_CHECKING, NamedTuple

from archsplit.system.parallel import are_equal

if TYPE_CHECKING:
    from collections.abc import Iterator

__pure__ = True

_NO_STOP, _STOP_AT_BLOCK, _END_OF_STREAM = 0, 5, 1
"""``Z_NO_FLUSH``, ``Z_BLOCK`` and ``Z_STREAM_END``. Source: zlib.h, also of what follows."""
_AT_BLOCK_END, _UNUSED_BITS = 128, 7
"""Parts of ``data_type``: a flag, and the bits of the last byte that no block has used."""
_BLOCK_BITS = 3
"""Bits before a stored block is filled up to a byte."""
_RAW = -zlib.MAX_WBITS
_LONGEST_BLOCK = 310_000
"""Unpacked bytes: a block of libdeflate has 300000, the last one up to 5000 more."""
_STEP_SIZES = (48, 8)
"""Packed bytes: code tables take a hundred, or a dozen for monotonous content."""
_HEAD = 600
"""Packed bytes: more than any code tables take."""
_SYMBOLS = 9
"""Packed bytes: more than a symbol with output, and the end of a block."""
_STORED, _STATIC, _DYNAMIC = 0b001, 0b011, 0b101
"""The first three bits of a last block."""
_SHORT = 64
"""Packed bytes: such a short block may have no silent step."""
_LONGEST_STATIC = 4096
"""Packed bytes: a longer block is shorter with code tables of its own."""
_LONGEST_STORED = 0xFFFF
_STORED_HEAD = 5
_TAIL_BLOCK = 1 << 16
_PART = 48 << 8
"""Packed bytes between checkpoints: whole steps; the last block begins near the end."""
_ENDINGS = (b"\0\0\xff\xff", b"\0\0\0\xff\xff")
"""An empty stored block: its three first bits fit into the last byte, or don't."""
_LAST = b"\3\0"
"""An empty last block."""


class _State(ctypes.Structure):
    """The ``z_stream`` of zlib."""

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


def load_zlib(name: str = "libz.so.1") -> ctypes.CDLL | None:
    """Return the C library zlib, or None where there is none."""
    try:
        # Not `PyDLL`: other threads run during a call.
        return ctypes.CDLL(name)
    except OSError:
        # A Python may have zlib built in, and Windows has another name for it.
        return None


ZLIB = load_zlib()
_search_lock = threading.Lock()


def without_final_block(
    stream: bytearray, content: bytes, library: ctypes.CDLL | None = ZLIB
) -> bytearray:
    """Return a stream without its final block bit, aligned so that another stream can follow.

    Args:
        stream: raw deflate, made by libdeflate; it may be changed.
        content: the unpacked stream; not empty.
        library: zlib; None to search without it.
    """
    ends = () if library is None else _block_ends(stream, content, library)
    if ends:
        *_, start, end = ends
        stream[start // 8] ^= 1 << start % 8
        # The unused bits of the last byte are zeros, as the first three of the empty block are.
        stream += _ENDINGS[-end % 8 < _BLOCK_BITS]
        return stream
    # Several threads would mostly wait for the interpreter lock, which each short call releases.
    with _search_lock:
        return _search(stream, content)


def _block_ends(stream: bytearray, content: bytes, library: ctypes.CDLL) -> tuple[int, ...]:
    """Return the offsets in bits where the last blocks end, at least two; empty after a failure."""
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
    return tuple(ends) if code == _END_OF_STREAM and len(ends) > 1 and is_content else ()


def inflate_part(
    packed: bytes, most: int, library: ctypes.CDLL, *, is_last: bool
) -> memoryview | None:
    """Inflate a part of a stream; return None if it can't be inflated by itself.

    Args:
        packed: a part that begins and ends with a block, and whole bytes.
        most: bytes of the result.
        is_last: True for the end of the stream.
    """
    output = (ctypes.c_char * most)()
    state = _State(
        next_in=ctypes.cast(ctypes.c_char_p(packed), ctypes.c_void_p),
        avail_in=len(packed),
        next_out=ctypes.addressof(output),
        avail_out=most,
    )
    pointer = ctypes.byref(state)
    library.inflateInit2_(pointer, _RAW, zlib.ZLIB_VERSION.encode(), ctypes.sizeof(state))
    # A reference to what is before the part is an error: the new inflater has no such bytes.
    code = library.inflate(pointer, _NO_STOP)
    library.inflateEnd(pointer)
    # Otherwise exactly between two blocks: no other flag, and no unused bits.
    is_end = code == _END_OF_STREAM if is_last else (code, state.data_type) == (0, _AT_BLOCK_END)
    is_whole = is_end and state.avail_in == 0
    return memoryview(output).cast("B")[: state.total_out] if is_whole else None


def _search(stream: bytearray, content: bytes) -> bytearray:
    tail = _Tail(stream, content)
    for start, end, kind in tail.candidate_ranges():
        if (new := tail.without_end(start, end, kind)) is not None:
            return stream[: len(stream) - len(tail.packed)] + new
    # The last candidate is the whole tail, so the search can't miss.
    raise AssertionError("a deflate stream has a last block")


class _Checkpoint(NamedTuple):
    """An offset in the tail, and an inflater that has read up to it.

    Attributes:
        at: packed bytes of the tail before the checkpoint.
        unpacked: unpacked bytes before the checkpoint.
        inflater: its state; copied before use.
    """

    at: int
    unpacked: int
    inflater: zlib._Decompress


class _Tail:
    """The end of a stream, long enough to contain the start of the last block.

    Attributes:
        packed: the bytes of the tail.
    """

    def __init__(self, stream: bytearray, content: bytes) -> None:
        self._inflater = zlib.decompressobj(_RAW)
        unpacked = at = 0
        while (remaining := len(content) - _LONGEST_BLOCK - unpacked) > 0:
            unpacked += len(self._inflater.decompress(stream[at : at + _TAIL_BLOCK], remaining))
            at = min(at + _TAIL_BLOCK, len(stream)) - len(self._inflater.unconsumed_tail)
        # The last block begins within the last 310,000 unpacked bytes.
        self.packed = bytes(stream[at:])
        self._content = content[unpacked:]
        self._checkpoints = list(self._make_checkpoints())

    def candidate_ranges(self) -> Iterator[tuple[int, int, int]]:
        """Yield ranges for the start of the last block, with its first bits; likely ones first."""
        for step in _STEP_SIZES:
            for at in self._silent_offsets(step):
                # The block begins in the silent step or ends the one before it.
                yield max(0, at - step), at + _SYMBOLS, _DYNAMIC
        size = len(self.packed)
        yield max(0, size - _SHORT), size, _DYNAMIC
        yield from ((start, start + 2, _STORED) for start in self._stored_block_offsets())
        yield max(0, size - _LONGEST_STATIC), size, _STATIC
        yield from ((0, size, kind) for kind in (_DYNAMIC, _STATIC))

    def without_end(self, start: int, end: int, kind: int) -> bytes | None:
        """Return the tail without its end, if the last block begins in the range."""
        # An inflater can't go backwards, so it starts at the last checkpoint before the range.
        nearest = next(one for one in reversed(self._checkpoints) if one.at <= start)
        inflater = nearest.inflater.copy()
        unpacked = nearest.unpacked + len(inflater.decompress(self.packed[nearest.at : start]))
        rest, expected = self.packed[start:], self._content[unpacked:]
        bits, mask = int.from_bytes(rest[: end - start + 1], "little"), kind | 7
        for bit in (bit for bit in range(8 * (end - start)) if bits >> bit & mask == kind):
            head = bytearray(rest[: bit // 8 + _HEAD])
            head[bit // 8] ^= 1 << bit % 8
            # A quick check of the block's first bytes refuses nearly all wrong bits.
            first = _inflate(inflater.copy(), bytes(head))
            if first is None or not expected.startswith(first):
                continue
            # Which one fits depends on the number of bits that the block uses of its last byte.
            for ending in _ENDINGS:
                changed = head + rest[len(head) :] + ending
                if _inflate(inflater.copy(), bytes(changed + _LAST), whole=True) == expected:
                    return self.packed[:start] + changed
        return None

    def _make_checkpoints(self) -> Iterator[_Checkpoint]:
        inflater, unpacked = self._inflater.copy(), 0
        for at in range(0, len(self.packed), _PART):
            yield _Checkpoint(at=at, unpacked=unpacked, inflater=inflater.copy())
            unpacked += len(inflater.decompress(self.packed[at : at + _PART]))

    def _silent_offsets(self, step: int) -> Iterator[int]:
        """Yield the offsets of steps without output, from the end of the stream."""
        for checkpoint in reversed(self._checkpoints):
            inflater = checkpoint.inflater.copy()
            end = min(checkpoint.at + _PART, len(self.packed))
            silent = {
                at
                for at in range(checkpoint.at, end, step)
                if not inflater.decompress(self.packed[at : at + step])
            }
            yield from sorted((at for at in silent if at - step not in silent), reverse=True)
        yield 0

    def _stored_block_offsets(self) -> Iterator[int]:
        """Yield the offsets of stored blocks that would end with the stream, by their length."""
        size = len(self.packed)
        for length in range(1, min(_LONGEST_STORED, size - _STORED_HEAD) + 1):
            head = size - length - 4
            sizes = length.to_bytes(2, "little") + (length ^ 0xFFFF).to_bytes(2, "little")
            if self.packed[head : head + 4] == sizes:
                yield max(0, head - 2)


def _inflate(inflater: zlib._Decompress, packed: bytes, *, whole: bool = False) -> bytes | None:
    try:
        content = inflater.decompress(packed)
    except zlib.error:
        # Most candidates are no blocks at all.
        return None
    is_whole = inflater.eof and not inflater.unused_data
    return content if is_whole or not whole else None
