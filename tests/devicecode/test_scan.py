"""Device code in files of every form, and files that only look like them."""

from __future__ import annotations

import struct
import subprocess
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from archsplit.devicecode import container_search
from archsplit.devicecode.container_search import (
    CONTAINER_MAGIC,
    CUBIN_MAGIC,
    REGISTERED,
    UNREGISTERED,
    MagicSearch,
    _Candidates,
)
from archsplit.devicecode.model import Image, Place, inventory_rows
from archsplit.devicecode.scan import read_contents
from archsplit.errors import BinaryFormatError
from archsplit.formats.cubin import ZSTD_MAGIC
from archsplit.formats.elf import Elf
from archsplit.formats.fatbin import Compression, EntryKind
from archsplit.formats.libraries import read_members
from archsplit.formats.mapped import magic_offsets
from archsplit.formats.reader import Window, open_file
from compiled_samples import TARGETS

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.devicecode.scan import FileContents
    from compiled_samples import Samples


def contents(samples: Samples, name: str) -> FileContents:
    return read_contents(open_file(samples / name))


def targets(found: FileContents, place: Place) -> Counter[str | None]:
    return Counter(
        image.target_name for unit in found.units if unit.place is place for image in unit.images
    )


@pytest.mark.parametrize("name", ["kernels.o", "libkernels.so", "kernels.fatbin"])
def test_every_form_has_the_requested_images(samples: Samples, name: str) -> None:
    found = contents(samples, name)
    assert found.problem is None
    (unit,) = (unit for unit in found.units if unit.images)
    assert sorted(str(image.target) for image in unit.images) == sorted(TARGETS)
    assert unit.section == (None if name.endswith("fatbin") else ".nv_fatbin")


def test_images_fill_their_section(samples: Samples) -> None:
    (unit,) = contents(samples, "kernels.fatbin").units
    size = len(open_file(samples / "kernels.fatbin"))
    assert sum(image.file_bytes for image in unit.images) == size - 16


def test_cubin_is_one_image_with_ptxas_suffix(samples: Samples) -> None:
    (row,) = inventory_rows(contents(samples, "plain.cubin").units)
    assert (row.kind, row.target, row.count) == ("SASS", "sm_90a", 1)
    assert row.file_bytes == (samples / "plain.cubin").stat().st_size


@pytest.mark.parametrize(("name", "packed"), [("zstd.o", "zstd"), ("lz4.o", "lz4")])
def test_compression_of_images_is_recognised(samples: Samples, name: str, packed: str) -> None:
    rows = inventory_rows(contents(samples, name).units)
    # nvcc leaves an image as it is that doesn't get smaller.
    assert packed in {row.compression for row in rows} <= {packed, "none"}


def test_input_of_a_device_link_is_apart(samples: Samples) -> None:
    found = contents(samples, "rdc.o")
    assert targets(found, Place.RELOCATABLE).keys() == {"sm_80", "sm_90", "compute_90"}
    assert targets(found, Place.EXECUTABLE) == {}


def test_lto_ir_is_named_as_nvcc_does(samples: Samples) -> None:
    kinds = {(row.kind, row.target) for row in inventory_rows(contents(samples, "lto.o").units)}
    assert ("LTO-IR", "lto_90") in kinds


def test_a_static_library_has_its_objects(samples: Samples) -> None:
    found = contents(samples, "libkernels.a")
    members = {unit.member for unit in found.units}
    assert members == {"kernels.o", "a_name_that_is_too_long_for_the_header.o"}
    assert targets(found, Place.EXECUTABLE).keys() == set(TARGETS)


def test_code_outside_of_the_sections_is_apart(samples: Samples) -> None:
    found = contents(samples, "liboutside.so")
    assert targets(found, Place.EXECUTABLE) == Counter(TARGETS)
    assert targets(found, Place.OUTSIDE) == Counter([*TARGETS, "sm_90a"])
    assert {unit.section for unit in found.units} == {".nv_fatbin", ".rodata"}
    assert found.problem is not None
    assert "can't be read: 1; the first is at offset" in found.problem


def test_a_library_without_section_headers_is_searched(samples: Samples) -> None:
    found = contents(samples, "libstripped.so")
    sections = {unit.section: unit.place for unit in found.units}
    assert sections == {REGISTERED: Place.EXECUTABLE, UNREGISTERED: Place.OUTSIDE}
    assert targets(found, Place.EXECUTABLE) == Counter(TARGETS)
    assert targets(found, Place.OUTSIDE) == Counter([*TARGETS, "sm_90a"])
    assert found.problem is not None
    assert found.problem.startswith("it has no section headers")


