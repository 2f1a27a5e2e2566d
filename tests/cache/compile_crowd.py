"""Many compilations at once with one store, and what they must come to."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

CODE = "from archsplit.cli.nvcc import launcher; launcher()"
SOURCE = """\
#include "h.h"
extern "C" __global__ void kernel{0}(int *p) {{ p[threadIdx.x] = {0} * VALUE; }}
"""


@dataclass(frozen=True, kw_only=True)
class Crowd:
    """Sources, a store for them, and the compiler."""

    folder: Path
    store: Path
    nvcc: Path
    sources: int

    def lay_out(self) -> None:
        self.folder.mkdir()
        (self.folder / "h.h").write_text("#define VALUE 3\n")
        for number in range(self.sources):
            (self.folder / f"k{number}.cu").write_text(SOURCE.format(number))
        time.sleep(0.1)  # what is younger than its compilation isn't known by its content

    def start(self, number: int, output: Path, *, cache: str = "on") -> subprocess.Popen[str]:
        """Begin to compile one of the sources."""
        environment = {
            **os.environ,
            "ARCHSPLIT_CACHE": cache,
            "ARCHSPLIT_CACHE_DIR": str(self.store),
            "ARCHSPLIT_CACHE_MIN_SECONDS": "0",
            "ARCHSPLIT_NVCC_OPTIONS": "--reproducible --explain",
        }
        # Only device code, which needs nothing else.
        words = ("-cubin", f"k{number}.cu", "-o", str(output), "-arch=sm_80")
        return subprocess.Popen(
            [sys.executable, "-c", CODE, str(self.nvcc), *words],
            cwd=self.folder,
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )

    def fill(self, processes: int, *, outputs: Path, seed: int) -> None:
        """Compile from many processes at once, of which a tenth is killed at random."""
        rng = random.Random(seed)
        outputs.mkdir()
        chosen = [rng.randrange(self.sources) for _ in range(processes)]
        started = [
            self.start(number, outputs / f"{at}-{number}.o") for at, number in enumerate(chosen)
        ]
        doomed = rng.sample(started, max(1, processes // 10))
        for process in doomed:
            time.sleep(rng.uniform(0.0, 1.0))
            process.kill()
        for process in started:
            said = process.communicate()[1]
            assert process in doomed or process.returncode == 0, said

    def compiled(self, output: Path, *, cache: str) -> dict[int, tuple[bytes, str]]:
        """Each source's object, and what was said."""
        found = {}
        for number in range(self.sources):
            process = self.start(number, output, cache=cache)
            said = process.communicate()[1]
            assert process.returncode == 0, said
            found[number] = (output.read_bytes(), said)
            output.unlink()
        return found


def damage(store: Path, *, seed: int) -> int:
    """Cut or flip half of all files at random; how many."""
    rng = random.Random(seed)
    paths = sorted((store / "ac").rglob("?" * 64))
    chosen = rng.sample(paths, len(paths) // 2)
    for path in chosen:
        blob = bytearray(path.read_bytes())
        at = rng.randrange(len(blob))
        if rng.random() < 0.5:
            del blob[at:]
        else:
            blob[at] ^= 1 << rng.randrange(8)
        path.write_bytes(blob)
    return len(chosen)
