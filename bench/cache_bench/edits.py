"""Edits after which an earlier object is wrong, and edits after which it is still right."""

from __future__ import annotations

import os
import shutil
import time
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
#include "order.h"
#include <system.h>
#ifndef __CUDA_ARCH__
int seen() { return ON_HOST; }
#endif
__global__ void one(float *p) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#include "deep.h"
  *p += ON_90 + DEEP;
#endif
  *p = sinf(*p) * PLAIN * FORCED + ORDER + SYSTEM + USED;
}
void run(float *p) { one<<<1, 1>>>(p); }
"""
_COEFFICIENT = 0x3C0885E4
_AGE = 1_600_000_000
_CHEAP = ("fatbinary", "assemble")
"""Steps that take less time than the cache stores results of."""
_FOLDERS = ("-Iearly", "-Ilate")
_FLAGS = ("-isystem", "system", "-include", "forced.h", "-DUSED=1", "-DOTHER=1")
_TIMED = "#ifndef __CUDA_ARCH__\nconst char *made() { return __TIME__; }\n#endif\n"
_EMBEDDED = '#ifndef __CUDA_ARCH__\nasm(".incbin \\"data.bin\\"");\n#endif\n'
_ONCE = "#pragma once\n#ifdef ONCE\n#define TWICE\n#endif\n#define ONCE\n"
_TWINS = '#include "early/once.h"\n#include "late/once.h"\n#ifdef TWICE\nint twice;\n#endif\n'


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Sources, and what an edit may change beside them."""

    folder: Path
    toolkit: Path
    bin: Path
    flags: list[str] = field(default_factory=lambda: [*_FOLDERS, *_FLAGS, *flags_for(["80", "90"])])

    def lay_out(self) -> None:
        """Write everything as it is before an edit."""
        for name in ("early", "late", "system"):
            (self.folder / name).mkdir(parents=True)
        self.header("late/plain.h", "PLAIN", 1)
        self.header("early/order.h", "ORDER", 1)
        self.header("late/order.h", "ORDER", 2)
        self.header("system/system.h", "SYSTEM", 1)
        self.header("deep.h", "DEEP", 1)
        self.header("forced.h", "FORCED", 1)
        self.source()
        self.bin.mkdir()
        self.compiler("")

    def source(self, **values: int) -> None:
        """Write the source, with other values of its macros."""
        found = {"ON_HOST": 1, "ON_90": 1, **values}
        write(self.folder, "".join(f"#define {n} {v}\n" for n, v in found.items()) + SOURCE)

    def append(self, text: str) -> None:
        """Append text to the source."""
        write(self.folder, (self.folder / "k.cu").read_text() + text)

    def embed(self) -> None:
        """Write a source whose host code embeds a file."""
        (self.folder / "data.bin").write_bytes(b"1")
        self.append(_EMBEDDED)

    def twins(self) -> None:
        """Write a source with two equal headers of the same age that are read once."""
        for name in ("early/once.h", "late/once.h"):
            (self.folder / name).write_text(_ONCE)
            os.utime(self.folder / name, (_AGE, _AGE))
        self.append(_TWINS)

    def link_cicc(self) -> None:
        """Make cicc a link, as in toolkits that are put together from parts."""
        path = self.toolkit / "nvvm" / "bin" / "cicc"
        path.rename(path.with_name("cicc-1"))
        path.symlink_to("cicc-1")

    def retarget_cicc(self) -> None:
        """Point the link at another cicc."""
        path = self.toolkit / "nvvm" / "bin" / "cicc"
        other = path.with_name("cicc-2")
        other.write_bytes(path.read_bytes() + b"\0")
        other.chmod(0o755)
        path.unlink()
        path.symlink_to(other.name)

    def replace_nvcc(self) -> None:
        """Replace nvcc by another one that does the same."""
        path = self.toolkit / "bin" / "nvcc"
        path.write_bytes(path.read_bytes() + b"\0")

    def touch(self) -> None:
        """Give all files the time of now."""
        for path in self.folder.rglob("*.[hc]*"):
            path.touch()

    def replace_flag(self, old: str, new: str) -> None:
        """Replace a flag by another."""
        self.flags[self.flags.index(old)] = new

    def swap(self, one: str, other: str) -> None:
        """Swap two flags."""
        first, second = self.flags.index(one), self.flags.index(other)
        self.flags[first], self.flags[second] = other, one

    def header(self, name: str, macro: str, value: int) -> None:
        """Change the value of a macro in a header."""
        (self.folder / name).write_text(f"#undef {macro}\n#define {macro} {value}\n")
        write(self.folder, (self.folder / "k.cu").read_text() if value > 1 else "")

    def libdevice(self) -> None:
        """Change the last bit of a coefficient of the sine's polynomial in libdevice."""
        path = self.toolkit / "nvvm" / "libdevice" / "libdevice.10.bc"
        bits = "".join(f"{byte:08b}"[::-1] for byte in path.read_bytes())
        changed = bits.replace(_chunks(_COEFFICIENT), _chunks(_COEFFICIENT ^ 1))
        path.write_bytes(bytes(int(changed[at : at + 8][::-1], 2) for at in range(0, len(bits), 8)))

    def compiler(self, flag: str) -> None:
        """Write a host compiler with a flag of its own."""
        for name in ("gcc", "g++"):
            path = self.bin / name
            path.write_text(f'#!/bin/sh\nexec {shutil.which(name)} {flag} "$@"\n')
            path.chmod(0o755)


