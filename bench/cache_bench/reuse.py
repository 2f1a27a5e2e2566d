"""Measure second compilations of the same source with a cache."""

from __future__ import annotations

import random
import tarfile
import time
from typing import TYPE_CHECKING

from cache_bench.table import Row

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cache_bench.tools import Took, Tool

SOURCES = {
    "templates": "#include <vector>\ntemplate <int N> __global__ void fold(float *p) {\n"
    "#pragma unroll\n  for (int i = 0; i < N; ++i) p[i] = p[i] * p[i + 1] + i;\n}\n"
    "void run(float *p) { fold<64><<<1, 1>>>(p); fold<128><<<1, 1>>>(p); }\n",
    "CUB": "#include <thrust/device_vector.h>\n#include <thrust/sort.h>\n"
    "void run(thrust::device_vector<int> &v) { thrust::sort(v.begin(), v.end()); }\n",
}
_HEADERS = 40
_AGAIN = 3


def write(folder: Path, text: str) -> None:
    """Write the source; no cache trusts a file that is younger than its compilation."""
    (folder / "k.cu").write_text(text)
    time.sleep(0.1)


def flags_for(targets: list[str]) -> tuple[str, ...]:
    """Return nvcc's options for the targets."""
    return tuple(f"-gencode=arch=compute_{each},code=sm_{each}" for each in targets)


def reused(tool: Tool, source: str, folder: Path, targets: list[str]) -> Iterator[Row]:
    """Compile one source in all ways in which little or nothing has changed."""

    def row(case: str, took: Took) -> Row:
        return Row(case=f"{source}: {case}", tool=tool.name, took=took)

    flags = ("-Iinc", *flags_for(targets))
    here = folder / "here"
    (here / "inc").mkdir(parents=True)
    for number in range(_HEADERS):
        (here / "inc" / f"h{number}.h").write_text(
            f"#pragma once\nenum {{ h{number} = {number} }};\n"
        )
    text = "".join(f'#include "h{n}.h"\n' for n in range(_HEADERS)) + SOURCES[source]
    write(here, text)
    yield row("cold", tool.compile(here, *flags))
    yield row("warm", tool.best(_AGAIN, here, *flags))
    for path in here.rglob("*"):
        path.touch()
    time.sleep(0.1)
    yield row("touched", tool.compile(here, *flags))
    moved = folder / "elsewhere"
    _move_shuffled(here, moved)
    yield row("elsewhere, by tar, shuffled", tool.compile(moved, *flags))
    write(here, f"// a comment\n{text}")
    yield row("a comment on top", tool.compile(here, *flags))
    write(here, text)
    yield row(
        "one target more in the list", tool.compile(here, "-Iinc", *flags_for([*targets, "75"]))
    )


def _move_shuffled(old: Path, new: Path) -> None:
    """Pack a folder, its files in any order, and unpack it elsewhere."""
    paths = sorted(path for path in old.rglob("*") if path.is_file() and path.suffix != ".o")
    random.Random(16585).shuffle(paths)  # noqa: S311 - an order, not a secret
    archive = old.parent / "moved.tar"
    with tarfile.open(archive, "w") as tar:
        for path in paths:
            tar.add(path, path.relative_to(old))
    with tarfile.open(archive) as tar:
        tar.extractall(new)  # noqa: S202 - our own
    time.sleep(0.1)
