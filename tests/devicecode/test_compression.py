"""Real machine code, compressed anew: decompressed, it has to be the same."""

from __future__ import annotations

import struct
from functools import partial
from typing import TYPE_CHECKING

import pytest

from archsplit.arch.target import CodeKind
from archsplit.devicecode.apply import check_plan
from archsplit.devicecode.decompression import decompress
from archsplit.devicecode.file_plan import FileEdit, plan_rewrite
from archsplit.devicecode.recompress import smaller_entry
from archsplit.devicecode.select import PtxPolicy
from archsplit.formats.elf import Elf
from archsplit.formats.fatbin import (
    EXECUTABLE,
    RELOCATABLE,
    Compression,
    EntryFlag,
    host_containers,
    read_containers,
)
from archsplit.formats.reader import open_file
from handmade_samples import PTX, Maker, container, content_of, for_devices, image, lz4_image

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.devicecode.file_plan import FilePlan
    from archsplit.nvcc.toolkit import Toolkit

KERNEL = "__global__ void add(float *x) { for (int i = 0; i < 9; i++) x[threadIdx.x] += x[i]; }\n"


def recompressed(fatbin: Path) -> tuple[FilePlan, Path]:
    choice = for_devices("9.0", ptx=PtxPolicy.ALL)
    edit = FileEdit(selection=choice, encode=partial(smaller_entry, level=9))
    plan = plan_rewrite(open_file(fatbin), edit)
    new = fatbin.with_name(f"new-{fatbin.name}")
    new.write_bytes(content_of(plan, fatbin.read_bytes()))
    return plan, new


@pytest.mark.nvcc
def test_uncompressed_image_is_compressed_as_nvcc_does(
    maker: Maker, small_toolkit: Toolkit
) -> None:
    (maker.folder / "add.cu").write_text(KERNEL)
    gencode = "-gencode=arch=compute_90,code=[sm_90,compute_90]"
    nvcc = (str(small_toolkit.nvcc), gencode, "-fatbin", "add.cu")
    maker.run(*nvcc, "--no-compress", "-o", "plain.fatbin")
    maker.run(*nvcc, "--compress-mode=size", "-o", "packed.fatbin")
    plan, new = recompressed(maker.folder / "plain.fatbin")
    check_plan(plan, open_file(new))
    (one,) = read_containers(open_file(new))
    (by_nvcc,) = read_containers(open_file(maker.folder / "packed.fatbin"))
    for entry, other in zip(one.entries(), by_nvcc.entries(), strict=True):
        assert entry.target is not None
        if entry.target.kind is CodeKind.PTX:
            assert entry.compression is Compression.NONE  # only machine code is packed
            continue
        assert entry.compression is Compression.ZSTD
        assert decompress(entry, one.payload(entry)) == decompress(other, by_nvcc.payload(other))
        assert entry.uncompressed_size == other.uncompressed_size
        assert entry.flags == other.flags
        assert entry.header_size == other.header_size


def test_incompressible_image_is_unchanged(tmp_path: Path) -> None:
    fatbin = tmp_path / "random.fatbin"
    fatbin.write_bytes(container(image("sm_90", 0x400), image("compute_90", 0x400)))
    plan, _ = recompressed(fatbin)
    assert not plan.is_changed


def test_compressed_image_is_unchanged(tmp_path: Path) -> None:
    fatbin = tmp_path / "zstd.fatbin"
    packed = bytearray(image("sm_90", 0x400, flags=0x11 | EntryFlag.ZSTD))
    packed[64:] = bytes(0x400)
    struct.pack_into("<I", packed, 16, 0x3FC)
    fatbin.write_bytes(container(bytes(packed), image("sm_80", 8, kind=PTX)))
    plan, _ = recompressed(fatbin)
    assert not plan.is_changed


def test_lz4_images_become_zstd_frames(tmp_path: Path) -> None:
    fatbin = tmp_path / "lz4.fatbin"
    fatbin.write_bytes(container(lz4_image(), lz4_image("compute_90", PTX)))
    plan, new = recompressed(fatbin)
    check_plan(plan, open_file(new))
    (one,) = read_containers(open_file(new))
    (old,) = read_containers(open_file(fatbin))
    for entry, before in zip(one.entries(), old.entries(), strict=True):
        assert entry.compression is Compression.ZSTD
        assert entry.uncompressed_size == before.uncompressed_size
        assert decompress(entry, one.payload(entry)) == decompress(before, old.payload(before))


def test_relocatable_code_is_never_compressed(maker: Maker) -> None:
    path = maker.folder / "rdc.fatbin"
    path.write_bytes(container(lz4_image()))
    more = f'.section __nv_relfatbin,"a"\n.balign 8\nrelocatable: .incbin "{path}"\n'
    more += '.section .nvFatBinSegment,"aw"\n.4byte 0x466243b1, 1\n.8byte relocatable, 0\n'
    library = maker.library((container(lz4_image(), image("sm_80")),), more=more)
    wrapped, _ = maker.objects("object", (container(lz4_image()),))
    plan, new = recompressed(library)
    found = {section.name: one for section, one in host_containers(Elf(open_file(new)))}
    forms = {name: next(one.entries()).compression for name, one in found.items()}
    assert forms == {EXECUTABLE: Compression.ZSTD, RELOCATABLE: Compression.LZ4}
    assert plan.is_changed
    assert not recompressed(wrapped)[0].is_changed


def test_damaged_lz4_image_stays_as_it_is(tmp_path: Path) -> None:
    fatbin = tmp_path / "damaged.fatbin"
    damaged = bytearray(lz4_image())
    damaged[64:72] = b"\xff" * 8
    fatbin.write_bytes(container(bytes(damaged)))
    assert not recompressed(fatbin)[0].is_changed
