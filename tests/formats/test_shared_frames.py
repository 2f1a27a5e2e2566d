"""Frames of several images (kind 256), as nvFatbin's ``-concat`` writes them."""

from __future__ import annotations

import ctypes
import subprocess
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from archsplit.devicecode.decompression import image_content
from archsplit.devicecode.encoders import compress_zstd
from archsplit.devicecode.recompress import frame_entry
from archsplit.devicecode.select import PtxPolicy
from archsplit.formats.fatbin import EntryKind, read_container
from archsplit.formats.reader import Window
from handmade_samples import container, for_devices, slimmed
from shared_frames import frame, record

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.formats.fatbin import Container, FatbinEntry
    from archsplit.nvcc.toolkit import Toolkit

KERNELS = """
template <int N> __global__ void scale(float *x) { for (int i = 0; i < N; ++i) x[i] *= sinf(x[N]); }
template __global__ void scale<3>(float *);
template __global__ void scale<64>(float *);
"""
TARGETS = ("sm_80", "sm_90", "sm_90a", "sm_100f", "compute_90")


def read(entry: bytes) -> tuple[FatbinEntry, ...]:
    (found,) = read_container(Window(container(entry), source="made"), 0).entries()
    return read_container(Window(container(entry), source="made"), 0).inner_entries(found)


def test_images_of_a_frame_are_read_from_its_table() -> None:
    entry = frame(
        record("sm_80", 0, 16),
        record("sm_90a", 16, 24, name=b"a.cu"),
        # With the NUL, eight letters take sixteen bytes.
        record("compute_90", 40, 8, name=b"abcdefgh", options=b"-O3 -g -"),
        record("sm_120", 48, 8, options=b"-O3"),
    )
    found = read(entry)
    assert [str(one.target) for one in found] == ["sm_80", "sm_90a", "compute_90", "sm_120"]
    assert [(one.frame_start, one.padded_size) for one in found] == [
        *((0, 16), (16, 24), (40, 8), (48, 8)),
    ]
    # The name and the options, with their NUL.
    assert [one.header_size for one in found] == [64, 72, 104, 80]
    assert sum(one.size for one in found) == len(entry)


@pytest.mark.parametrize(
    "entry",
    [
        frame(record("sm_80", 0, 16), kind=8),
        frame(record("sm_80", 0, 16), count=0xFFFF_FFFF),
        frame(record("sm_80", 0, 16), count=0),
        frame(count=0),
        frame(record("sm_80", 0, 0)),
        frame(record("sm_80", 0, 16), size=0xFFFF_FFF8),
        frame(record("sm_80", 0, 16), size=4),
        frame(record("sm_80", 0, 16), raw=24),
        frame(record("sm_80", 8, 16), raw=16),
        frame(record("sm_80", 0, 1 << 63), raw=16),
        frame(record("sm_80", 0, 16), record("sm_90", 8, 16)),
        frame(record("sm_80", 0, 16, options_at=0xFFFF_FFF0)),
        frame(record("sm_80", 0, 16, name=b"a.cu", name_size=0xFFFF_FFF0)),
        frame(record("sm_80", 0, 16), table_at=0xF8),
    ],
)
def test_table_without_a_matching_frame_is_unknown(entry: bytes) -> None:
    assert read(entry) == ()


def make_fatbin(library: ctypes.CDLL, images: dict[str, bytes], *more: bytes) -> bytes:
    handle, size = ctypes.c_void_p(), ctypes.c_size_t()

    def call(name: str, *arguments: object) -> None:
        assert library[name](*arguments) == 0, name

    words = (b"-64", b"-compress-all", *more)
    options = (ctypes.c_char_p * len(words))(*words)
    call("nvFatbinCreate", ctypes.byref(handle), options, ctypes.c_size_t(len(words)))
    for target, content in images.items():
        kind, _, arch = target.partition("_")
        data = (handle, content, ctypes.c_size_t(len(content)), arch.encode(), target.encode())
        if kind == "sm":
            call("nvFatbinAddCubin", *data)
        else:
            call("nvFatbinAddPTX", *data, b"-O3")
    call("nvFatbinSize", handle, ctypes.byref(size))
    fatbin = ctypes.create_string_buffer(size.value)
    call("nvFatbinGet", handle, fatbin)
    call("nvFatbinDestroy", ctypes.byref(handle))
    return fatbin.raw


