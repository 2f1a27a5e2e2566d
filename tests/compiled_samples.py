"""Real files of every form that holds device code, compiled from a few lines."""

from __future__ import annotations

import struct
import subprocess
import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

KERNELS = """
__device__ float table[256];
template <typename T> __global__ void scale(T *x, T a) { x[threadIdx.x] *= a + table[threadIdx.x]; }
namespace { __global__ void shift(float *x, float a) { x[threadIdx.x] += a; } }
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
__global__ void only_new(float *x) { x[threadIdx.x] = 0.f; }
#endif
extern "C" void run(float *x) { scale<<<1, 32>>>(x, 2.f); shift<<<1, 32>>>(x, 3.f); }
"""
GENCODE = (
    "-gencode=arch=compute_80,code=sm_80",
    "-gencode=arch=compute_90,code=[sm_90,compute_90]",
    "-gencode=arch=compute_90a,code=sm_90a",
)
TARGETS = ["sm_80", "sm_90", "sm_90a", "compute_90"]
OUTSIDE = """
.section .rodata,"a"
.balign 8
.incbin "kernels.fatbin"
.incbin "plain.cubin"
# What begins as a container, but isn't one; and an ELF header of another machine.
.4byte 0xba55ed50
.2byte 1, 77
.incbin "empty.o"
.section .note.GNU-stack,"",%progbits
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """The folder of the samples, and the compiler that made them."""

    folder: Path
    nvcc: str

    def __truediv__(self, name: str) -> Path:
        return self.folder / name

    def run(self, *argv: str) -> None:
        done = subprocess.run(argv, cwd=self.folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{argv}\n{done.stdout}{done.stderr}"

    def compile(self, name: str, *options: str) -> None:
        self.run(self.nvcc, "-Xcompiler=-fPIC", *options, "kernels.cu", "-o", name)

    def wheel(self, name: str, *members: str, method: int = zipfile.ZIP_DEFLATED) -> Path:
        path = self.folder / name
        with zipfile.ZipFile(path, "w", method) as archive:
            archive.writestr("pkg/__init__.py", "# nothing\n")
            archive.writestr("pkg/empty.txt", "")
            for member in members:
                archive.write(self.folder / member, f"pkg/{member}")
            archive.writestr("pkg-1.0.dist-info/RECORD", "this is not what is in here\n")
        return path


def make_samples(samples: Samples) -> Samples:
    """Compile every form of file that holds device code, and some that hold none."""
    (samples / "kernels.cu").write_text(KERNELS)
    (samples / "empty.c").write_text("int nothing;\n")
    (samples / "outside.S").write_text(OUTSIDE)
    samples.compile("kernels.o", *GENCODE, "-c")
    samples.compile("zstd.o", *GENCODE[:2], "-c", "--compress-mode=size")
    samples.compile("lz4.o", *GENCODE[:2], "-c", "--compress-mode=speed")
    samples.compile("rdc.o", *GENCODE[:2], "-c", "-rdc=true")
    samples.compile("lto.o", "-gencode=arch=compute_90,code=lto_90", "-c", "-rdc=true")
    samples.compile("kernels.fatbin", *GENCODE, "-fatbin")
    samples.compile("plain.cubin", "-arch=sm_90a", "-cubin")
    samples.run("gcc", "-fPIC", "-c", "empty.c")
    samples.run("gcc", "-c", "outside.S")
    samples.run("gcc", "-shared", "kernels.o", "-o", "libkernels.so")
    samples.run("gcc", "-shared", "kernels.o", "outside.o", "-o", "liboutside.so")
    samples.run("gcc", "-shared", "empty.o", "-o", "libempty.so")
    long_name = "a_name_that_is_too_long_for_the_header.o"
    (samples / long_name).write_bytes((samples / "rdc.o").read_bytes())
    (samples / "odd.txt").write_text("odd")
    samples.run("ar", "rcs", "libkernels.a", "kernels.o", "odd.txt", long_name, "empty.o")
    (samples / "libstripped.so").write_bytes(stripped((samples / "liboutside.so").read_bytes()))
    samples.wheel("pkg-1.0-py3-none-any.whl", "libkernels.so", "libempty.so", "rdc.o")
    samples.wheel("stored-1.0-py3-none-any.whl", "libkernels.so", method=zipfile.ZIP_STORED)
    return samples


def stripped(library: bytes) -> bytes:
    """Return the library without section headers: they stay in the file, unreferenced."""
    head = bytearray(library)
    struct.pack_into("<Q", head, 40, 0)
    struct.pack_into("<HH", head, 60, 0, 0)
    return bytes(head)
