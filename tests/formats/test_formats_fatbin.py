from __future__ import annotations

import struct
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from formats_samples import TARGETS
from hypothesis import given
from hypothesis import strategies as st

from archsplit.errors import BinaryFormatError
from archsplit.formats.cubin import Cubin
from archsplit.formats.elf import Elf
from archsplit.formats.fatbin import (
    Compression,
    EntryFlag,
    EntryKind,
    fatbin_sections,
    header_checks,
    host_containers,
    is_sound_header,
    read_container,
    read_containers,
    read_entry,
)
from archsplit.formats.reader import Window

if TYPE_CHECKING:
    from formats_samples import Samples

    from archsplit.formats.fatbin import FatbinEntry

pytestmark = pytest.mark.nvcc


def read_entries(samples: Samples, name: str) -> list[tuple[str, FatbinEntry]]:
    return [
        (section.name, entry)
        for section, container in host_containers(Elf(samples.window(name)))
        for entry in container.entries()
    ]


@pytest.mark.parametrize("name", ["kernels.o", "compressed.o", "libkernels.so", "program"])
def test_targets_match_the_command_line(samples: Samples, name: str) -> None:
    found = read_entries(samples, name)
    assert {section for section, _ in found} == {".nv_fatbin"}
    assert Counter(str(entry.target) for _, entry in found) == Counter(TARGETS)


def test_fatbin_of_an_aarch64_library_is_read(samples: Samples) -> None:
    found = read_entries(samples, "libaarch64.so")
    assert {str(entry.target) for _, entry in found} == set(TARGETS)


def test_executable_and_relocatable_containers_are_told_apart(samples: Samples) -> None:
    found = read_entries(samples, "librdc.so")
    assert {(section, str(entry.target), entry.kind_name) for section, entry in found} == {
        ("__nv_relfatbin", "sm_80", "CUBIN"),
        ("__nv_relfatbin", "sm_90", "CUBIN"),
        ("__nv_relfatbin", "compute_90", "PTX"),
        (".nv_fatbin", "sm_80", "CUBIN"),
        (".nv_fatbin", "sm_90", "CUBIN"),
    }
    assert len(found) == 5


@pytest.mark.parametrize(
    ("name", "sass", "ptx"),
    [
        ("kernels.o", Compression.NONE, Compression.ZSTD),
        ("compressed.o", Compression.ZSTD, Compression.ZSTD),
        ("libaarch64.so", Compression.NONE, Compression.NONE),
    ],
)
def test_compression_of_sass_and_ptx_is_read(
    samples: Samples, name: str, sass: Compression, ptx: Compression
) -> None:
    for _, entry in read_entries(samples, name):
        assert entry.compression is (ptx if entry.kind is EntryKind.PTX else sass)
        assert (entry.uncompressed_size > 0) == (entry.compression is not Compression.NONE)


def test_the_entries_fill_the_file(samples: Samples) -> None:
    window = samples.window("plain.fatbin")
    (container,) = read_containers(window)
    entries = list(container.entries())
    assert container.size == len(window) == 16 + sum(entry.size for entry in entries)
    assert entries[0].offset == 16
    assert all(entry.payload_size == entry.padded_size for entry in entries)


def test_the_payloads_agree_with_the_headers(samples: Samples) -> None:
    (container,) = read_containers(samples.window("plain.fatbin"))
    for entry in container.entries():
        payload = container.payload(entry)
        if entry.kind is EntryKind.PTX:
            text = payload.to_bytes()
            assert b".target sm_90\n" in text
            assert b".version %d.%d" % entry.version in text
        else:
            assert Cubin(payload).noted_target() == entry.target


def test_compressed_payloads_are_zstd_frames(samples: Samples) -> None:
    for _, container in host_containers(Elf(samples.window("compressed.o"))):
        for entry in container.entries():
            payload = container.payload(entry)
            assert payload.to_bytes()[:4] == b"\x28\xb5\x2f\xfd"
            assert len(payload) == entry.compressed_size <= entry.padded_size
            assert payload.start == entry.payload_offset


