"""Random damage: every file is read, or refused with the one exception."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from archsplit.devicecode.kernels import read_kernels
from archsplit.devicecode.scan import read_contents
from archsplit.errors import BinaryFormatError
from archsplit.formats.reader import Window

if TYPE_CHECKING:
    from compiled_samples import Samples

NAMES = ["kernels.fatbin", "plain.cubin", "zstd.o", "liboutside.so", "libstripped.so"]


def survives(content: bytes) -> None:
    """Expect bytes to be read or refused with the one exception."""
    window = Window(content, source="damaged")
    try:
        found = read_contents(window)
    except BinaryFormatError:
        return
    read_kernels(window, found.units)


@pytest.mark.parametrize("name", [*NAMES, "libkernels.a"])
def test_file_truncated_anywhere_does_not_crash_the_scan(samples: Samples, name: str) -> None:
    whole = (samples / name).read_bytes()
    step = max(1, len(whole) // 400)
    for size in (*range(0, 300, 3), *range(300, len(whole), step)):
        survives(whole[:size])


@pytest.mark.parametrize("name", NAMES)
def test_randomly_changed_bytes_do_not_crash_the_scan(samples: Samples, name: str) -> None:
    whole = (samples / name).read_bytes()
    dice = random.Random(name)
    for _ in range(300):
        content = bytearray(whole)
        for _ in range(dice.choice((1, 1, 4, 16))):
            content[dice.randrange(len(content))] = dice.choice((0, 1, 0x7F, 0xFF))
        survives(bytes(content))
