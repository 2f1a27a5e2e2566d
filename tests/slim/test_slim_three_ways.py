"""One GPU, asked three ways: what inspect says, slim removes, and a split has in its packs."""

from __future__ import annotations

import os
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from slim_wheel_samples import fat_wheel

from archsplit.arch.compat import GPU_BY_CAPABILITY
from archsplit.arch.target import Capability
from archsplit.devicecode.select import Coverage, PtxPolicy, Selection
from archsplit.errors import TargetError
from archsplit.formats.device_pack import read_pack
from archsplit.formats.reader import Window
from archsplit.inspect.inspect import InspectRequest, read_inventory
from archsplit.inspect.sizes import device_usage
from archsplit.release.context import Effects
from archsplit.release.report import read_report
from archsplit.slim.request import SlimRequest
from archsplit.slim.wheel import slim_file, slim_wheel
from archsplit.split.model import SplitRequest
from archsplit.split.split import split_wheel
from archsplit.system.terminal import SilentProgress
from handmade_samples import LTO_IR, THREE, Maker, container, for_devices, image, lz4_image
from index_wheels import index_wheel
from target_lists import parse_targets

if TYPE_CHECKING:
    from archsplit.nvcc.toolkit import Toolkit
    from archsplit.slim.report import SlimReport


CODES = {80: "[sm_80,compute_80]", 90: "sm_90"}


def every(size: int) -> bytes:
    """A container for all GPUs; of several with the same bytes a split stores one."""
    names = ("sm_80", "sm_90", "compute_80", "compute_90")
    return container(*(image(name, size) for name in names))


def effects() -> Effects:
    return Effects(progress=SilentProgress(), environment=os.environ, jobs=1)