def test_a_library_without_device_code_has_none(samples: Samples) -> None:
    (samples.folder / "empty.c").write_text("int nothing;")
    samples.link("libempty.so", "-shared", "-fPIC", "empty.c")
    assert list(host_containers(Elf(samples.window("libempty.so")))) == []


def test_a_library_without_section_headers_is_refused(samples: Samples) -> None:
    data = bytearray(samples.bytes("libkernels.so"))
    struct.pack_into("<Q", data, 40, 0)
    with pytest.raises(BinaryFormatError, match="section headers at offset 0x0: found none"):
        list(host_containers(Elf(Window(bytes(data), source="stripped"))))


def test_overlapping_sections_are_refused(samples: Samples) -> None:
    data = bytearray(samples.bytes("kernels.o"))
    section = Elf(samples.window("kernels.o")).section(".nv_fatbin")
    assert section is not None
    (headers,) = struct.unpack_from("<Q", data, 40)
    start = headers + 64 * section.index
    header = data[start : start + 64]
    for at in (start - 64, start + 64):
        data[at : at + 64] = header
    with pytest.raises(BinaryFormatError, match=r"fatbin sections at .*, expected no overlaps"):
        list(fatbin_sections(Elf(Window(bytes(data), source="overlaps"))))


@pytest.mark.parametrize("zeros", [8, 24, 4096, 200_000])
def test_zeros_between_containers_are_skipped(samples: Samples, zeros: int) -> None:
    fatbin = samples.bytes("plain.fatbin")
    window = Window(bytes(8) + fatbin + bytes(zeros) + fatbin + bytes(zeros), source="cut")
    found = [container.offset for container in read_containers(window)]
    assert found == [8, 8 + len(fatbin) + zeros]


def test_an_emptied_container_has_no_entries() -> None:
    window = Window(struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 0), source="empty")
    (container,) = read_containers(window)
    assert (container.size, list(container.entries())) == (16, [])


@pytest.mark.parametrize(
    ("offset", "layout", "value", "what"),
    [
        (0, "<I", 0xBA55ED51, "magic"),
        (4, "<H", 2, "version"),
        (6, "<H", 24, "header size"),
        (8, "<Q", 12, "size modulo 8"),
        (8, "<Q", 1 << 40, "body of a fatbin container"),
    ],
)
def test_refuses_damaged_containers(
    samples: Samples, offset: int, layout: str, value: int, what: str
) -> None:
    data = bytearray(samples.bytes("plain.fatbin"))
    struct.pack_into(layout, data, offset, value)
    with pytest.raises(BinaryFormatError, match=what):
        list(read_containers(Window(bytes(data), source="damaged")))


def changed(samples: Samples, offset: int, layout: str, value: int) -> FatbinEntry:
    """Return the first entry of a fatbin, with one number replaced."""
    data = bytearray(samples.bytes("plain.fatbin"))
    struct.pack_into(layout, data, 16 + offset, value)
    return next(read_container(Window(bytes(data), source="damaged"), 0).entries())


@pytest.mark.parametrize(
    ("offset", "layout", "value", "what"),
    [
        (2, "<H", 0x0102, "version of a fatbin entry"),
        (4, "<I", 56, "header size of a fatbin entry"),
        (4, "<I", 68, "header size of a fatbin entry"),
        (4, "<I", 0xFFFF_FFF8, "fatbin entry with its payload"),
        (8, "<Q", 12, "padded size of a fatbin entry"),
        (8, "<Q", 1 << 40, "fatbin entry with its payload"),
        (8, "<Q", (1 << 64) - 8, "fatbin entry with its payload"),
        (16, "<I", 0xFFFF_FFFF, "compressed size of a fatbin entry"),
        (20, "<I", 65, "end of options of a fatbin entry"),
        (28, "<I", 9, "sm number of a fatbin entry"),
        (28, "<I", 10_000, "sm number of a fatbin entry"),
        (36, "<I", 65, "end of the name of a fatbin entry"),
        (40, "<Q", 0x30_0011, "suffix flags of a fatbin entry"),
    ],
)
def test_refuses_damaged_entries(
    samples: Samples, offset: int, layout: str, value: int, what: str
) -> None:
    with pytest.raises(BinaryFormatError, match=f"damaged: {what} at offset 0x10: found "):
        changed(samples, offset, layout, value)


