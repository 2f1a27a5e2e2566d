from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest
from formats_samples import DESCRIPTOR
from fuzz_formats import campaign, read_all

from archsplit.errors import BinaryFormatError
from archsplit.formats.elf import Elf
from archsplit.formats.reader import Window

if TYPE_CHECKING:
    from formats_samples import Samples

pytestmark = pytest.mark.nvcc
SEEDS = (
    "kernels.o",
    "compressed.o",
    "plain.fatbin",
    "linked.o",
    "libkernels.so",
    "librdc.so",
    "librelr.so",
    "libaarch64.so",
    "program",
    "sm_90a.cubin",
)


def test_damaged_files_raise_nothing_else(samples: Samples) -> None:
    files = [*(samples.bytes(name) for name in SEEDS), DESCRIPTOR.encode()]
    readings = campaign(files, seed=1, go_on=lambda count: count < 2000)
    assert readings.files == 2000
    assert 0 < readings.refused < readings.files * 10


@pytest.mark.parametrize("name", ["libsmall.so", "plain.fatbin", "sm_75.cubin"])
def test_files_cut_short_raise_nothing_else(samples: Samples, name: str) -> None:
    if name.endswith(".so"):
        samples.link(name, "-shared", "-nostdlib", "-s", "-Wl,-z,noseparate-code", "linked.o")
    data = samples.bytes(name)
    for size in range(0, len(data), 1 if len(data) < 6000 else 7):
        read_all(data[:size])


def test_many_sections_with_one_long_name_cost_no_time() -> None:
    names_at, rows = 64 * 20_000, 20_000 - 1
    header = (0x464C457F, 2, 1, 1, 0, 3, 62, 1, 0, 0, 64, 0, 64, 56, 0, 64, rows, 1)
    data = bytearray(struct.pack("<IBBBxB7xHHIQQQIHHHHHH", *header))
    row = struct.pack("<IIQQQQIIQQ", 0, 1, 0, 0, names_at, 1 << 20, 0, 0, 1, 0)
    data += row * rows + b"n" * ((1 << 20) - 1) + b"\0"
    with pytest.raises(BinaryFormatError, match="repeat without end"):
        list(Elf(Window(bytes(data), source="names")).sections())
