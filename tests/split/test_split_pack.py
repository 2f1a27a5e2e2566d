"""The pack's format: read as it was written, by old readers too, and refused when damaged."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from split_samples import Sample, digest, loaded

from archsplit.arch.target import Target
from archsplit.errors import BinaryFormatError
from archsplit.formats.descriptor import Descriptor, Shape
from archsplit.formats.device_pack import (
    HEAD,
    ZSTD_DRIVER,
    ImageForm,
    Pack,
    PackContainer,
    PackImage,
    PackLibrary,
    container_key,
    encode_table,
    lay_out_pack,
    read_pack,
)
from archsplit.formats.reader import Window
from archsplit.split.output_wheels import min_cuda_version

if TYPE_CHECKING:
    from pathlib import Path

PACK = "toyfat_plugins/cuda/cc90/device.pack"


def read(content: bytes, *, is_table: bool = False) -> Pack:
    return read_pack(Window(content, source="a pack"), is_table=is_table)


def newer(content: bytes, *, major: int = 1) -> bytes:
    """The same pack as a later writer would write it: with more in every row, and in the head."""
    head = list(HEAD.unpack_from(content))
    head_size, descriptor_size, index_size = head[1], head[2], head[4]
    at = head_size + -(-descriptor_size // 8) * 8
    descriptor = bytearray(content[head_size:at])
    struct.pack_into("<HH", descriptor, 8, major, 7)
    index, tables, done, growth = content[at : at + index_size], b"", 0, 0
    for count, size in zip(head[5:8], head[8:11], strict=True):
        for number in range(count):
            tables += index[done + number * size : done + (number + 1) * size] + b"\xee" * 8
        done += count * size
        growth += count * 8
    texts = index[done:]
    rows = bytearray(tables)
    for number in range(head[5]):  # texts have moved behind the longer rows
        for field in (0, 8):
            place = number * (head[8] + 8) + field
            (offset,) = struct.unpack_from("<I", rows, place)
            struct.pack_into("<I", rows, place, offset + growth)
    front = bytes(descriptor) + bytes(rows) + texts
    head[1], head[4] = head_size + 16, len(rows) + len(texts)
    head[8:11] = [size + 8 for size in head[8:11]]
    rest = content[80:head_size] + b"\xdd" * 16
    head[12] = hashlib.sha256(rest + front).digest()
    before = HEAD.pack(*head)[:80] + rest + front
    end = at + index_size
    assert before[len(before) :] + content[end : end + len(before) - end] == bytes(
        len(before) - end
    )
    return before + content[len(before) :]


def test_old_reader_accepts_appended_fields(sample: Sample, tmp_path: Path) -> None:
    site = sample.site(tmp_path, "cc90")
    content = (site / PACK).read_bytes()
    later = newer(content)
    assert read(later).libraries == read(content).libraries
    (site / PACK).write_bytes(later)
    report = loaded(site, sample.folder, "9.0")
    assert report.talk == ""
    assert report.libraries["liba.so"][0] == digest(0, 0, "sm_90")


def test_another_major_contract_is_refused(sample: Sample, tmp_path: Path) -> None:
    site = sample.site(tmp_path, "cc90")
    later = newer((site / PACK).read_bytes(), major=2)
    with pytest.raises(BinaryFormatError, match="contract version"):
        read(later)
    (site / PACK).write_bytes(later)
    assert "follows contract 2.7 of plugins, expected 1" in loaded(site, sample.folder, "9.0").talk


def descriptor(shape: Shape = Shape.DEVICE) -> Descriptor:
    return Descriptor(
        package="toyfat",
        version="1.0",
        build_id=bytes(32),
        interface_hash=bytes(32),
        cuda_version=13000,
        shape=shape,
        targets=(Target.parse("sm_90"),),
    )


def listed(number: int, content: bytes, target: str = "sm_90") -> PackImage:
    return PackImage(
        number=number,
        target=Target.parse(target),
        size=len(content),
        digest=hashlib.sha256(content).digest(),
    )


@given(
    st.lists(
        st.lists(
            st.lists(st.sampled_from(["sm_80", "sm_90a", "compute_120"]), max_size=3), max_size=4
        ),
        max_size=3,
    )
)
def test_written_pack_reads_back(shape: list[list[list[str]]]) -> None:
    from split_samples import image  # noqa: PLC0415 (only one test's)

    contents = {
        (i, j, k): image(name, 64, seed=i * 100 + j * 10 + k)
        for i, library in enumerate(shape)
        for j, targets in enumerate(library)
        for k, name in enumerate(targets)
    }
    libraries = tuple(
        PackLibrary(
            name=f"lib{i}.so",
            stub=f"stub{i}.so",
            containers=tuple(
                PackContainer(
                    wrapper=8 * j,
                    address=16 * j,
                    images=tuple(
                        listed(k, contents[i, j, k], name) for k, name in enumerate(names)
                    ),
                    is_unused=j % 2 == 1,
                )
                for j, names in enumerate(library)
            ),
        )
        for i, library in enumerate(shape)
    )
    layout = lay_out_pack(descriptor(), libraries)
    pack = read(b"".join(layout.blocks(lambda i, j, one: contents[i, j, one.number])))
    found = {key: pack.content(one).to_bytes() for key, one in pack.images()}
    assert found == contents
    table = read(encode_table(descriptor(), libraries), is_table=True)
    assert table.libraries == libraries


@pytest.fixture(scope="module")
def content(sample: Sample, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return (sample.site(tmp_path_factory.mktemp("site"), "cc90") / PACK).read_bytes()


def test_damage_is_refused(content: bytes) -> None:
    head = HEAD.unpack_from(content)
    for at in range(0, head[1] + head[2] + head[4], 7):
        changed = bytearray(content)
        changed[at] ^= 0x21
        if 46 <= at < 48:  # reserved
            continue
        with pytest.raises(BinaryFormatError):
            read(bytes(changed))
    with pytest.raises(BinaryFormatError):
        read(content[:-1])


def test_container_contradicting_the_index_is_refused(content: bytes) -> None:
    changed = bytearray(content)
    changed[0x10000 + 16 + 28] ^= 1  # the sm number of its first image
    with pytest.raises(BinaryFormatError, match="images of a container"):
        read(bytes(changed))


def test_table_of_libraries_is_refused_as_a_pack() -> None:
    table = encode_table(descriptor(Shape.LIBRARY), ())
    assert read(table, is_table=True).descriptor.shape is Shape.LIBRARY
    with pytest.raises(BinaryFormatError, match="shape"):
        read(table)


def test_driver_version_is_written_and_read() -> None:
    layout = lay_out_pack(descriptor(Shape.DEVICE), (), driver_version=12040)
    assert read(layout.front).driver_version == 12040
    assert read(lay_out_pack(descriptor(Shape.DEVICE), ()).front).driver_version == 0
    changed = layout.front[:80] + bytes(4) + layout.front[84:]
    with pytest.raises(BinaryFormatError, match="digest"):
        read(changed)


@pytest.mark.parametrize(
    ("isa", "cuda"),
    [
        ((7, 8), 11080),
        ((8, 5), 12050),
        ((8, 6), 12070),
        ((8, 8), 12090),
        ((9, 0), 13000),
        ((6, 5), 11000),
    ],
)
def test_ptx_version_determines_the_minimum_cuda(isa: tuple[int, int], cuda: int) -> None:
    assert (
        min_cuda_version([(7, 0), isa]) == cuda if isa > (7, 0) else min_cuda_version([isa]) == cuda
    )


def test_vendor_forms_are_written_and_read_and_need_cuda_12_4() -> None:
    content = b"stored by this pack, with a header of its own" * 2
    form = ImageForm(
        encoder=2,
        size=4096,
        compressed_size=4000,
        uncompressed_size=9000,
        flags=0x2011,
        digest=bytes(range(32)),
        raw_digest=bytes(range(32, 64)),
    )
    rows = (listed(0, content), replace(listed(2, content), form=form))
    container = PackContainer(wrapper=8, address=16, images=rows, key=container_key(rows))
    library = PackLibrary(name="a.so", stub="b.so", containers=(container,))
    table = encode_table(descriptor(Shape.DEVICE), [library])
    found = read_pack(Window(table, source="core.pack"), is_table=True)
    assert [image for _, image in found.images()] == list(rows)
    layout = lay_out_pack(descriptor(Shape.DEVICE), [library])
    assert HEAD.unpack_from(layout.front)[13] == ZSTD_DRIVER
    assert container.key == container_key(
        [rows[0], replace(rows[1], size=form.size, digest=form.digest, form=None)]
    )