def test_a_library_without_device_code_has_none(samples: Samples) -> None:
    assert contents(samples, "libempty.so").units == ()
    headless = bytearray((samples / "libempty.so").read_bytes())
    headless[40:48], headless[60:64] = bytes(8), bytes(4)
    assert read_contents(Window(bytes(headless), source="headless")).units == ()


def test_search_ends_after_many_unreadable_containers(
    samples: Samples, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("archsplit.devicecode.scan.MAX_UNREADABLE", 1)
    monkeypatch.setattr("archsplit.devicecode.container_search.MAX_UNREADABLE", 1)
    found = contents(samples, "liboutside.so")
    assert found.problem is not None
    assert "can't be read: 1 or more; the first" in found.problem


def test_a_magic_across_two_blocks_is_found() -> None:
    block = 1 << 20
    data = bytes(block - 3) + b"magic" + bytes(block) + b"magic"
    window = Window(data, source="blocks", start=7)
    assert list(magic_offsets(b"magic", window)) == [7 + block - 3, 7 + 2 * block + 2]
    for start in range(block - 5, block + 3):
        window = Window(bytes(start) + b"code" + bytes(9), source="blocks")
        assert list(magic_offsets(b"code", window)) == [start]


@pytest.mark.parametrize("magic", [CONTAINER_MAGIC[:4], CUBIN_MAGIC, ZSTD_MAGIC])
def test_code_in_a_stream_is_found_at_any_block_boundary(magic: bytes) -> None:
    content = CUBIN_MAGIC + bytes(40) + magic + bytes(9)
    for size in range(1, len(content)):
        search = MagicSearch()
        for start in range(0, len(content), size):
            # The first bytes are the host file's own.
            assert search.found == (start >= len(CUBIN_MAGIC) + 40 + len(magic))
            search.feed(content[start : start + size])
        assert search.found


def test_a_file_of_another_form_has_none() -> None:
    assert read_contents(Window(b"", source="empty")).units == ()
    assert read_contents(Window(b"import numpy", source="text")).units == ()


IMAGE = Image(
    kind=EntryKind.LTO_IR,
    kind_number=8,
    target=None,
    arch=90,
    suffix="a",
    compression=Compression.NONE,
    offset=0,
    file_bytes=64,
    wheel_bytes=None,
)


def test_code_without_a_target_is_still_named() -> None:
    assert (IMAGE.kind_name, IMAGE.target_name) == ("LTO-IR", "lto_90a")
    index = IMAGE._replace(kind=EntryKind.INDEX, kind_number=32, arch=0)
    assert (index.kind_name, index.target_name) == ("index", None)
    unknown = IMAGE._replace(kind=None, kind_number=512)
    assert (unknown.kind_name, unknown.target_name) == ("kind 512", "90a")


def ar(name: bytes, content: bytes, *, size: bytes | None = None, end: bytes = b"`\n") -> bytes:
    length = size or str(len(content)).encode()
    return name.ljust(48) + length.ljust(10) + end + content + b"\n" * (len(content) % 2)


@pytest.mark.parametrize(
    ("damaged", "words"),
    [
        (b"!<thin>\n", "magic of a static library"),
        (b"!<arch>\n" + ar(b"x/", b"", end=b"xx"), "end of a header at offset 0x42"),
        (b"!<arch>\n" + ar(b"x/", b"", size=b"-1"), "size of a member at offset 0x38"),
        (b"!<arch>\n" + ar(b"x/", b"", size=b"99"), "member of a static library"),
        (b"!<arch>\n" + ar(b"/5", b""), "long name"),
        (b"!<arch>\n" + ar(b"#1/20", b""), "name of a member at offset 0x8:"),
        (b"!<arch>\nx", "header of a member"),
    ],
)
def test_a_damaged_static_library_is_refused(damaged: bytes, words: str) -> None:
    with pytest.raises(BinaryFormatError, match=words):
        list(read_members(Window(damaged, source="x.a")))


@pytest.mark.parametrize("magic", [CONTAINER_MAGIC, CUBIN_MAGIC, ZSTD_MAGIC])
def test_code_starting_at_a_blocks_last_byte_is_found(magic: bytes) -> None:
    window = Window(bytes(7) + magic + bytes(8), source="a block")
    assert _Candidates(window, end=8).next(0) == 7
    assert _Candidates(window, end=7).next(0) == 7


def test_member_has_its_offset(samples: Samples) -> None:
    whole = (samples / "libkernels.a").read_bytes()
    members = {member.name: member.content for member in read_members(Window(whole, source="x"))}
    content = members["odd.txt"]
    assert whole[content.start :].startswith(b"odd")
    assert content.source == "x(odd.txt)"


def windows_library(*sections: tuple[bytes, int, bytes], claimed: int = 0) -> bytes:
    """Return a PE file with these sections (name, flags, content)."""
    signature = 64
    table = signature + 24
    offset = table + 40 * len(sections)
    rows, contents = [], b""
    for name, flags, content in sections:
        at = offset + len(contents)
        size = claimed or len(content)
        rows.append(struct.pack("<8sIIIIIIHHI", name, size, 0, size + 8, at, 0, 0, 0, 0, flags))
        contents += content + bytes(8)
    head = b"MZ".ljust(60, b"\0") + struct.pack("<I", signature)
    coff = b"PE\0\0" + struct.pack("<HHIIIHH", 0x8664, len(sections), 0, 0, 0, 0, 0)
    return head + coff + b"".join(rows) + contents


def test_device_code_in_a_windows_library_is_found(samples: Samples) -> None:
    fatbin = (samples / "kernels.fatbin").read_bytes()
    cubin = (samples / "plain.cubin").read_bytes()
    library = windows_library(
        (b".text", 0x20, fatbin),
        (b".rdata", 0x40, bytes(7) + cubin),
        (b"__nv_rel", 0x40, fatbin),
        (b".nv_fatb", 0x40, fatbin),
    )
    found = read_contents(Window(library, source="x.dll"))
    assert found.problem is None
    assert targets(found, Place.EXECUTABLE) == targets(found, Place.RELOCATABLE) == Counter(TARGETS)
    assert targets(found, Place.OUTSIDE) == Counter(["sm_90a"])


@pytest.mark.parametrize(
    ("library", "words"),
    [
        (b"MZ" + bytes(10), "offset of the PE header"),
        (b"MZ" + bytes(100), "PE signature"),
        (windows_library((b".nv_fatb", 0x40, bytes(99)))[:100], "section headers"),
        (windows_library((b".nv_fatb", 0x40, bytes(99)))[:200], "section '.nv_fatb'"),
        (
            windows_library(*[(b".rdata", 0x40, bytes(90))] * 3, claimed=290) + bytes(200),
            "no overlaps",
        ),
    ],
)
def test_a_damaged_windows_library_is_refused(library: bytes, words: str) -> None:
    with pytest.raises(BinaryFormatError, match=words):
        read_contents(Window(library, source="x.dll"))


def test_sections_of_equal_bytes_are_refused(samples: Samples) -> None:
    library = Elf(open_file(samples / "liboutside.so"))
    search = container_search.ContainerSearch(None, 100)
    with pytest.raises(BinaryFormatError, match="no overlaps"):
        list(search.search_data_sections(library))


@pytest.mark.parametrize("last", ["section headers", "program headers", "content"])
def test_size_of_an_elf_file_inside_of_another_is_the_end_of_its_last_part(
    last: str, tmp_path: Path
) -> None:
    path = tmp_path / "libtoy.so"
    subprocess.run(["gcc", "-shared", "-x", "c", "/dev/null", "-o", path], check=True)
    data = bytearray(path.read_bytes())
    programs_at, sections_at = struct.unpack_from("<QQ", data, 32)
    programs, sections = struct.unpack_from("<H", data, 56)[0], struct.unpack_from("<H", data, 60)
    assert len(data) == sections_at + 64 * sections[0]
    if last == "program headers":
        struct.pack_into("<Q", data, 32, len(data))
        data += data[programs_at : programs_at + 56 * programs]
    elif last == "content":
        # Offset and size of the last section, which has their names.
        struct.pack_into("<QQ", data, len(data) - 64 + 24, len(data), 40)
        data += bytes(40)
    followed = Window(bytes(data) + bytes(100), source="followed")
    assert container_search._elf_size(Elf(followed)) == len(data)
