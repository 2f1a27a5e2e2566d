"""Files that are for compilers and tests: headers, static libraries, profilers; pure.

A machine that only runs programs seldom reads them. They are not device code in libraries, so
`archsplit slim` leaves them. A name decides, and nothing is opened: a compiler at run time (NVRTC,
Triton) may need the headers.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from archsplit.devicecode.model import OtherFiles

if TYPE_CHECKING:
    from collections.abc import Iterable

__pure__ = True

_KIND_BY_SUFFIX = {
    ".a": "static libraries",
    ".lib": "static libraries",
    **dict.fromkeys((".h", ".hh", ".hpp", ".hxx", ".cuh", ".inl", ".ipp"), "headers"),
    **dict.fromkeys((".pdb", ".debug", ".dwo"), "debug information"),
}
# Not ptxas and nvlink: Triton and XLA start them.
_PROFILERS = re.compile(
    r"(nsight|nsys|ncu|compute-sanitizer|cuobjdump|nvdisasm|cu\+\+filt|nvprune|cuda-gdb)\b"
)
_TEST_FOLDERS = {"test", "tests"}


def build_file_kind(path: str) -> str | None:
    """Return the kind of a file by its path, such as ``headers``; None for all others."""
    place = PurePosixPath(path)
    # The folder first: a header of a profiler is the profiler's.
    if any(_PROFILERS.match(part) for part in place.parts):
        return "profilers and disassemblers"
    if not _TEST_FOLDERS.isdisjoint(place.parts[:-1]):
        return "tests"
    # Headers of C++ libraries have no suffix, and lie below `include`.
    if "include" in place.parts[:-1] and place.suffix in {"", ".inc"}:
        return "headers"
    return _KIND_BY_SUFFIX.get(place.suffix)


def sum_build_files(sizes: Iterable[tuple[str, int]]) -> tuple[OtherFiles, ...]:
    """Add up files by kind, the largest first; each is a path and its bytes."""
    counts: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    for path, size in sizes:
        kind = build_file_kind(path)
        if kind is not None:
            counts[kind] += 1
            totals[kind] += size
    return tuple(
        OtherFiles(kind=kind, count=counts[kind], size=size)
        for kind, size in sorted(totals.items(), key=lambda each: (-each[1], each[0]))
    )
