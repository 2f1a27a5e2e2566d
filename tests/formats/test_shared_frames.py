"""Frames of several images (kind 256), as nvFatbin's ``-concat`` writes them."""

from __future__ import annotations

import ctypes
import subprocess
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from archsplit.devicecode.edits import decompress
from archsplit.formats.fatbin import read_container
from archsplit.formats.reader import Window
from handmade_samples import container
from shared_frames import frame, record

if TYPE_CHECKING:
    from collections.abc import Iterator
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
    assert [(one.header_size, one.padded_size) for one in found] == [
        *((0, 16), (16, 24), (40, 8), (48, 8)),
    ]


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
def test_table_that_does_not_describe_its_frame_is_unknown(entry: bytes) -> None:
    assert read(entry) == ()


def make_fatbin(library: ctypes.CDLL, images: dict[str, bytes]) -> bytes:
    handle, size = ctypes.c_void_p(), ctypes.c_size_t()

    def call(name: str, *arguments: object) -> None:
        assert library[name](*arguments) == 0, name

    options = (ctypes.c_char_p * 2)(b"-64", b"-concat")
    call("nvFatbinCreate", ctypes.byref(handle), options, ctypes.c_size_t(2))
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


def inner_images(fatbin: Container) -> Iterator[tuple[str, bytes]]:
    for entry in fatbin.entries():
        raw = decompress(entry, fatbin.payload(entry))
        for one in fatbin.inner_entries(entry):
            yield str(one.target), raw[one.header_size : one.header_size + one.padded_size]


@pytest.mark.nvcc
def test_every_image_that_nvfatbin_concatenates_is_found(toolkit: Toolkit, tmp_path: Path) -> None:
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
    fatbin = make_fatbin(ctypes.CDLL(str(libraries[0])), images)
    found = list(inner_images(read_container(Window(fatbin, source="made"), 0)))
    assert Counter(target for target, _ in found) == Counter(TARGETS)
    for target, content in found:
        # PTX has lost its comments.
        is_ptx = target.startswith("compute_")
        assert b".target sm_90\n" in content if is_ptx else content == images[target]
