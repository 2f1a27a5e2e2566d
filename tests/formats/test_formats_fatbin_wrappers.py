from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest
from formats_samples import WRAPPED

from archsplit.errors import BinaryFormatError
from archsplit.formats.elf import Elf
from archsplit.formats.elf_dynamic import Dynamic, Tag, read_pointers, section_symbols
from archsplit.formats.fatbin import WRAPPER_SECTION, host_containers, read_wrappers
from archsplit.formats.reader import Window

if TYPE_CHECKING:
    from formats_samples import Samples

pytestmark = pytest.mark.nvcc


@pytest.mark.parametrize(
    ("name", "versions"),
    [
        ("libkernels.so", [1]),
        ("librdc.so", [1, 2]),
        ("librelr.so", [1]),
        ("program", [1]),
        ("libaarch64.so", [1]),
        ("kernels.o", [1]),
        ("rdc.o", [1]),
        ("linked.o", [2]),
        ("aarch64.o", [1]),
    ],
)
def test_every_wrapper_has_its_container(samples: Samples, name: str, versions: list[int]) -> None:
    elf = Elf(samples.window(name))
    wrappers = list(read_wrappers(elf))
    assert [wrapper.version for wrapper in wrappers] == versions
    found = {wrapper.container.offset for wrapper in wrappers if wrapper.container is not None}
    assert found == {container.offset for _, container in host_containers(elf)}


def _relocation_at(elf: Elf) -> int:
    """Return the file offset of the relocation of the only wrapper's pointer."""
    section = elf.section(WRAPPER_SECTION)
    assert section is not None
    (pointer,) = read_pointers(elf, Dynamic(elf), section.addresses)
    assert pointer.record is not None
    return pointer.record


@pytest.mark.parametrize("name", ["libkernels.so", "libaarch64.so"])
def test_the_pointer_is_the_addend_of_a_relocation(samples: Samples, name: str) -> None:
    elf = Elf(samples.window(name))
    (wrapper,) = read_wrappers(elf)
    assert wrapper.container is not None
    data, at = bytearray(samples.bytes(name)), _relocation_at(elf) + 16
    (addend,) = struct.unpack_from("<Q", data, at)
    struct.pack_into("<Q", data, at, addend + 8)
    struct.pack_into("<IHHQ", data, wrapper.container.offset + 8, 0xBA55ED50, 1, 16, 0)
    (moved,) = read_wrappers(Elf(Window(bytes(data), source="moved")))
    assert moved.container is not None
    assert moved.container.offset == wrapper.container.offset + 8


def test_a_library_without_wrappers_has_none(samples: Samples) -> None:
    assert list(read_wrappers(Elf(samples.window("sm_90a.cubin")))) == []


def _damaged(samples: Samples, name: str, at: int, layout: str, value: int) -> Elf:
    data = bytearray(samples.bytes(name))
    struct.pack_into(layout, data, at, value)
    return Elf(Window(bytes(data), source="damaged"))


@pytest.mark.parametrize(
    ("offset", "value", "what"),
    [(0, 1, "magic of a wrapper"), (4, 3, "version of a wrapper")],
)
def test_refuses_damaged_wrappers(samples: Samples, offset: int, value: int, what: str) -> None:
    section = Elf(samples.window("libkernels.so")).section(WRAPPER_SECTION)
    assert section is not None
    elf = _damaged(samples, "libkernels.so", section.offset + offset, "<I", value)
    with pytest.raises(BinaryFormatError, match=what):
        list(read_wrappers(elf))


def test_refuses_a_pointer_to_something_else(samples: Samples) -> None:
    at = _relocation_at(Elf(samples.window("libkernels.so")))
    elf = _damaged(samples, "libkernels.so", at + 16, "<Q", 0)
    with pytest.raises(BinaryFormatError, match="fatbin container's magic"):
        list(read_wrappers(elf))


def test_machine_with_unknown_relocations_is_refused(samples: Samples) -> None:
    for name in ("libkernels.so", "kernels.o"):
        with pytest.raises(BinaryFormatError, match="ELF machine at offset 0x12: found 21"):
            list(read_wrappers(_damaged(samples, name, 18, "<H", 21)))


def test_a_pointer_without_a_relocation_is_not_guessed(samples: Samples) -> None:
    at = _relocation_at(Elf(samples.window("libkernels.so")))
    (lost,) = read_wrappers(_damaged(samples, "libkernels.so", at + 8, "<Q", 37))
    assert lost.container is None


@pytest.mark.parametrize("pointer", ["elsewhere", "absolute", "0"])
def test_pointer_out_of_an_object_is_not_guessed(samples: Samples, pointer: str) -> None:
    text = WRAPPED.format(fatbin="plain.fatbin", pointer=pointer) + "absolute = 8\n"
    (samples.folder / "lost.S").write_text(text)
    samples.link("lost.o", "-c", "lost.S")
    (lost,) = read_wrappers(Elf(samples.window("lost.o")))
    assert lost.container is None


def test_refuses_two_sections_of_wrappers(samples: Samples) -> None:
    text = WRAPPED.format(fatbin="plain.fatbin", pointer="fatbin")
    (samples.folder / "two.S").write_text(text + '.section .nvFatBinSegment,"awG",%progbits,g\n')
    samples.link("two.o", "-c", "two.S")
    with pytest.raises(BinaryFormatError, match=r"sections for .nvFatBinSegment"):
        list(read_wrappers(Elf(samples.window("two.o"))))


@pytest.mark.parametrize("packing", ["nopack-relative-relocs", "pack-relative-relocs"])
def test_pointers_packed_or_not_are_the_same(samples: Samples, packing: str) -> None:
    source = "int x; int *many[200] = {[0 ... 149] = &x, [199] = &x}; int *after = &x;"
    (samples.folder / "many.c").write_text(source)
    hidden = ("-shared", "-fPIC", "-fvisibility=hidden", "-nostdlib", "many.c")
    samples.link("libmany.so", *hidden, f"-Wl,-z,{packing}")
    elf = Elf(samples.window("libmany.so"))
    table = elf.section(".symtab")
    assert table is not None
    address = {symbol.name: symbol.value for symbol in section_symbols(elf, table)}
    many = address["many"]
    pointers = list(read_pointers(elf, Dynamic(elf), range(many, many + 8 * 200)))
    assert [(pointer.address - many) // 8 for pointer in pointers] == [*range(150), 199]
    assert {pointer.value for pointer in pointers} == {address["x"]}
    is_packed = packing.startswith("pack")
    assert {pointer.record is None for pointer in pointers} == {is_packed}
    assert (Tag.RELR in Dynamic(elf).values) == is_packed
    elsewhere = range(address["x"] + 1, address["x"] + 2)
    assert not list(read_pointers(elf, Dynamic(elf), values=elsewhere))