def inspected(wheel: Path, folder: Path, capability: Capability) -> tuple[int, int]:
    """Return the bytes that slim removes and that a pack has; in files, not in the download."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    found = read_inventory(InspectRequest(subject=str(folder)))
    # In the vendor's form, whose bytes are known without compressing anything.
    files = tuple(replace(file, zstd={}) for file in found.files)
    (sizes,) = device_usage(replace(found, files=files), [capability])
    assert sizes.pack is not None
    return sizes.whole - sizes.slimmed, sizes.pack


def removed(wheel: Path, folder: Path, capability: Capability) -> int:
    choice = for_devices(str(capability), ptx=PtxPolicy.NEWEST)
    request = SlimRequest(source=wheel, out=folder, selection=choice, dry_run=True)
    report = slim_wheel(request, effects())
    return sum(row.file_bytes for file in report.files for row in file.removed)


def packed(wheel: Path, folder: Path, capability: Capability) -> int:
    release = split_wheel(SplitRequest(source=wheel, out=folder), effects())
    assert release.split is not None
    names = release.split.needs[str(capability)]
    total = 0
    for plugin in release.plugins:
        if plugin.label in names:
            with zipfile.ZipFile(folder / plugin.file) as archive:
                (pack,) = (name for name in archive.namelist() if name.endswith(".pack"))
                content = Window(memoryview(archive.read(pack)), source=pack)
            images = (found for _, found in read_pack(content).images())
            total += sum(found.size if found.form is None else found.form.size for found in images)
    return total


def assert_agree(wheel: Path, folder: Path, gpu: str) -> None:
    capability = Capability.parse(gpu)
    by_inspect = inspected(wheel, folder / "files", capability)
    assert by_inspect[0] == removed(wheel, folder / "slim", capability)
    assert by_inspect[1] == packed(wheel, folder / "split", capability)


@pytest.mark.parametrize("gpu", ["8.0", "8.6", "9.0", "12.0"])
def test_inspect_slim_and_split_agree_to_the_byte(maker: Maker, tmp_path: Path, gpu: str) -> None:
    link_code = image("sm_90", 0x300, kind=LTO_IR)
    library = maker.library((*THREE, every(0x800), container(lz4_image(), link_code))).read_bytes()
    names = (f"fat/libfat_device_sm_{number}.bc" for number in (75, 80, 90))
    bitcode = {name: b"BC\xc0\xde" * size for size, name in enumerate(names, 100)}
    linked = maker.linked_library(every(0x900), every(0xA00), every(0xB00)).read_bytes()
    # As in libnvjpeg: no wrapper points at the second container, so a split leaves it.
    (tmp_path / "lone.fatbin").write_bytes(every(0xD00))
    place = f'.section .nv_fatbin,"a"\n.balign 8\n.incbin "{tmp_path}/lone.fatbin"\n'
    lone = maker.library((every(0xC00),), more=place).read_bytes()
    libraries = {"fat/liblinked.so": linked, "fat/liblone.so": lone}
    more = {**bitcode, "fat/other.bc": b"BC", **libraries}
    wheel = fat_wheel(tmp_path, library=library, more=more)
    assert_agree(wheel, tmp_path, gpu)


def relinked_library(maker: Maker, toolkit: Toolkit) -> Path:
    """A library with a device link, whose input has PTX for all of its GPUs."""
    (maker.folder / "sample.cu").write_text(
        "__global__ void triple(float *x) { x[threadIdx.x] *= 3; }\n"
        'extern "C" int run(float *x) { triple<<<1, 32>>>(x); return 0; }\n'
    )
    targets = [f"-gencode=arch=compute_{n},code={code}" for n, code in CODES.items()]
    nvcc = (str(toolkit.nvcc), "-Xcompiler=-fPIC", *targets)
    maker.run(*nvcc, "-rdc=true", "-c", "sample.cu", "-o", "sample.o")
    maker.run(*nvcc, "-dlink", "sample.o", "-o", "linked.o")
    maker.run("gcc", "-shared", "linked.o", "sample.o", "-o", "libsample.so")
    return maker.folder / "libsample.so"


@pytest.mark.parametrize("ptx", [PtxPolicy.NEWEST, PtxPolicy.NONE])
def test_inspect_and_slim_agree_on_the_gpus_of_a_device_link(
    maker: Maker, small_toolkit: Toolkit, tmp_path: Path, ptx: PtxPolicy
) -> None:
    library = relinked_library(maker, small_toolkit)
    choice = for_devices("9.0", ptx=ptx)
    request = SlimRequest(source=library, out=tmp_path / "slim", selection=choice)
    report = slim_file(request, effects())
    assert report.output is not None
    changes = {one.capability: one for one in report.effects}
    for path in (library, Path(report.output)):
        usages = device_usage(read_inventory(InspectRequest(subject=str(path))), GPU_BY_CAPABILITY)
        for usage in usages:
            if usage.capability in changes:
                change = changes[usage.capability]
                counted = change.before if path is library else change.after
                assert usage.containers == {one: counted.get(one, 0) for one in Coverage}
    stops = {one.capability for one in report.effects if one.stops}
    # The driver links the input's PTX for the GPUs whose machine code is gone, and for newer ones.
    others = {one for one in GPU_BY_CAPABILITY if one.major >= 8} - choice.devices
    assert stops == (set() if ptx is PtxPolicy.NEWEST else others)


def test_lists_of_targets_count_the_input_of_a_device_link(
    maker: Maker, small_toolkit: Toolkit, tmp_path: Path
) -> None:
    library = relinked_library(maker, small_toolkit)

    def slim(keep: str, ptx: PtxPolicy) -> SlimReport:
        choice = Selection(keep=frozenset(parse_targets(keep)), ptx=ptx)
        return slim_file(SlimRequest(source=library, out=tmp_path, selection=choice), effects())

    assert not any(one.stops for one in slim("compute_80", PtxPolicy.NONE).effects)
    with pytest.raises(TargetError, match=r"nothing in 1 container .* \(12\.0 took compute_80\)"):
        slim("sm_90,compute_120", PtxPolicy.NONE)


def test_saving_of_ptx_agrees_with_slim(maker: Maker, tmp_path: Path) -> None:
    library = maker.linked_library(every(0x900), every(0xA00), every(0xB00)).read_bytes()
    wheel = fat_wheel(tmp_path, library=library)
    newest = SlimRequest(
        source=wheel, out=tmp_path / "slim", selection=for_devices("9.0", ptx=PtxPolicy.NEWEST)
    )
    none = replace(newest, selection=for_devices("9.0"))
    sizes = [
        sum(row.file_bytes for file in report.files for row in file.removed)
        for report in (slim_wheel(each, effects()) for each in (newest, none))
    ]
    assert slim_wheel(newest, effects()).newest_ptx_bytes == sizes[1] - sizes[0] > 0


def test_split_says_why_a_library_keeps_its_length(maker: Maker, tmp_path: Path) -> None:
    (tmp_path / "lone.fatbin").write_bytes(every(0xD00))
    place = f'.section .nv_fatbin,"a"\n.balign 8\n.incbin "{tmp_path}/lone.fatbin"\n'
    library = maker.library((*THREE, every(0x800)), more=place).read_bytes()
    wheel = fat_wheel(tmp_path, library=library)
    release = split_wheel(SplitRequest(source=wheel, out=tmp_path / "split"), effects())
    assert release.split is not None
    (note,) = release.split.libraries[0].notes
    assert note.startswith("keeps its length, with zeros in place: no pointer leads to container")


@pytest.mark.download
@pytest.mark.parametrize("gpu", ["7.5", "9.0"])
# libnvjpeg of torchvision has a container that no wrapper points at, which a split leaves.
@pytest.mark.parametrize("name", ["xgboost==3.2.0", "bitsandbytes==0.50.2", "torchvision==0.22.0"])
def test_inspect_slim_and_split_agree_about_wheels_of_the_index(
    name: str, gpu: str, downloads: Path, tmp_path: Path
) -> None:
    wheel = index_wheel(downloads, name)
    assert_agree(wheel, tmp_path, gpu)
    # What a user is told is an estimate of what the split gives by default.
    found = read_inventory(InspectRequest(subject=str(wheel), zstd=True))
    (sizes,) = device_usage(found, [Capability.parse(gpu)])
    needed = read_report(tmp_path / "split" / "archsplit-report.json").split
    assert needed is not None
    names = {*needed.needs[gpu]}
    wheels = (tmp_path / "split").glob("*.whl")
    real = sum(one.stat().st_size for one in wheels if label(one) in {"", *names})
    assert (sizes.core or 0) + (sizes.pack or 0) == pytest.approx(real, rel=0.03)


def label(wheel: Path) -> str:
    """Return the pack of a wheel's file name; "" for a core."""
    return wheel.name.partition("-")[0].partition("_")[2]
