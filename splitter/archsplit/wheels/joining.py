"""Take the end off a deflate stream, so that another stream can follow.

libdeflate makes whole streams only. A member that is packed in pieces, on several cores, has to be
one stream, and a single bit is in the way: the one by which the last block says that it is the
last. Nothing says where it is. So the stream's end is unpacked in small steps: while the inflater
reads the code tables at the beginning of a block, it gives nothing out. Whatever is found so is
proved: without that bit the stream unpacks to the same, and goes on.

Source of the format: RFC 1951.
"""

from __future__ import annotations

import zlib
from contextlib import nullcontext
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

__pure__ = True

_RAW = -zlib.MAX_WBITS
_LONGEST_BLOCK = 310_000
"""libdeflate's blocks stand for 300000 bytes, the last one for up to 5000 more."""
_STEPS = (48, 8)
"""Packed bytes: code tables take a hundred, or a dozen where there is little to tell."""
_HEAD = 600
"""Packed bytes: more than any code tables take."""
_SYMBOLS = 9
"""Packed bytes: more than one symbol that gives something out, and a block's end."""
_STORED, _STATIC, _DYNAMIC = 0b001, 0b011, 0b101
"""The first three bits of a last block."""
_SHORT = 64
"""Packed bytes: in so few it can happen that no step is silent."""
_LONGEST_STATIC = 4096
"""Packed bytes: a block with more in it is shorter with code tables of its own."""
_LONGEST_STORED = 0xFFFF
_STORED_HEAD = 5
_TAIL_BLOCK = 1 << 16
_PART = 48 << 8
"""Packed bytes of the tail, in whole steps: most last blocks begin in one of the last few parts."""
_ENDINGS = (b"\0\0\xff\xff", b"\0\0\0\xff\xff")
"""A stored block without content; its first three bits, zeros, fit into the last byte or don't."""
_LAST = b"\3\0"
"""A last block without content."""


def without_final_block(
    stream: bytearray, content: bytes, turn: AbstractContextManager[object] | None = None
) -> bytearray:
    """The same stream without its end, up to a byte's boundary: any other stream may follow it.

    Args:
        stream: raw deflate, made by libdeflate.
        content: what it unpacks to; not empty.
        turn: held while the end is looked for. That is thousands of short calls, each of which
            lets go of the interpreter: several threads at a time would wait more than they do.
    """
    tail = _Tail(stream, content)
    with turn or nullcontext():
        for start, end, kind in tail.ranges():
            if (opened := tail.opened(start, end, kind)) is not None:
                return stream[: len(stream) - len(tail.packed)] + opened
    raise AssertionError("a deflate stream has a last block")


class _Mark(NamedTuple):
    """A place in the tail, and an inflater that has come to it.

    Attributes:
        at: packed bytes of the tail before it.
        known: what they unpack to, in bytes.
    """

    at: int
    known: int
    inflater: zlib._Decompress


class _Tail:
    """The end of a stream, in which its last block begins.

    Attributes:
        packed: its bytes.
    """

    def __init__(self, stream: bytearray, content: bytes) -> None:
        self._inflater = zlib.decompressobj(_RAW)
        known = at = 0
        while (left := len(content) - _LONGEST_BLOCK - known) > 0:
            known += len(self._inflater.decompress(stream[at : at + _TAIL_BLOCK], left))
            at = min(at + _TAIL_BLOCK, len(stream)) - len(self._inflater.unconsumed_tail)
        self.packed = bytes(stream[at:])
        self._content = content[known:]
        self._marks = list(self._marked())

    def ranges(self) -> Iterator[tuple[int, int, int]]:
        """Where the last block may begin, in bytes, and its first bits; the likely ones first."""
        for step in _STEPS:
            for place in self._silences(step):
                yield max(0, place - step), place + _SYMBOLS, _DYNAMIC
        size = len(self.packed)
        yield max(0, size - _SHORT), size, _DYNAMIC
        yield from ((start, start + 2, _STORED) for start in self._stored())
        yield max(0, size - _LONGEST_STATIC), size, _STATIC
        yield from ((0, size, kind) for kind in (_DYNAMIC, _STATIC))

    def opened(self, start: int, end: int, kind: int) -> bytes | None:
        """The tail without an end, if its last block begins between two bytes with these bits."""
        mark = next(mark for mark in reversed(self._marks) if mark.at <= start)
        inflater = mark.inflater.copy()
        known = mark.known + len(inflater.decompress(self.packed[mark.at : start]))
        rest, wanted = self.packed[start:], self._content[known:]
        bits, mask = int.from_bytes(rest[: end - start + 1], "little"), kind | 7
        for bit in (bit for bit in range(8 * (end - start)) if bits >> bit & mask == kind):
            head = bytearray(rest[: bit // 8 + _HEAD])
            head[bit // 8] ^= 1 << bit % 8
            begun = _unpacked(inflater.copy(), bytes(head))
            if begun is None or not wanted.startswith(begun):
                continue
            for ending in _ENDINGS:
                changed = head + rest[len(head) :] + ending
                if _unpacked(inflater.copy(), bytes(changed + _LAST), whole=True) == wanted:
                    return self.packed[:start] + changed
        return None

    def _marked(self) -> Iterator[_Mark]:
        inflater, known = self._inflater.copy(), 0
        for at in range(0, len(self.packed), _PART):
            yield _Mark(at=at, known=known, inflater=inflater.copy())
            known += len(inflater.decompress(self.packed[at : at + _PART]))

    def _silences(self, step: int) -> Iterator[int]:
        """The bytes before which code tables begin, the last ones first."""
        for mark in reversed(self._marks):
            inflater, end = mark.inflater.copy(), min(mark.at + _PART, len(self.packed))
            silent = {
                at
                for at in range(mark.at, end, step)
                if not inflater.decompress(self.packed[at : at + step])
            }
            yield from sorted((at for at in silent if at - step not in silent), reverse=True)
        yield 0

    def _stored(self) -> Iterator[int]:
        """A stored block tells its length, and the last one's leads to the stream's end."""
        size = len(self.packed)
        for length in range(1, min(_LONGEST_STORED, size - _STORED_HEAD) + 1):
            head = size - length - 4
            sizes = length.to_bytes(2, "little") + (length ^ 0xFFFF).to_bytes(2, "little")
            if self.packed[head : head + 4] == sizes:
                yield max(0, head - 2)


def _unpacked(inflater: zlib._Decompress, packed: bytes, *, whole: bool = False) -> bytes | None:
    try:
        content = inflater.decompress(packed)
    except zlib.error:
        return None
    is_whole = inflater.eof and not inflater.unused_data
    return content if is_whole or not whole else None