def opened(fatbin: bytes) -> tuple[Container, tuple[FatbinEntry, ...]]:
    found = read_container(Window(fatbin, source="made"), 0)
    return found, found.images(found.entries())


@dataclass(frozen=True)
class Compiled:
    """Images by target, and nvFatbin."""

    library: ctypes.CDLL
    images: dict[str, bytes]


@pytest.fixture(scope="module")
def compiled(toolkit: Toolkit, tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    tmp_path = tmp_path_factory.mktemp("frames")
    libraries = sorted(toolkit.nvcc.parents[1].glob("lib*/libnvfatbin.so.13"))
    if not libraries:
        pytest.skip("nvidia-nvfatbin is not installed")
    source, images = tmp_path / "kernels.cu", {}
    source.write_text(KERNELS)
    for target in TARGETS:
        output = tmp_path / target
        form = "-cubin" if target.startswith("sm_") else "-ptx"
        command = [str(toolkit.nvcc), form, f"-arch={target}", str(source), "-o", str(output)]
        subprocess.run(command, check=True)
        images[target] = output.read_bytes() + b"\0" * (form == "-ptx")
    return Compiled(ctypes.CDLL(str(libraries[0])), images)


@pytest.mark.nvcc
def test_every_image_of_nvfatbin_is_found(compiled: Compiled) -> None:
    fatbin, found = opened(make_fatbin(compiled.library, compiled.images, b"-concat"))
    assert Counter(str(one.target) for one in found) == Counter(TARGETS)
    for one in found:
        content = image_content(fatbin, one)
        # PTX has lost its comments.
        if one.kind is EntryKind.PTX:
            assert b".target sm_90\n" in content
        else:
            assert content == compiled.images[str(one.target)]


@pytest.mark.nvcc
def test_image_of_a_frame_equals_nvfatbins_single_image(compiled: Compiled) -> None:
    fatbin, found = opened(make_fatbin(compiled.library, compiled.images, b"-concat"))
    by_target = {str(one.target): one for one in found}
    plain, entries = opened(make_fatbin(compiled.library, compiled.images))
    for entry in entries:
        one = by_target[str(entry.target)]
        raw = image_content(fatbin, one)
        # In a frame, PTX has NULs up to a multiple of eight bytes.
        raw = raw.rstrip(b"\0") + b"\0" if entry.kind is EntryKind.PTX else raw
        made = frame_entry(fatbin, one, compress_zstd(raw, 5), len(raw))
        assert made == plain.body.at(entry.offset, entry.size, "entry").to_bytes()


@pytest.mark.nvcc
def test_cuobjdump_reads_frames_after_slim(
    compiled: Compiled, toolkit: Toolkit, tmp_path: Path
) -> None:
    path = tmp_path / "all.fatbin"
    path.write_bytes(make_fatbin(compiled.library, compiled.images, b"-concat"))
    new, plan = slimmed(path, for_devices("9.0", ptx=PtxPolicy.NEWEST))
    assert new.stat().st_size < path.stat().st_size
    assert {str(one.target) for one in plan.containers[0].kept} == {"sm_90a", "compute_90"}
    cuobjdump = [str(toolkit.nvcc.with_name("cuobjdump"))]
    subprocess.run([*cuobjdump, "-xelf", "all", str(new)], cwd=tmp_path, check=True)
    assert [one.read_bytes() for one in tmp_path.glob("*.cubin")] == [compiled.images["sm_90a"]]
    words = subprocess.check_output([*cuobjdump, "-lptx", str(new)], text=True)
    assert words.count(".ptx") == 1
