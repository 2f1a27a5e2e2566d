"""Parts of a subject as one GPU sees them; they add up to the whole."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from inventories import image, inventory, unit

from archsplit.arch.compat import GPU_BY_CAPABILITY
from archsplit.arch.target import Capability, Target
from archsplit.devicecode.file_plan import FileEdit, plan_rewrite
from archsplit.devicecode.model import FatContainer, Place
from archsplit.devicecode.select import Coverage, Selection
from archsplit.formats.fatbin import Compression, EntryKind
from archsplit.formats.reader import open_file
from archsplit.inspect.breakdown import sum_build_files
from archsplit.inspect.inspect import InspectRequest, read_inventory
from archsplit.inspect.inspection import inventory_json, inventory_markdown
from archsplit.inspect.sizes import answer_text, device_usage
from archsplit.inspect.text import inventory_text, shares_text, zstd_text
from archsplit.system.units import size_text
from handmade_samples import container
from shared_frames import frame, record

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from archsplit.devicecode.model import CodeForm, File, Inventory
    from archsplit.inspect.sizes import DeviceUsage
    from compiled_samples import Samples

H100, P100 = Capability(9, 0), Capability(6, 0)
LOADER = 84_000 + 4_500
"""Bytes that a core with one library has for the loader."""


def usage(found: Inventory, capability: Capability) -> DeviceUsage:
    return device_usage(found, [capability])[0]


FOUND = inventory(
    unit(image("sm_80", 5000), image("sm_90", 4000), image("compute_90", 3000)),
    unit(image("sm_90", 700), place=Place.OUTSIDE),
    unit(image("sm_80", 600), place=Place.OUTSIDE),
    unit(image("sm_90", 200), image("sm_80", 100), place=Place.RELOCATABLE),
    unit(image("sm_90", 50, kind=EntryKind.LTO_IR)._replace(target=None)),
)


def test_parts_add_up_to_the_download() -> None:
    sizes = usage(FOUND, H100)
    assert (sizes.used, sizes.unused, sizes.link_code) == (4700, 8600, 350)
    assert sizes.used + sizes.unused + sizes.link_code + sizes.other == sizes.whole == FOUND.size
    assert sizes.outside == (Target.parse("sm_90"),)
    assert sizes.other == 1000


def test_parts_of_a_container_in_two_packs_count_together() -> None:
    fat = FatContainer(build=b"one")
    images = (image("sm_80", 5000), image("sm_90", 4000))
    packs = (unit(one)._replace(fat=fat) for one in images)
    sizes = usage(inventory(*packs, unit(image("sm_90", 100)), unit(image("sm_90", 10))), H100)
    assert (sizes.used, sizes.unused) == (4110, 5000)


def test_sum_names_copies_of_images_in_several_packs() -> None:
    pack = unit(image("sm_90", 4000))._replace(fat=FatContainer(build=b"one"))
    found = inventory(pack, pack)
    lines = list(map(str, inventory_text(found, device_usage(found, [H100]), is_asked=True)))
    assert lines[1].startswith("9.0 kB to download; 8.0 kB of it")
    parts = "4.0 kB used + 1.0 kB not device code + 4.0 kB copies in other packs = 9.0 kB"
    assert parts in lines


def test_slimmed_and_split_sizes_leave_unregistered_code() -> None:
    sizes = usage(FOUND, H100)
    assert sizes.newer_ptx == 3000
    assert FOUND.size - sizes.slimmed == 5000 + 100
    # A split leaves input of a link that was not done, of which slim cuts 100 bytes.
    left = 1000 + 1300 + 50 + 300
    assert (sizes.core, sizes.pack) == (left + LOADER, 4000)
    assert sizes.slimmed + 100 == left + (sizes.pack or 0) + sizes.newer_ptx


@pytest.mark.parametrize(("linked", "pack"), [(("sm_80", "sm_90"), 100), (("sm_80",), 200)])
def test_link_input_is_not_kept_for_gpus_with_linked_code(
    linked: tuple[str, ...], pack: int
) -> None:
    found = inventory(
        unit(*(image(name, 100) for name in linked), linked=True),
        unit(image("sm_90", 200), image("compute_90", 200), place=Place.RELOCATABLE, linked=True),
    )
    sizes = usage(found, H100)
    # The PTX stays for newer GPUs.
    assert (sizes.newer_ptx, sizes.pack) == (200, pack)


def test_self_selecting_library_has_no_split_sizes() -> None:
    # As cuFFT: all that is registered is an empty image, which nvlink adds.
    found = inventory(unit(image("sm_90", 99_000), place=Place.OUTSIDE), unit(image("sm_52", 90)))
    sizes = usage(found, H100)
    assert sizes.used == 99_000
    assert (sizes.core, sizes.pack) == (None, None)


def test_cubin_file_has_no_split_sizes() -> None:
    # As flashinfer-cubin, of which `archsplit split` has nothing to move.
    sizes = usage(inventory(unit(image("sm_90", 5000), section=None)), H100)
    assert sizes.used == 5000
    assert (sizes.core, sizes.pack) == (None, None)


def test_stub_container_is_not_one_without_code() -> None:
    found = inventory(
        unit(image("sm_90", 99_000), place=Place.OUTSIDE),
        unit(image("sm_52", 900)),
        unit(image("sm_52", 9000)),
    )
    containers = usage(found, H100).containers
    assert sum(containers.values()) == containers[Coverage.NONE] == 1, "of nvlink's one no GPU"


def shares(file: File, share: float) -> Mapping[CodeForm, float]:
    targets = {image.target for unit in file.units for image in unit.images}
    return {(EntryKind.CUBIN, Compression.NONE, target): share for target in targets}


def test_pack_has_the_size_of_its_zstd_frames() -> None:
    found = inventory(unit(image("sm_90", 4000), image("sm_80", 100)))
    (file,) = found.files
    quarter = replace(file, zstd=shares(file, 0.25))
    sizes = usage(replace(found, files=(quarter,)), H100)
    assert (sizes.used, sizes.pack) == (4000, 2000), "a quarter of 8000 bytes in the file"
    # A split is estimated only with a sample.
    assert usage(replace(found, files=(replace(file, zstd=None),)), H100).pack is None


@pytest.mark.parametrize(("other", "pack"), [(1, 4000), (2, 8000), (None, 8000)])
def test_split_stores_equal_containers_once(other: int | None, pack: int) -> None:
    one = unit(image("sm_90", 4000), image("sm_80", 100))
    sizes = usage(inventory(*(one._replace(checksum=each) for each in (1, other))), H100)
    assert (sizes.used, sizes.core, sizes.pack) == (8000, 1000 + LOADER, pack)


@pytest.mark.parametrize(
    "name", ["libkernels.so", "liboutside.so", "rdc.o", "pkg-1.0-py3-none-any.whl"]
)
def test_text_json_and_summary_have_the_same_numbers(samples: Samples, name: str) -> None:
    found = read_inventory(InspectRequest(subject=str(samples / name)))
    devices = device_usage(found, GPU_BY_CAPABILITY)
    rows = json.loads(inventory_json(found, devices))["devices"]
    summary = inventory_markdown(found, devices)
    for device, row in zip(devices, rows, strict=True):
        sizes = row["sizes"]
        parts = ("used", "for_other_gpus", "link_code", "not_device_code")
        assert sum(sizes[part] for part in parts) == sizes["whole"] == found.size
        assert sizes["used"] == device.used
        text = answer_text(device)
        if device.used:
            size = size_text(device.used)
            assert f"uses {size} of" in text
            assert f"| {device.capability} " in summary
            assert f"| {size} |" in summary


def test_json_has_the_parts_of_each_gpu() -> None:
    (device,) = json.loads(inventory_json(FOUND, device_usage(FOUND, [H100])))["devices"]
    sizes = device["sizes"]
    parts = ("used", "for_other_gpus", "link_code", "not_device_code")
    assert sum(sizes[part] for part in parts) == sizes["whole"] == FOUND.size
    assert (sizes["core"], sizes["pack"]) == (2650 + LOADER, 4000)


def test_compression_of_uncompressed_images_is_left_on_the_table(samples: Samples) -> None:
    subject = str(samples / "libkernels.so")
    assert zstd_text(read_inventory(InspectRequest(subject=subject))) == ""
    found = read_inventory(InspectRequest(subject=subject, zstd=True))
    (file,) = found.files
    assert 0 <= file.zstd_saves < file.size
    half = replace(found, files=(replace(file, zstd=shares(file, 0.5)),))
    saved = half.files[0].zstd_saves
    images = [one for row in file.units for one in row.images if row.place is Place.EXECUTABLE]
    cubins = [one.file_bytes for one in images if one.kind is EntryKind.CUBIN]
    assert saved == pytest.approx(sum(cubins) / 2, abs=len(cubins))
    assert zstd_text(half).startswith("compression left on the table: zstd level 9 would save")
    # Installed bytes: the lines before it are about the download.
    assert zstd_text(half).endswith(" on disk (estimated from a sample)")


def test_bitcode_for_one_gpu_is_link_code() -> None:
    names = [("a/libx_device_sm_90.bc", 300), ("a/libx_device_sm_80.bc", 200), ("a/x.bc", 9)]
    files = sum_build_files(names)
    assert [one.kind for one in files] == ["bitcode for sm_90", "bitcode for sm_80"]
    sizes = usage(replace(FOUND, other_files=files, size=FOUND.size + 500), H100)
    assert sizes.link_code == 350 + 500
    assert sizes.other == 1000


@pytest.mark.parametrize(
    ("capability", "name", "words"),
    [
        (H100, "", "An H100 uses 4.7 kB of 13.7 kB of device code; 8.6 kB (63 %) is for other"),
        (H100, "H200", "An H200 uses"),
        (P100, "", "A P100 finds no code here that it can run"),
        (Capability(10, 7), "", "A Rubin uses 3.0 kB"),
        (Capability(9, 9), "", "A GPU of 9.9 uses"),
    ],
)
def test_answer_names_the_gpu_and_its_images(capability: Capability, name: str, words: str) -> None:
    assert answer_text(usage(FOUND, capability), name).startswith(words)


@pytest.mark.parametrize("sm", [80, 90, 120])
def test_inspect_and_slim_agree_to_the_byte(samples: Samples, sm: int) -> None:
    path = samples / "libkernels.so"
    capability = Capability.from_sm_number(sm)
    sizes = usage(read_inventory(InspectRequest(subject=str(path))), capability)
    edit = FileEdit(selection=Selection(devices=frozenset([capability])))
    plan = plan_rewrite(open_file(path), edit)
    removed = (
        entry.size for one in plan.containers for entry in one.entries if entry not in one.kept
    )
    assert sizes.whole - sizes.slimmed == sum(removed)


def test_frames_of_several_images_are_cut_and_not_moved() -> None:
    shares = (image(name, 500)._replace(frame=64) for name in ("sm_80", "sm_90"))
    found = inventory(unit(*shares))
    sizes = usage(found, H100)
    assert (sizes.used, sizes.unused, sizes.slimmed) == (500, 500, found.size - 500)
    assert (sizes.core, sizes.pack) == (None, None)
    assert sizes.containers[Coverage.NATIVE] == 1
    # Small machine code in a frame is not a stub, as nvcc writes it.
    assert usage(found, P100).containers[Coverage.NONE] == 1


def test_shares_of_frames_are_named_and_slim_is_proposed(tmp_path: Path) -> None:
    path = tmp_path / "shared.fatbin"
    path.write_bytes(container(frame(record("sm_80", 0, 24), record("sm_90", 24, 16))))
    found = read_inventory(InspectRequest(subject=str(path)))
    assert shares_text(FOUND) == ""
    text = shares_text(found)
    assert text.startswith("2 images (")
    assert "its share by uncompressed size" in text
    lines = list(map(str, inventory_text(found, device_usage(found, [H100]), is_asked=True)))
    assert text in lines
    assert [line for line in lines if line.startswith("next: ")] == [
        f"next: archsplit slim {path} --device 9.0"
    ]