def _chunks(value: int) -> str:
    """Encode a number as LLVM's bitcode does: six at a time, one of them for "more"."""
    chunks = []
    while value:
        value, low = value >> 5, value & 0b11111
        chunks.append(f"{low | (0b100000 if value else 0):06b}"[::-1])
    return "".join(chunks)


def _settle(_: Place) -> None:
    time.sleep(1.1)


def _nothing(_: Place) -> None:
    """Prepare nothing."""


PREPARED: Mapping[str, Callable[[Place], None]] = {
    "none, but a second passes for __TIME__": lambda place: place.append(_TIMED),
    "in a file that .incbin names": Place.embed,
    "touch of one of two equal #pragma once headers": Place.twins,
    "another cicc behind a link": Place.link_cicc,
}
"""Preparations that some edits need."""

EDITS: Mapping[str, Callable[[Place], None]] = {
    "in the source": lambda place: place.append("__device__ int more;\n"),
    "in a system header": lambda place: place.header("system/system.h", "SYSTEM", 2),
    "of a macro by -D that is used": lambda place: place.replace_flag("-DUSED=1", "-DUSED=2"),
    "of the order of -I": lambda place: place.swap(*_FOLDERS),
    "none, but a second passes for __TIME__": _settle,
    "in a file that .incbin names": lambda place: _overwrite(place.folder / "data.bin"),
    "touch of one of two equal #pragma once headers": lambda place: (
        place.folder / "late" / "once.h"
    ).touch(),
    "another nvcc": Place.replace_nvcc,
    "another cicc behind a link": Place.retarget_cicc,
    "under #ifndef __CUDA_ARCH__": lambda place: place.source(ON_HOST=2),
    "under #if __CUDA_ARCH__ >= 900": lambda place: place.source(ON_90=2),
    "in a header that one target reads": lambda place: place.header("deep.h", "DEEP", 2),
    "a header that shadows another": lambda place: place.header("early/plain.h", "PLAIN", 2),
    "in a file that -include names": lambda place: place.header("forced.h", "FORCED", 2),
    "in libdevice": Place.libdevice,
    "in the host's compiler": lambda place: place.compiler("-fno-plt"),
}


HARMLESS: Mapping[str, Callable[[Place], None]] = {
    "touch of everything": Place.touch,
    "of a macro by -D that nothing uses": lambda place: place.flags.append("-DNOBODY=1"),
    "of the order of -D": lambda place: place.swap("-DUSED=1", "-DOTHER=1"),
}
"""Edits after which nothing need be compiled."""


def _overwrite(path: Path) -> None:
    path.write_bytes(b"2")


def edited(tool: Tool, folder: Path) -> Iterator[Row]:
    """Compile before and after each edit, and see whether an object of before comes out."""
    for number, (name, edit) in enumerate({**EDITS, **HARMLESS}.items()):
        place = Place(
            folder=folder / f"{number}",
            toolkit=tool.nvcc.parent.parent,
            bin=folder / f"{number}-bin",
        )
        place.lay_out()
        PREPARED.get(name, _nothing)(place)
        search = f"{place.bin}:{os.environ['PATH']}"
        tool.compile(place.folder, *place.flags, PATH=search)
        before = (place.folder / "k.o").read_bytes()
        edit(place)
        took = tool.compile(place.folder, *place.flags, PATH=search)
        after = (place.folder / "k.o").read_bytes()
        # nvcc puts its process number into objects: an equal one was stored. archsplit doesn't.
        ours = tool.name == OURS
        compiled = [step for step in took.ran if step not in _CHEAP]
        rebuilt = bool(compiled) if ours else after != before
        fresh = after if not ours else tool.fresh(place.folder, *place.flags, PATH=search)
        if name in HARMLESS:
            verdict = "compiled again" if rebuilt else "known"
        else:
            # Two compilations of a source that asks the time are never equal.
            right = rebuilt and (after == fresh or "__TIME__" in name)
            verdict = "rebuilt" if right else "STALE"
        yield Row(case=f"edit {name}", tool=tool.name, took=took, verdict=verdict)


def own_toolkit(nvcc: Path, folder: Path) -> Path:
    """Copy the toolkit, so that it may be changed; return the copy's nvcc."""
    root = nvcc.resolve().parent.parent
    shutil.copytree(root, folder, ignore=shutil.ignore_patterns("lib", "cccl"), symlinks=True)
    return folder / "bin" / "nvcc"
