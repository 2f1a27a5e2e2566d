from __future__ import annotations

import dataclasses
import struct
from typing import TYPE_CHECKING, Any

import pytest
from formats_samples import DESCRIPTOR, NOTED
from hypothesis import given
from hypothesis import strategies as st

from archsplit.arch.target import Capability, CodeKind, Target
from archsplit.errors import BinaryFormatError
from archsplit.formats.descriptor import (
    Descriptor,
    Shape,
    decode_note,
    encode_note,
    read_descriptor,
)
from archsplit.formats.elf import Elf

if TYPE_CHECKING:
    from formats_samples import Samples

ENCODED = DESCRIPTOR.encode()
SUFFIXES: tuple[Any, ...] = ("", "a", "f")
targets = st.builds(
    Target,
    kind=st.sampled_from(CodeKind),
    capability=st.builds(Capability, st.integers(1, 999), st.integers(0, 9)),
    suffix=st.sampled_from(SUFFIXES),
)
descriptors = st.builds(
    Descriptor,
    package=st.lists(st.text("az09", min_size=1), min_size=1, max_size=4).map("-".join),
    version=st.lists(st.integers(0, 999).map(str), min_size=1, max_size=4).map(".".join),
    build_id=st.binary(min_size=32, max_size=32),
    interface_hash=st.binary(min_size=32, max_size=32),
    cuda_version=st.integers(1, 0xFFFF_FFFF),
    shape=st.sampled_from(Shape),
    targets=st.lists(targets, min_size=1, max_size=20, unique=True).map(tuple),
)


@given(descriptors)
def test_decoding_is_the_inverse_of_encoding(descriptor: Descriptor) -> None:
    assert decode_note(descriptor.encode()) == descriptor


def test_the_layout_is_the_contracts() -> None:
    fixed = struct.unpack_from("<IIHHIIIIIIIHHI", ENCODED)
    rows = 112 + 2 * 8
    length = len(ENCODED)
    assert fixed == (112, length, 1, 0, 1, 13000, rows, 7, rows + 7, 5, 112, 8, 2, 0)
    assert ENCODED[48:112] == bytes(range(64))
    assert struct.unpack_from("<8H", ENCODED, 112) == (1, 9, 0, 0x61, 2, 12, 0, 0)
    assert ENCODED[rows : rows + 12] == b"vecsort1.2.3"
    assert length % 4 == 0


def test_the_note_is_owned_by_archsplit() -> None:
    note = encode_note(DESCRIPTOR)
    assert note[:24] == struct.pack("<III", 10, len(ENCODED), 1) + b"archsplit\0\0\0"
    assert note[24:] == ENCODED


@pytest.mark.parametrize("size", range(len(ENCODED)))
def test_a_descriptor_cut_anywhere_is_refused(size: int) -> None:
    with pytest.raises(BinaryFormatError):
        decode_note(ENCODED[:size])


def with_number(offset: int, layout: str, value: int) -> bytes:
    data = bytearray(ENCODED)
    struct.pack_into(layout, data, offset, value)
    return bytes(data)


@pytest.mark.parametrize(
    ("offset", "layout", "value", "what"),
    [
        (8, "<H", 2, "contract version at offset 0x8: found 2, expected 1"),
        (4, "<I", 200, "total size at offset 0x4: found 200, expected 140"),
        (0, "<I", 111, "fixed size at offset 0x0: found 111, expected 112 to 140"),
        (0, "<I", 141, "fixed size at offset 0x0: found 141, expected 112 to 140"),
        (12, "<I", 3, "shape at offset 0xc: found 3, expected 1 or 2"),
        (16, "<I", 0, "CUDA version 0 is not positive"),
        (20, "<I", 0xFFFF_FFF0, "package at offset"),
        (24, "<I", 0, "package '' is not a normalized project name"),
        (24, "<I", 0xFFFF_FFFF, "package at offset"),
        (32, "<I", 0, "version '' is not one word"),
        (36, "<I", 113, "offset of the targets at offset 0x24: found 113, expected one in fours"),
        (36, "<I", 1 << 31, "targets at offset"),
        (40, "<H", 7, "size of a target at offset 0x28: found 7, expected 8 or more, in fours"),
        (40, "<H", 10, "size of a target at offset 0x28: found 10, expected 8 or more, in fours"),
        (20, "<I", 108, "offset of the package at offset 0x14: found 108, expected 112 or more"),
        (28, "<I", 111, "offset of the version at offset 0x1c: found 111, expected 112 or more"),
        (36, "<I", 108, "offset of the targets at offset 0x24: found 108, expected 112 or more"),
        (42, "<H", 0, "0 targets, not 1 to 64"),
        (42, "<H", 0xFFFF, "targets at offset"),
        (112, "<H", 3, "kind of a target at offset 0x70: found 3, expected 1 or 2"),
        (114, "<H", 0, "0.0 is not a compute capability"),
        (118, "<H", 0x62, "suffix of a target at offset 0x76: found 98, expected 0, 'a' or 'f'"),
        (128, "<B", 0x56, "package 'Vecsort' is not a normalized project name"),
        (128, "<B", 0xFF, "can't decode byte 0xff"),
        (135, "<B", 0, "is not one word of printable ASCII"),
    ],
)
def test_refuses_damage(offset: int, layout: str, value: int, what: str) -> None:
    with pytest.raises(BinaryFormatError) as caught:
        decode_note(with_number(offset, layout, value))
    assert what in str(caught.value)
    assert str(caught.value).startswith("descriptor: ")


