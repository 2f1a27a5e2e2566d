"""Random bytes of many kinds, for encoders: noise, few letters, copies near and far, long runs."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def random_blocks(seed: int, count: int) -> Iterator[bytes]:
    source = random.Random(seed)
    for _ in range(count):
        largest = 18 if source.random() < 0.1 else 13
        yield _block(source, int(math.pow(2, source.random() * largest)))


def _block(source: random.Random, size: int) -> bytes:
    kind = source.randrange(5)
    if kind == 0:
        return source.randbytes(size)
    if kind == 1:
        letters = source.randint(1, 8)
        return bytes(source.randrange(letters) for _ in range(size))
    block = bytearray(source.randbytes(source.randint(1, 64)))
    while len(block) < size:
        if source.random() < (0.95 if kind == 4 else 0.7):
            length = int(math.pow(2, source.random() * (12 if kind == 4 else 8)))
            start = source.randrange(len(block))
            # Byte by byte: a copy may overlap itself.
            for i in range(length):
                block.append(block[start + i])
            if kind == 3 and source.random() < 0.5:
                block[-1] ^= source.randrange(256)
        else:
            block += source.randbytes(source.randint(1, 20))
    return bytes(block[:size])
