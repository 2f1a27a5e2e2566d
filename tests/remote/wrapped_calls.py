"""Calls of the compiler wrapper with a farm behind it, beside calls without one."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

from warm_programs import decoded, run_archsplit_nvcc

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

TWO = (
    *("-gencode", "arch=compute_80,code=sm_80"),
    *("-gencode", "arch=compute_90,code=sm_90"),
)
SOURCE = """\
#include "h.h"
static __global__ void kernel(int *p) { int unused; p[threadIdx.x] = VALUE; }
void run(int *p) { kernel<<<1, 32>>>(p); }
"""
UP = "__host__ __device__ __forceinline__ int twice(int x) { return x * 7 + x; }\n"
LINES = """\
#include "inc/../../up.h"
#include <cuda_fp16.h>
__global__ void kernel(int *p, __half2 *q) { *p = twice(*p) + 1; *q = __hmax2(q[0], q[1]); }
void run(int *p) { kernel<<<1, 1>>>(p, nullptr); }
"""


class WrappedCalls:
    """A folder with a source, and calls of the wrapper for it."""

    def __init__(self, folder: Path, nvcc: Path) -> None:
        self.folder = folder
        self._nvcc = nvcc
        self.sources = folder / "the sources"
        (self.sources / "inc").mkdir(parents=True)
        (self.sources / "k.cu").write_text(SOURCE)
        (self.sources / "inc/h.h").write_text("#define VALUE 3\n")
        (self.sources / "lines.cu").write_text(LINES)
        (folder / "up.h").write_text(UP)
        (folder / "tmp").mkdir()

    def compile(
        self,
        output: str,
        *words: object,
        cache: str = "",
        source: str = "k.cu",
        more: tuple[str, ...] = (),
    ) -> subprocess.CompletedProcess[str]:
        """Compile the source with options of the wrapper.

        Args:
            output: name of the object and of its rule for make.
            words: the options.
            cache: name of the cache's folder; "" for none.
            source: its name.
            more: further options of nvcc.
        """
        options = ["--nvcc", self._nvcc, "--reproducible", *words]
        nvcc = (
            "-c",
            source,
            "-o",
            f"{output}.o",
            "-I",
            "inc",
            "-MD",
            "-MF",
            f"{output}.d",
            *TWO,
            *more,
        )
        environment = {
            **os.environ,
            "ARCHSPLIT_NVCC_OPTIONS": shlex.join(map(str, options)),
            "ARCHSPLIT_CACHE": "on" if cache else "off",
            "ARCHSPLIT_CACHE_DIR": str(self.folder / (cache or "none")),
            "ARCHSPLIT_CACHE_MIN_SECONDS": "0",
            "XDG_RUNTIME_DIR": str(self.folder),
            "TMPDIR": str(self.folder / "tmp"),
            "SECRET_OF_THE_USER": "a secret",
        }
        return decoded(run_archsplit_nvcc(nvcc, cwd=self.sources, env=environment))

    def outputs(self, output: str) -> tuple[bytes, str]:
        """Return an object, and its rule for make without the object's name."""
        rule = (self.sources / f"{output}.d").read_text()
        return (self.sources / f"{output}.o").read_bytes(), rule.replace(f"{output}.o", "")

    def check(self, *engine: object, dead: tuple[object, ...]) -> str:
        """Compare a call through a farm with one on this machine; return what is reported of it.

        Args:
            engine: options that name the farm.
            dead: options that name a farm that no one can reach.
        """
        here = self.compile("here", cache="cache of this machine")
        assert (here.returncode, here.stdout) == (0, "")
        there = self.compile("there", *engine, "--explain", cache="cache of the farm")
        assert there.returncode == 0, there.stderr
        assert self.outputs("there") == self.outputs("here")
        warnings = [line for line in there.stderr.splitlines() if "unused" in line]
        assert warnings
        assert warnings == [line for line in here.stderr.splitlines() if "unused" in line]
        # The results of the farm serve this machine, and the other way round.
        again = self.compile("again", "--explain", cache="cache of the farm")
        assert "archsplit: cache hit (local)" in again.stderr, again.stderr
        assert self.outputs("again") == self.outputs("here")
        known = self.compile("known", *dead, "--explain", cache="cache of this machine")
        assert "archsplit: cache hit (local)" in known.stderr, known.stderr
        assert self.outputs("known") == self.outputs("here")
        # Another comment changes the key of the whole, and no step.
        (self.sources / "k.cu").write_text(SOURCE + "// a comment\n")
        steps = self.compile("steps", *dead, "--explain", cache="cache of this machine")
        assert steps.returncode == 0, steps.stderr
        assert "cicc compute_90: cache hit (local)" in steps.stderr
        assert not [line for line in steps.stderr.splitlines() if ": cache miss" in line], (
            steps.stderr
        )
        # Names of sources are absolute in PTX, and their times are in cubins: all steps run here.
        for words in (("-lineinfo",), ("-G",)):
            done = self.compile("here", source="lines.cu", more=words)
            assert done.returncode == 0, done.stderr
            done = self.compile("there", *engine, "--explain", source="lines.cu", more=words)
            assert done.returncode == 0, done.stderr
            assert self.outputs("there") == self.outputs("here"), words
        return there.stderr