def test_too_long_descriptor_is_refused() -> None:
    long = bytearray(ENCODED + bytes(8192))
    struct.pack_into("<I", long, 4, len(long))
    with pytest.raises(BinaryFormatError, match=r"total size .*, expected 8192 or less"):
        decode_note(bytes(long))


def test_a_later_minor_version_may_be_longer() -> None:
    later = bytearray(ENCODED[:112] + b"more" + ENCODED[112:])
    row, text = 116, 116 + 2 * 8
    struct.pack_into("<IIHH", later, 0, 116, len(later), 1, 7)
    struct.pack_into("<IIIII", later, 20, text, 7, text + 7, 5, row)
    assert decode_note(bytes(later)) == DESCRIPTOR


def test_a_later_minor_version_may_have_longer_rows() -> None:
    rows = b"".join(ENCODED[at : at + 8] + b"more" for at in (112, 120))
    later = bytearray(ENCODED[:112] + rows + ENCODED[128:])
    struct.pack_into("<I", later, 4, len(later))
    struct.pack_into("<IIIIIH", later, 20, 136, 7, 143, 5, 112, 12)
    assert decode_note(bytes(later)) == DESCRIPTOR


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("package", "Vec_Sort"),
        ("version", "1.2 3"),
        ("build_id", b"short"),
        ("interface_hash", b""),
        ("cuda_version", 0),
        ("package", "v" * 256),
        ("version", "1" * 256),
        ("targets", ()),
        ("targets", tuple(Target.parse(f"sm_{number}") for number in range(100, 165))),
        ("targets", DESCRIPTOR.targets * 2),
    ],
)
def test_descriptor_beyond_the_contract_is_refused(field: str, value: object) -> None:
    changes: dict[str, Any] = {field: value}
    with pytest.raises(ValueError, match=r".+"):
        dataclasses.replace(DESCRIPTOR, **changes)


@pytest.mark.nvcc
class TestInLibraries:
    def library(self, samples: Samples, name: str, *notes: bytes, link: str = "-shared") -> Elf:
        (samples.folder / "note.bin").write_bytes(b"".join(notes))
        (samples.folder / "note.S").write_text(NOTED.format(note="note.bin"))
        samples.link(name, link, "-nostdlib", "note.S")
        return Elf(samples.window(name))

    def test_descriptor_is_found_in_a_library(self, samples: Samples) -> None:
        elf = self.library(samples, "libnoted.so", encode_note(DESCRIPTOR))
        assert read_descriptor(elf) == DESCRIPTOR

    def test_descriptor_is_found_in_an_object(self, samples: Samples) -> None:
        elf = self.library(samples, "noted.o", encode_note(DESCRIPTOR), link="-c")
        assert read_descriptor(elf) == DESCRIPTOR

    def test_readelf_sees_the_same_note(self, samples: Samples) -> None:
        self.library(samples, "libnoted.so", encode_note(DESCRIPTOR))
        text = samples.run("readelf", "-nW", "libnoted.so")
        assert "archsplit" in text
        assert f"{len(ENCODED):#010x}" in text

    def test_libraries_without_our_note_have_no_descriptor(self, samples: Samples) -> None:
        assert read_descriptor(Elf(samples.window("libkernels.so"))) is None
        other = struct.pack("<III12s", 10, 0, 2, b"archsplit\0")
        assert read_descriptor(self.library(samples, "libother.so", other)) is None

    def test_two_are_refused(self, samples: Samples) -> None:
        elf = self.library(samples, "libtwo.so", *[encode_note(DESCRIPTOR)] * 2)
        with pytest.raises(BinaryFormatError, match=r"archsplit notes at .*: found 2,"):
            read_descriptor(elf)

    def test_a_damaged_one_is_found_in_its_file(self, samples: Samples) -> None:
        note = bytearray(encode_note(DESCRIPTOR))
        note[24 + 8] = 2
        elf = self.library(samples, "libdamaged.so", bytes(note))
        section = elf.section(".note.archsplit")
        assert section is not None
        place = f"libdamaged.so: contract version at offset {section.offset + 24 + 8:#x}"
        with pytest.raises(BinaryFormatError, match=place):
            read_descriptor(elf)
