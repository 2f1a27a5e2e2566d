"""Programs made by the stand-in and by nvcc, run side by side on a GPU."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from source_roots import SOURCE_PATH

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.gpu

LAUNCH = (sys.executable, "-c", "from archsplit.cli.nvcc import launcher; launcher()")
SOURCES = {
    "sort.cu": """
#include <thrust/device_vector.h>
#include <thrust/host_vector.h>
#include <thrust/sort.h>
#include <cstdio>
int main() {
    thrust::host_vector<unsigned> host(1 << 20);
    unsigned state = 1;
    for (auto& value : host) value = state = state * 1664525u + 1013904223u;
    thrust::device_vector<unsigned> device = host;
    thrust::sort(device.begin(), device.end());
    host = device;
    unsigned long long sum = 0;
    for (size_t i = 0; i < host.size(); ++i) sum += host[i] * (unsigned long long)(i + 1);
    std::printf("%llu %u %u\\n", sum, host.front(), host.back());
}
""",
    "state.cu": """
__device__ int total;
__device__ int doubled(int value) { atomicAdd(&total, value); return 2 * value; }
static __global__ void hidden(int* out) { *out = total; }
int read_total() {
    int *out, value;
    cudaMallocManaged(&out, sizeof *out);
    hidden<<<1, 1>>>(out);
    if (cudaDeviceSynchronize() != cudaSuccess) return -1;
    value = *out;
    cudaFree(out);
    return value;
}
""",
    "uses.cu": """
#include <cstdio>
extern __device__ int doubled(int value);
extern int read_total();
__global__ void fill(int* out) { out[threadIdx.x] = doubled(threadIdx.x); }
int main() {
    int* out;
    cudaMallocManaged(&out, 64 * sizeof *out);
    fill<<<1, 64>>>(out);
    if (cudaDeviceSynchronize() != cudaSuccess) { std::printf("failed\\n"); return 1; }
    int sum = 0;
    for (int i = 0; i < 64; ++i) sum += out[i];
    std::printf("%d %d\\n", sum, read_total());
}
""",
}
TWO = "-gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=[sm_90,compute_90]"
EXTENSION = """
#include <torch/extension.h>
__global__ void twice(float* x) { x[threadIdx.x] *= 2; }
torch::Tensor doubled(torch::Tensor values) {
    auto result = values.clone();
    twice<<<1, static_cast<unsigned>(result.numel())>>>(result.data_ptr<float>());
    return result;
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) { module.def("doubled", &doubled); }
"""
USE_EXTENSION = """
import torch
from torch.utils.cpp_extension import load
module = load(name="probe", sources=["probe.cu"], build_directory=".")
print(module.doubled(torch.arange(4, dtype=torch.float32, device="cuda")).tolist())
"""
PROGRAMS = {
    "whole program": [f"{TWO} sort.cu -o app"],
    "only PTX": ["-gencode arch=compute_90,code=compute_90 sort.cu -o app"],
    "relocatable": [f"{TWO} -rdc=true state.cu uses.cu -o app"],
    "relocatable, step by step": [
        f"{TWO} -dc state.cu uses.cu",
        f"{TWO} -dlink state.o uses.o -o linked.o",
        "state.o uses.o linked.o -arch=sm_90 -o app",
    ],
    "link-time optimization": ["-dlto -rdc=true -arch=sm_90 state.cu uses.cu -o app"],
    "static library": [
        f"{TWO} -rdc=true -lib state.cu -o s.a",
        f"{TWO} -rdc=true uses.cu s.a -o app",
    ],
}
EXPECTED = {"relocatable": "4032 2016\n", "static library": "4032 2016\n"}


def made_and_run(folder: Path, compiler: tuple[str, ...], lines: list[str]) -> str:
    folder.mkdir()
    for name, text in SOURCES.items():
        (folder / name).write_text(text)
    environment = {**os.environ, "PYTHONPATH": SOURCE_PATH, "ARCHSPLIT_CACHE": "off"}
    for line in lines:
        argv = (*compiler, *line.split())
        done = subprocess.run(
            argv, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, ""), line
    return subprocess.check_output("./app", cwd=folder, text=True)


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_runs_like_nvccs(name: str, tmp_path: Path) -> None:
    nvcc = shutil.which("nvcc")
    assert nvcc is not None, "this test needs nvcc on the PATH"
    theirs = made_and_run(tmp_path / "theirs", (nvcc,), PROGRAMS[name])
    ours = made_and_run(tmp_path / "ours", (*LAUNCH, nvcc), PROGRAMS[name])
    assert ours == theirs
    assert ours == EXPECTED.get(name, ours)


def test_pytorch_builds_an_extension_with_it(tmp_path: Path) -> None:
    launcher = tmp_path / "archsplit-nvcc"
    program = "from archsplit.cli.nvcc import launcher; launcher()"
    calls = tmp_path / "calls"
    launcher.write_text(
        f'#!/bin/sh\necho "$*" >> {calls}\nexec "{sys.executable}" -c "{program}" "$@"\n'
    )
    launcher.chmod(0o755)
    (tmp_path / "probe.cu").write_text(EXTENSION)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((SOURCE_PATH, os.environ.get("PYTHONPATH", ""))),
        "PYTORCH_NVCC": str(launcher),
        "TORCH_CUDA_ARCH_LIST": "8.0;9.0+PTX",
        "ARCHSPLIT_CACHE": "off",
    }
    said = subprocess.check_output(
        (sys.executable, "-c", USE_EXTENSION), cwd=tmp_path, env=environment, text=True
    )
    assert said.splitlines()[-1] == "[0.0, 2.0, 4.0, 6.0]"
    assert "compute_80" in calls.read_text()