def test_suffix_flags_of_an_unknown_kind_are_refused(samples: Samples) -> None:
    data = bytearray(samples.bytes("plain.fatbin"))
    struct.pack_into("<H", data, 16, 99)
    struct.pack_into("<Q", data, 16 + 40, EntryFlag.ARCH_SPECIFIC | EntryFlag.FAMILY_SPECIFIC)
    with pytest.raises(BinaryFormatError, match="suffix flags"):
        list(read_container(Window(bytes(data), source="damaged"), 0).entries())


def test_unknown_kind_is_named_and_unknown_flags_are_ignored(samples: Samples) -> None:
    entry = changed(samples, 0, "<H", 512)
    assert (entry.kind, entry.kind_name, entry.target, entry.arch) == (None, "kind 512", None, 80)
    entry = changed(samples, 40, "<Q", 0x11 | 1 << 40)
    assert str(entry.target) == "sm_80"


@pytest.mark.parametrize(
    ("kind", "name", "has_target"),
    [
        (1, "PTX", True),
        (2, "CUBIN", True),
        (4, "OLD CUBIN", True),
        (8, "LTO IR", False),
        (32, "INDEX", False),
        (64, "RELOCATABLE PTX", True),
        (128, "TILE IR", False),
        (256, "CONCATENATED", False),
    ],
)
def test_every_known_kind_of_entry_has_a_name(
    samples: Samples, kind: int, name: str, has_target: bool
) -> None:
    entry = changed(samples, 0, "<H", kind)
    assert (entry.kind_name, entry.target is not None) == (name, has_target)


@pytest.mark.parametrize(
    ("size", "flags", "compression"),
    [
        (0, 0x11, Compression.NONE),
        (16, 0x2011, Compression.LZ4),
        (16, 0x8011, Compression.ZSTD),
        (16, 0xA011, Compression.UNKNOWN),
        (16, 0x11, Compression.UNKNOWN),
        (0, 0x2011, Compression.UNKNOWN),
    ],
)
def test_compression_needs_flag_and_size(
    samples: Samples, size: int, flags: int, compression: Compression
) -> None:
    data = bytearray(samples.bytes("plain.fatbin"))
    struct.pack_into("<I", data, 16 + 16, size)
    struct.pack_into("<Q", data, 16 + 40, flags)
    assert read_entry(Window(bytes(data), source="changed"), 16).compression is compression


# A sound header of PTX for 9.0: the fields that checks look at, by their place.
HEADER = {0: 1, 1: 0x101, 2: 64, 3: 512, 4: 500, 5: 64, 8: 90, 9: 0, 10: 64, 11: 0}
WRONG = {
    0: 77,
    1: 0x102,
    2: 56,
    3: 511,
    4: 513,
    5: 65,
    8: 9,
    9: 1,
    10: 65,
    11: EntryFlag.ARCH_SPECIFIC | EntryFlag.FAMILY_SPECIFIC,
}


@given(st.fixed_dictionaries({at: st.sampled_from([HEADER[at], WRONG[at]]) for at in HEADER}))
def test_the_short_check_of_a_header_is_the_long_one(values: dict[int, int]) -> None:
    fields = tuple(values.get(at, 0) for at in range(14))
    assert is_sound_header(fields) == all(is_valid for *_, is_valid in header_checks(fields))
    assert is_sound_header(tuple(HEADER.get(at, 0) for at in range(14)))
