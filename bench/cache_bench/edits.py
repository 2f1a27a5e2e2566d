"""Edits after which an object of before is wrong."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cache_bench.reuse import flags_for, write
from cache_bench.table import Row
from cache_bench.tools import OURS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from cache_bench.tools import Tool

SOURCE = """\
#include "plain.h"
#ifndef __CUDA_ARCH__
int seen() { return ON_HOST; }
#endif
__global__ void one(float *p) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#include "deep.h"
  *p += ON_90 + DEEP;
#endif
  *p = sinf(*p) * PLAIN * FORCED;
}
void run(float *p) { one<<<1, 1>>>(p); }
"""
_COEFFICIENT = 0x3C0885E4
_FLAGS = ("-Iearly", "-Ilate", "-include", "forced.h", *flags_for(["80", "90"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Sources, and what an edit may change beside them."""

    folder: Path
    toolkit: Path
    bin: Path
    macros: dict[str, int] = field(default_factory=dict)

    def lay_out(self) -> None:
        """Write everything as it is before an edit."""
        for name in ("early", "late"):
            (self.folder / name).mkdir(parents=True)
        self.header("late/plain.h", "PLAIN", 1)
        self.header("deep.h", "DEEP", 1)
        self.header("forced.h", "FORCED", 1)
        self.source()
        self.bin.mkdir()
        self.compiler("")

    def source(self, **values: int) -> None:
        """The source with other values of its own."""
        found = {"ON_HOST": 1, "ON_90": 1, **values}
        write(self.folder, "".join(f"#define {n} {v}\n" for n, v in found.items()) + SOURCE)

    def header(self, name: str, macro: str, value: int) -> None:
        """One of the headers."""
        (self.folder / name).write_text(f"#undef {macro}\n#define {macro} {value}\n")
        write(self.folder, (self.folder / "k.cu").read_text() if value > 1 else "")

    def libdevice(self) -> None:
        """Another libdevice: a coefficient of the sine's polynomial differs in its last bit."""
        path = self.toolkit / "nvvm" / "libdevice" / "libdevice.10.bc"
        bits = "".join(f"{byte:08b}"[::-1] for byte in path.read_bytes())
        changed = bits.replace(_chunks(_COEFFICIENT), _chunks(_COEFFICIENT ^ 1))
        path.write_bytes(bytes(int(changed[at : at + 8][::-1], 2) for at in range(0, len(bits), 8)))

    def compiler(self, flag: str) -> None:
        """The host's compiler, with a flag of its own."""
        for name in ("gcc", "g++"):
            path = self.bin / name
            path.write_text(f'#!/bin/sh\nexec {shutil.which(name)} {flag} "$@"\n')
            path.chmod(0o755)


def _chunks(value: int) -> str:
    """The bits by which LLVM's bitcode says a number: six at a time, one of them for "more"."""
    chunks = []
    while value:
        value, low = value >> 5, value & 0b11111
        chunks.append(f"{low | (0b100000 if value else 0):06b}"[::-1])
    return "".join(chunks)


EDITS: Mapping[str, Callable[[Place], None]] = {
    "under #ifndef __CUDA_ARCH__": lambda place: place.source(ON_HOST=2),
    "under #if __CUDA_ARCH__ >= 900": lambda place: place.source(ON_90=2),
    "in a header that one target reads": lambda place: place.header("deep.h", "DEEP", 2),
    "a header that shadows another": lambda place: place.header("early/plain.h", "PLAIN", 2),
    "in a file that -include names": lambda place: place.header("forced.h", "FORCED", 2),
    "in libdevice": Place.libdevice,
    "in the host's compiler": lambda place: place.compiler("-fno-plt"),
}


def edited(tool: Tool, folder: Path) -> Iterator[Row]:
    """Compile before and after each edit, and see whether an object of before comes out."""
    for number, (name, edit) in enumerate(EDITS.items()):
        place = Place(
            folder=folder / f"{number}",
            toolkit=tool.nvcc.parent.parent,
            bin=folder / f"{number}-bin",
        )
        place.lay_out()
        search = f"{place.bin}:{os.environ['PATH']}"
        tool.compile(place.folder, *_FLAGS, PATH=search)
        before = (place.folder / "k.o").read_bytes()
        edit(place)
        took = tool.compile(place.folder, *_FLAGS, PATH=search)
        after = (place.folder / "k.o").read_bytes()
        # nvcc puts its process number into objects: an equal one was stored. archsplit doesn't.
        if tool.name == OURS:
            right = bool(took.ran) and after == tool.fresh(place.folder, *_FLAGS, PATH=search)
        else:
            right = after != before
        yield Row(
            case=f"edit {name}", tool=tool.name, took=took, verdict="rebuilt" if right else "STALE"
        )


def own_toolkit(nvcc: Path, folder: Path) -> Path:
    """A copy of the toolkit that may be changed; its nvcc."""
    root = nvcc.resolve().parent.parent
    shutil.copytree(root, folder, ignore=shutil.ignore_patterns("lib", "cccl"), symlinks=True)
    return folder / "bin" / "nvcc"
