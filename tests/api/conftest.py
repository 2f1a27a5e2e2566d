"""A small fat wheel under a real one's name, for the examples of the reference."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
from wheel.wheelfile import WheelFile  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.nvcc.toolkit import Toolkit

FAT = "xgboost-3.2.0-py3-none-manylinux_2_28_x86_64.whl"
TARGETS = ("compute_80,code=sm_80", "compute_90,code=sm_90", "compute_90,code=compute_90")
KERNEL = """
__global__ void predict(float *out, int rows) { if (threadIdx.x < rows) out[threadIdx.x] = 1.0f; }
extern "C" int launch(float *out) { predict<<<1, 32>>>(out, 32); return cudaGetLastError(); }
"""


@pytest.fixture(scope="session")
def fat_wheel(tmp_path_factory: pytest.TempPathFactory, small_toolkit: Toolkit) -> Path:
    folder = tmp_path_factory.mktemp("fat")
    tree = folder / "tree"
    library, info = tree / "xgboost/lib/libxgboost.so", tree / "xgboost-3.2.0.dist-info"
    for each in (library.parent, info):
        each.mkdir(parents=True)
    source = folder / "predict.cu"
    source.write_text(KERNEL)
    options = ["-shared", "-Xcompiler=-fPIC", f"-L{small_toolkit.library_folder}"]
    options += [f"-gencode=arch={target}" for target in TARGETS]
    subprocess.run([small_toolkit.nvcc, *options, "-o", library, source], check=True)
    (tree / "xgboost/__init__.py").write_text("")
    tag = FAT.removesuffix(".whl").split("-", 2)[2]
    (info / "METADATA").write_text("Metadata-Version: 2.4\nName: xgboost\nVersion: 3.2.0\n")
    head = "Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: false\n"
    (info / "WHEEL").write_text(f"{head}Tag: {tag}\n")
    path = folder / FAT
    with WheelFile(path, "w") as wheel:
        wheel.write_files(str(tree))
    return path
