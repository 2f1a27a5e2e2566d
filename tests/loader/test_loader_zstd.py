"""Packs with zstd images, on drivers that read them and on older ones."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from loader_packs import LETTERS, SplitSite, split_site
from loader_stubs import STRICT, Workbench, compile_c, run
from loader_zstd import make_core, make_driver

from loader_objects import loader_objects

if TYPE_CHECKING:
    from pathlib import Path


def served(workbench: Workbench, core: SplitSite, driver: str) -> tuple[str, str]:
    code = f"{LETTERS}\nprint(letters({str(core.library)!r}))"
    path = f"{driver}:{workbench.folder}"
    done = workbench.python(core.site, code, gpus="9.0", LD_LIBRARY_PATH=path)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


def report(workbench: Workbench, core: SplitSite, driver: str) -> tuple[int, str]:
    environment = workbench.environment("9.0", LD_LIBRARY_PATH=f"{driver}:{workbench.folder}")
    done = run([sys.executable, str(core.face)], environment)
    return done.returncode, done.stdout


def test_driver_of_cuda_12_4_reads_the_mapped_frames(workbench: Workbench, tmp_path: Path) -> None:
    core = make_core(workbench, tmp_path / "site")
    driver = make_driver(tmp_path / "cuda", 12040)
    assert served(workbench, core, driver) == ("((", "")
    status, text = report(workbench, core, driver)
    assert status == 0
    assert "device.pack: the driver reads its zstd images" in text


def test_older_driver_gets_plain_images(workbench: Workbench, tmp_path: Path) -> None:
    core = make_core(workbench, tmp_path / "site")
    driver = make_driver(tmp_path / "cuda", 12020)
    assert served(workbench, core, driver) == ("hH", "")
    status, text = report(workbench, core, driver)
    assert status == 0
    assert (
        "its zstd images are unpacked by libzstd when a library is loaded, because the driver is"
        " for CUDA 12.2, and reads them from 12.4 on"
    ) in text


def test_plain_image_has_the_header_of_an_uncompressed_one(
    workbench: Workbench, tmp_path: Path
) -> None:
    core = make_core(workbench, tmp_path / "site")
    driver = make_driver(tmp_path / "cuda", 12020)
    reader = (
        "import ctypes, struct\n"
        f"library = ctypes.CDLL({str(core.library)!r})\n"
        f"base = [int(line.split('-')[0], 16) for line in open('/proc/self/maps')"
        f" if line.rstrip().endswith({str(core.library)!r})][0]\n"
        f"data = ctypes.c_uint64.from_address(base + {core.places[0][0]} + 8).value\n"
        "print(struct.unpack('<Q', ctypes.string_at(data + 8, 8)))\n"
        "print(struct.unpack('<HHIQIIIIIIQQQ', ctypes.string_at(data + 16, 64)))\n"
        "print(ctypes.string_at(data + 80, 64))\n"
    )
    done = workbench.python(
        core.site, reader, gpus="9.0", LD_LIBRARY_PATH=f"{driver}:{workbench.folder}"
    )
    assert done.stdout.splitlines() == [
        "(128,)",
        "(2, 257, 64, 64, 0, 0, 0, 90, 0, 0, 17, 0, 0)",
        str(b"h" * 64),
    ], done.stderr


def test_older_driver_without_libzstd_refuses_the_pack(
    workbench: Workbench, tmp_path: Path
) -> None:
    objects = loader_objects(*STRICT, '-DLIBZSTD="libnone.so"', "-fvisibility=hidden")
    loader = compile_c(tmp_path / "loader.so", "-shared", *objects, "-ldl", "-lpthread")
    core = make_core(workbench, tmp_path / "site", loader)
    driver = make_driver(tmp_path / "cuda", 12020)
    letters, said = served(workbench, core, driver)
    words = (
        "has zstd images, which drivers for CUDA 12.2 can't read; update the driver to CUDA 12.4,"
        " or install libzstd (apt install libzstd1)"
    )
    assert letters == "--"
    assert said.count(words) == 1
    status, text = report(workbench, core, driver)
    assert status == 1
    assert "driver-too-old" in text
    assert words in text


def test_damaged_frame_is_reported(workbench: Workbench, tmp_path: Path) -> None:
    core = make_core(workbench, tmp_path / "site", is_damaged=True)
    driver = make_driver(tmp_path / "cuda", 12020)
    letters, said = served(workbench, core, driver)
    assert letters == "--"
    assert "can't be unpacked; install the plugin again" in said


@pytest.mark.parametrize("cuda", [0, 12020])
def test_plain_pack_is_mapped_by_each_driver(
    workbench: Workbench, tmp_path: Path, cuda: int
) -> None:
    core = split_site(workbench, tmp_path / "site")
    core.add("cc90", "sm_90")
    driver = make_driver(tmp_path / "cuda", cuda)
    assert served(workbench, core, driver) == ("hH", "")
