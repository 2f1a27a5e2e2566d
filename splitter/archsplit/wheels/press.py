"""Pack whatever is large in pieces: on all cores, and never holding more than a few of them.

The pieces' size is fixed, so the bytes that come out are the same whatever the number of threads.
libdeflate packs. Against zlib at its default level it made the same libraries (106 MB to 1 GB) no
larger, at four times the speed; zlib-ng and ISA-L were as fast or faster and made them 1 to 3 % and
2 to 11 % larger. And its output depends on its release and the level alone, not on what the
processor can do.
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import deflate

from archsplit.system.cores import available_cores
from archsplit.wheels.joining import without_final_block

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

__pure__ = True

PIECE = 4 << 20
"""Bytes, unpacked. Each piece begins without what the one before it was, which costs 0.01 %."""

_AT_ONCE = 12
"""Pieces in memory, packed or not: some 8 MB each where they hold device code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeflatePiece:
    """Some of a member's content.

    Attributes:
        owner: which member's.
        is_last: whether nothing follows it.
    """

    owner: int
    content: bytes = field(repr=False)
    is_last: bool


class ParallelDeflater:
    """Threads that pack; several archives may be written with one, each from a thread of its own.

    Args:
        threads: as many pieces are packed at a time; the cores there are, when None.
    """

    def __init__(self, threads: int | None = None) -> None:
        count = min(threads or available_cores(), _AT_ONCE)
        self._workers = ThreadPoolExecutor(count)
        self._turn = threading.Lock()
        self._room = threading.BoundedSemaphore(min(count + 2, _AT_ONCE))

    def close(self) -> None:
        """Wait for what is being packed, and forget the rest."""
        self._workers.shutdown(cancel_futures=True)

    def packed(
        self, pieces: Iterator[DeflatePiece], level: int
    ) -> Iterator[tuple[DeflatePiece, bytearray]]:
        """Pack the pieces; they come out in their order, each with what is to be written of it."""
        ahead: deque[tuple[DeflatePiece, Future[bytearray]]] = deque()
        try:
            for piece in pieces:
                # Whoever holds pieces gives one back before it waits for room.
                while not self._room.acquire(blocking=not ahead):
                    yield self._first(ahead)
                ahead.append((piece, self._workers.submit(self._packed, piece, level)))
            while ahead:
                yield self._first(ahead)
        finally:
            for _, future in ahead:
                future.cancel()
                self._room.release()

    def _first(
        self, ahead: deque[tuple[DeflatePiece, Future[bytearray]]]
    ) -> tuple[DeflatePiece, bytearray]:
        packed = ahead[0][1].result()
        piece, _ = ahead.popleft()
        self._room.release()
        return piece, packed

    def _packed(self, piece: DeflatePiece, level: int) -> bytearray:
        stream = deflate.deflate_compress(piece.content, level)
        return stream if piece.is_last else without_final_block(stream, piece.content, self._turn)
