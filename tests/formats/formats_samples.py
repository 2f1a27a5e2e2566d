"""Samples of the readers: small real files, compiled once."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elftools.elf.sections import SymbolTableSection

from archsplit.arch.target import Target
from archsplit.formats.descriptor import Descriptor, Shape
from archsplit.formats.reader import open_file

if TYPE_CHECKING:
    from pathlib import Path

    from elftools.elf.elffile import ELFFile
    from elftools.elf.sections import Symbol

    from archsplit.formats.reader import Window

KERNELS = """
__global__ void scale(float *x, float a) { x[threadIdx.x] *= a; }
__global__ void shift(float *x, float a) { x[threadIdx.x] += a; }
extern "C" void run(float *x) { scale<<<1, 32>>>(x, 2.f); shift<<<1, 32>>>(x, 3.f); }
"""
TARGETS = ("sm_80", "sm_90", "sm_90a", "sm_120f", "compute_90")
GENCODE = (
    "-gencode=arch=compute_80,code=sm_80",
    "-gencode=arch=compute_90,code=[sm_90,compute_90]",
    "-gencode=arch=compute_90a,code=sm_90a",
    "-gencode=arch=compute_120f,code=sm_120f",
)
WRAPPED = """
.section .nv_fatbin,"a"
.balign 8
fatbin: .incbin "{fatbin}"
.section .nvFatBinSegment,"aw"
.balign 8
.4byte 0x466243b1, 1
.8byte {pointer}, 0
.section .note.GNU-stack,"",%progbits
"""
NOTED = """
.section .note.archsplit,"a",%note
.balign 4
.incbin "{note}"
.section .note.GNU-stack,"",%progbits
"""
DESCRIPTOR = Descriptor(
    package="vecsort",
    version="1.2.3",
    build_id=bytes(range(32)),
    interface_hash=bytes(range(32, 64)),
    cuda_version=13000,
    shape=Shape.LIBRARY,
    targets=(Target.parse("sm_90a"), Target.parse("compute_120")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """The folder of the samples, and the programs that made them."""

    folder: Path
    nvcc: str

    def window(self, name: str) -> Window:
        return open_file(self.folder / name)

    def bytes(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()

    def compile(self, name: str, *arguments: str, targets: tuple[str, ...] = GENCODE) -> Path:
        self.run(self.nvcc, *targets, *arguments, "-o", name)
        return self.folder / name

    def link(self, name: str, *arguments: str) -> Path:
        self.run("gcc", *arguments, "-o", name)
        return self.folder / name

    def link_aarch64(self, name: str, *arguments: str) -> Path:
        zig = (sys.executable, "-m", "ziglang", "cc", "-target", "aarch64-linux-gnu.2.17")
        # Without these two zig compiles its runtimes first, which takes 10 s.
        none = ("-nostdlib", "-fno-sanitize=undefined", "-rtlib=none")
        self.run(*zig, *none, *arguments, "-o", name)
        return self.folder / name

    def run(self, *argv: str) -> str:
        done = subprocess.run(argv, cwd=self.folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{argv}\n{done.stdout}{done.stderr}"
        return done.stdout


def pyelftools_symbols(elf: ELFFile, table: str) -> list[Symbol]:
    """Return the symbols of a table, as pyelftools reads them."""
    section = elf.get_section_by_name(table)
    assert isinstance(section, SymbolTableSection)
    return list(section.iter_symbols())


def make_samples(samples: Samples) -> Samples:
    """Compile every kind of file with device code, and some without."""
    (samples.folder / "kernels.cu").write_text(KERNELS)
    pic = ("-Xcompiler=-fPIC", "kernels.cu")
    samples.compile("kernels.o", "-c", *pic)
    samples.compile("compressed.o", "-c", "--compress-mode=size", *pic)
    samples.compile("plain.fatbin", "-fatbin", "--no-compress", "kernels.cu")
    samples.compile("rdc.o", "-c", "-rdc=true", *pic, targets=GENCODE[:2])
    samples.compile("linked.o", "-dlink", "-Xcompiler=-fPIC", "rdc.o", targets=GENCODE[:2])
    for target in ("sm_75", "sm_90a", "sm_100f"):
        samples.compile(f"{target}.cubin", "-cubin", "kernels.cu", targets=(f"-arch={target}",))
    _link_samples(samples)
    return samples


def _link_samples(samples: Samples) -> None:
    undefined = "-Wl,--unresolved-symbols=ignore-all"
    samples.link("libkernels.so", "-shared", "kernels.o", "-Wl,-soname,libkernels.so.1")
    samples.link("librdc.so", "-shared", "rdc.o", "linked.o")
    samples.link("librelr.so", "-shared", "kernels.o", "-Wl,-z,pack-relative-relocs")
    samples.link("program", "-no-pie", "kernels.o", undefined)
    (samples.folder / "wrapped.S").write_text(
        WRAPPED.format(fatbin="plain.fatbin", pointer="fatbin")
    )
    samples.link_aarch64("libaarch64.so", "-shared", "wrapped.S")
    samples.link_aarch64("aarch64.o", "-c", "wrapped.S")
