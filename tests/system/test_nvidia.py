from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from archsplit.system.nvidia import detect_gpus, driver_version

if TYPE_CHECKING:
    from pathlib import Path


def put_tool(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    folder.mkdir()
    tool = folder / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


def put_driver(folder: Path, source: str) -> None:
    """Compile a driver; without a source, the file is none."""
    path = folder / "libcuda.so.1"
    if not source:
        path.write_text("no library")
        return
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)]
    subprocess.run(command, input=source.encode(), check=True)


def put_gpu(proc: Path, address: str, text: str) -> None:
    (proc / address).mkdir(parents=True)
    (proc / address / "information").write_text(text)


def test_nvidia_smi_reports_the_capabilities(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_tool(tmp_path / "bin", monkeypatch, "echo 9.0; echo 12.0")
    assert detect_gpus(proc=tmp_path) == ("9.0", "12.0")


def test_without_nvidia_smi_the_kernel_driver_reports_the_products(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_tool(tmp_path / "bin", monkeypatch, "echo no devices; exit 6")
    put_gpu(tmp_path / "gpus", "0000:01:00.0", "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ: 1\n")
    put_gpu(tmp_path / "gpus", "0000:02:00.0", "Model:\t NVIDIA A10  \n")
    assert detect_gpus(proc=tmp_path / "gpus") == ("NVIDIA H100 80GB HBM3", "NVIDIA A10")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert detect_gpus(proc=tmp_path / "gpus") == ("NVIDIA H100 80GB HBM3", "NVIDIA A10")


def test_a_machine_without_a_driver_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert detect_gpus(proc=tmp_path / "gpus") == ()


@pytest.mark.parametrize(
    ("source", "version"),
    [
        ("int cuDriverGetVersion(int *version) { *version = 12040; return 0; }", 12040),
        ("int another_function(void) { return 0; }", 0),
        ("", 0),
    ],
)
def test_driver_version_comes_from_cuda(
    source: str, version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_driver(tmp_path, source)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert driver_version() == version
