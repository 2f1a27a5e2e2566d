"""Wheels that ship cubins as files: the rule in wheels and in environments, and its undo."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from slim_site_samples import snapshot
from slim_wheel_samples import fat_wheel

from archsplit.cli.main import main
from archsplit.slim.report import SLIM_NOTE_FILE
from archsplit.wheels.reader import open_wheel

pytestmark = pytest.mark.usefixtures("zipfile_for_pip")
NAME = "flashinfer_cubin-0.6-py3-none-any.whl"
FOLDER = "flashinfer_cubin/cubins/digest"
OURS, OTHERS = f"{FOLDER}/gemm_sm90.cubin", f"{FOLDER}/gemm_sm100.cubin"
ELSEWHERE = "flashinfer_cubin/other/gemm_sm100.cubin"


def cubin(number: int) -> bytes:
    """The head of a cubin, and bytes in place of its code."""
    ident = b"\x7fELF\x02\x01\x01\x41\x08" + bytes(7)
    fields = (2, 190, 1, 0, 0, 0, number << 8, 64, 0, 0, 64, 0, 0)
    return ident + struct.pack("<HHIQQQIHHHHHH", *fields) + bytes(range(256)) * 32


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of the family with cubins for two GPUs, and one outside of the family's folder."""
    more = {
        OURS: cubin(90),
        OTHERS: cubin(100),
        ELSEWHERE: cubin(100),
        f"{FOLDER}/flashinferMetaInfo.h": b"#pragma once\n",
        f"{FOLDER}/empty.cubin": b"",
    }
    folder = tmp_path_factory.mktemp("cubins")
    return fat_wheel(folder, name=NAME, library=b"a text", more=more)


def sizes(path: Path) -> dict[str, int]:
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        return {one.filename: one.file_size for one in members if ".cubin" in one.filename}


def test_a_wheel_keeps_the_cubins_of_its_gpu(
    wheel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sizes(wheel)
    assert main(["slim", str(wheel), "--device", "9.0", "--out", str(tmp_path)]) == 0
    assert f"{Path(FOLDER).parent}: 1 cubin" in capsys.readouterr().out.replace("│", " ")
    (new,) = tmp_path.glob("*.whl")
    assert sizes(new) == before | {OTHERS: 0}
    with open_wheel(new) as reread:
        reread.check_contents()
        note = json.loads(reread.read(f"{reread.dist_info}/{SLIM_NOTE_FILE}"))
    (file,) = note["files"]
    assert file["path"] == OTHERS
    assert [row["target"] for row in file["removed"]] == ["sm_100"]


def test_a_gpu_without_any_of_the_cubins_leaves_all_empty(wheel: Path, tmp_path: Path) -> None:
    assert main(["slim", str(wheel), "--device", "8.0", "--out", str(tmp_path)]) == 0
    (new,) = tmp_path.glob("*.whl")
    assert {name for name, size in sizes(new).items() if size} == {ELSEWHERE}


def test_a_gpu_of_all_cubins_has_nothing_to_remove(
    wheel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    choice = ("--device", "9.0,10.0")
    assert main(["slim", str(wheel), *choice, "--out", str(tmp_path)]) == 17
    assert "kept by --device" in capsys.readouterr().err


def bitcode(number: int) -> str:
    return f"nvidia/nvshmem/lib/libnvshmem_device_sm_{number}.bc"


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        (("--device", "9.0"), {90}),
        # A GPU without bitcode of its own takes the next older one.
        (("--device", "8.6,12.0"), {80, 100}),
        (("--keep", "sm_90"), {90}),
        (("--drop", "sm_80,sm_75"), {90, 100}),
    ],
)
def test_bitcode_stays_for_the_chosen_gpus(
    options: tuple[str, ...], kept: set[int], tmp_path: Path
) -> None:
    numbers = (75, 80, 90, 100)
    more = {bitcode(number): b"BC\xc0\xde" * number for number in numbers}
    more["nvidia/nvshmem/lib/libnvshmem_device.bc"] = b"BC\xc0\xde"
    wheel = fat_wheel(tmp_path, library=b"a text", more=more)
    assert main(["slim", str(wheel), *options, "--out", str(tmp_path / "out")]) == 0
    (new,) = (tmp_path / "out").glob("*.whl")
    with zipfile.ZipFile(new) as archive:
        sizes = {one.filename: one.file_size for one in archive.infolist()}
    assert {number for number in numbers if sizes[bitcode(number)]} == kept
    assert sizes["nvidia/nvshmem/lib/libnvshmem_device.bc"] == 4
    site = tmp_path / "site"
    pip = (sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-compile")
    subprocess.run([*pip, "--target", str(site), str(wheel)], check=True, capture_output=True)
    before = snapshot(site)
    assert main(["slim", "--site-packages", str(site), *options]) == 0
    assert {one for one in numbers if (site / bitcode(one)).stat().st_size} == kept
    assert main(["slim", "--site-packages", str(site), "--undo"]) == 0
    assert snapshot(site) == before


def test_an_environment_gets_every_cubin_back(
    wheel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = tmp_path / "a site"
    pip = (sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-compile")
    subprocess.run([*pip, "--target", str(site), str(wheel)], check=True, capture_output=True)
    before = snapshot(site)
    assert main(["slim", "--site-packages", str(site), "--device", "9.0"]) == 0
    assert {path.stat().st_size for path in (site / OURS, site / ELSEWHERE)} == {len(cubin(90))}
    assert (site / OTHERS).stat().st_size == 0
    capsys.readouterr()
    # Slimmed for one GPU, and used with another: the environment's check finds it.
    assert main(["doctor", "--site-packages", str(site), "--device", "10.0"]) == 5
    assert main(["slim", "--site-packages", str(site), "--undo"]) == 0
    assert snapshot(site) == before
