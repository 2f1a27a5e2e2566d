from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest

from archsplit.arch.target import Capability, Target
from archsplit.errors import BinaryFormatError
from archsplit.formats.cubin import Cubin, Kernel
from archsplit.formats.elf import Elf
from archsplit.formats.reader import Window

if TYPE_CHECKING:
    from formats_samples import Samples

pytestmark = pytest.mark.nvcc


@pytest.mark.parametrize("target", ["sm_75", "sm_90a", "sm_100f"])
def test_capability_and_noted_target_of_a_cubin_are_read(samples: Samples, target: str) -> None:
    cubin = Cubin(samples.window(f"{target}.cubin"))
    assert cubin.noted_target() == Target.parse(target)
    assert cubin.capability == Target.parse(target).capability


def test_kernels_are_the_sections_of_code(samples: Samples) -> None:
    cubin = Cubin(samples.window("sm_90a.cubin"))
    code = {
        section.name.removeprefix(".text."): section.size
        for section in cubin.elf.sections()
        if section.name.startswith(".text.")
    }
    kernels = list(cubin.kernels())
    assert {kernel.name: kernel.size for kernel in kernels} == code
    assert {kernel.name for kernel in kernels} == {"_Z5scalePff", "_Z5shiftPff"}
    assert all(isinstance(kernel, Kernel) for kernel in kernels)


def test_the_toolkit_is_noted(samples: Samples) -> None:
    data = samples.bytes("sm_90a.cubin")
    section = Cubin(samples.window("sm_90a.cubin")).elf.section(".note.nv.cuinfo")
    if section is None:
        pytest.skip("this toolkit is older than the note")
    version = Cubin(samples.window("sm_90a.cubin")).toolkit_version()
    assert version is not None
    assert version >= 13000
    noted = struct.pack("<H", version // 1000 * 10 + version % 1000 // 10)
    for found, changed, expected in (
        (noted, struct.pack("<H", 132), 13020),
        (noted, b"\xff\xff", None),
        (b"NVIDIA Corp\0", b"ANOTHER Corp", None),
        (b".note.nv.cuinfo", b".note.nv.cuelse", None),
    ):
        # The section's names come before the notes.
        at = data.find(found, 0 if found[:1] == b"." else section.offset)
        other = data[:at] + changed + data[at + len(found) :]
        assert Cubin(Window(other, source="changed")).toolkit_version() == expected


def test_device_functions_are_not_kernels(samples: Samples) -> None:
    source = "__device__ __noinline__ int f(int x) { return x * x; } "
    source += "__global__ void kernel(int *x) { *x = f(*x); }"
    (samples.folder / "functions.cu").write_text(source)
    options = ("-cubin", "-rdc=true", "functions.cu")
    samples.compile("functions.cubin", *options, targets=("-arch=sm_80",))
    cubin = Cubin(samples.window("functions.cubin"))
    assert [kernel.name for kernel in cubin.kernels()] == ["_Z6kernelPi"]


def changed(samples: Samples, offset: int, layout: str, value: int) -> Cubin:
    data = bytearray(samples.bytes("sm_90a.cubin"))
    struct.pack_into(layout, data, offset, value)
    return Cubin(Window(bytes(data), source="changed"))


def test_the_older_abi_has_the_number_in_the_lowest_byte(samples: Samples) -> None:
    data = bytearray(samples.bytes("sm_90a.cubin"))
    data[8] = 7
    struct.pack_into("<I", data, 48, 0x005A055A)
    assert Cubin(Window(bytes(data), source="older")).capability == Capability(9, 0)


@pytest.mark.parametrize(
    ("offset", "layout", "value", "what"),
    [
        (18, "<H", 62, "ELF machine at offset 0x12: found 62, expected 190 for CUDA"),
        (8, "<B", 9, "ABI version of a cubin at offset 0x8: found 9, expected 7 or 8"),
        (48, "<I", 0x0600_0104, "flags of a cubin at offset 0x30: found sm 1,"),
    ],
)
def test_refuses_unknown_headers(
    samples: Samples, offset: int, layout: str, value: int, what: str
) -> None:
    with pytest.raises(BinaryFormatError, match=what):
        changed(samples, offset, layout, value)


def test_note_against_the_header_is_refused(samples: Samples) -> None:
    cubin = changed(samples, 48, "<I", 0x0600_5004)
    with pytest.raises(BinaryFormatError, match=r"found sm_90a, expected one of capability 8.0"):
        cubin.noted_target()


def _without(samples: Samples, old: bytes, new: bytes) -> Cubin:
    data = samples.bytes("sm_90a.cubin")
    assert old in data
    return Cubin(Window(data.replace(old, new), source="without"))


def test_a_cubin_need_not_note_its_target(samples: Samples) -> None:
    assert _without(samples, b"-arch sm_90a", b"-arch xx_90a").noted_target() is None
    assert _without(samples, b".note.nv.tkinfo", b".note.nv.xxinfo").noted_target() is None


def test_a_cubin_without_symbols_has_no_kernels(samples: Samples) -> None:
    data = bytearray(samples.bytes("sm_90a.cubin"))
    elf = Elf(samples.window("sm_90a.cubin"))
    table = elf.section(".symtab")
    assert table is not None
    struct.pack_into("<I", data, struct.unpack_from("<Q", data, 40)[0] + 64 * table.index + 4, 1)
    assert list(Cubin(Window(bytes(data), source="stripped")).kernels()) == []
