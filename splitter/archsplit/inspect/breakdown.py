"""Sums that all reports show: device code by target, and files for compilers and tests; pure.

In go the rows of an inventory, or paths with sizes; out come `BreakdownPart` and `OtherFiles`. Each
GPU generation has one color. A machine that only runs programs seldom reads headers, static
libraries and profilers. They are not device code in libraries, so `archsplit slim` leaves them. A
name decides, and nothing is opened: a compiler at run time (NVRTC, Triton) may need the headers.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from posixpath import splitext
from typing import TYPE_CHECKING

from archsplit.devicecode.model import OtherFiles, Place, sum_wheel_bytes
from archsplit.system.units import count_text, size_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from archsplit.devicecode.model import Inventory, InventoryRow

__pure__ = True

REST_COLOR = "#c9ccd1"
"""Color of bytes that are not device code."""

OTHER_COLOR = "#6a5669"
"""Color of device code without a target."""

_BY_MAJOR = {
    2: "#6b4f2a",
    3: "#6b4f2a",
    5: "#55245e",
    6: "#4d0094",
    7: "#5a8109",
    8: "#013e19",
    9: "#2c38d1",
    10: "#98675f",
    11: "#d119b7",
    12: "#07661f",
}
"""A color for each generation, found by a search.

White text on it has a contrast of at least 4.5 (WCAG 2.2 AA). Any two differ by 17 (CIE 1976) or
more, for readers with deuteranopia, protanopia and tritanopia too.
"""

_NUMBER = re.compile(r"(?:sm|compute|lto)_([0-9]+)[0-9][af]?")

REST_LABEL = "everything else"
"""Label of host code, Python and data."""

PLACE_WORDS = {
    Place.EXECUTABLE: "",
    Place.RELOCATABLE: "for a device link",
    Place.OUTSIDE: "outside the fatbin sections",
}


def target_color(target: str | None) -> str:
    """Return the color of a target by its major capability, as ``#rrggbb``."""
    # The last digit of the number is the minor capability: sm_120 is 12.0.
    match = _NUMBER.fullmatch(target or "")
    return OTHER_COLOR if match is None else _BY_MAJOR.get(int(match[1]), OTHER_COLOR)


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakdownPart:
    """Bytes of one purpose.

    Attributes:
        label: the target, or the kind of code without one.
        kind: SASS, PTX, …; empty for bytes that are not device code.
        note: the place, unless the code is registered at run time.
        count: images.
        compressions: of the images, sorted.
        file_bytes, wheel_bytes: as in `archsplit.devicecode.model.InventoryRow`.
    """

    label: str
    kind: str
    note: str
    color: str
    count: int
    compressions: tuple[str, ...]
    file_bytes: int
    wheel_bytes: int | None

    @property
    def form(self) -> str:
        """Empty for machine code and for other bytes; PTX, link code or unregistered."""
        if self.note == PLACE_WORDS[Place.OUTSIDE]:
            return "unregistered"
        if self.kind == "PTX" and not self.note:
            return "PTX"
        return "" if self.kind in {"SASS", ""} and not self.note else "link code"

    @property
    def name(self) -> str:
        """Label with the form: one target may have machine code and link code."""
        return f"{self.label} ({self.form})" if self.form else self.label

    @property
    def weight(self) -> int:
        """Bytes of the download; bytes of the file outside of a wheel."""
        return self.file_bytes if self.wheel_bytes is None else self.wheel_bytes


def breakdown(rows: Iterable[InventoryRow]) -> tuple[BreakdownPart, ...]:
    """Add up rows of one target and purpose, in their order."""
    groups: dict[tuple[Place, str, str], list[InventoryRow]] = {}
    for row in rows:
        groups.setdefault((row.place, row.kind, row.target or row.kind), []).append(row)
    places = list(Place)
    return tuple(
        BreakdownPart(
            label=label,
            kind=kind,
            note=PLACE_WORDS[place],
            color=target_color(label),
            count=sum(row.count for row in group),
            compressions=tuple(sorted({row.compression for row in group})),
            file_bytes=sum(row.file_bytes for row in group),
            wheel_bytes=sum_wheel_bytes(row.wheel_bytes for row in group),
        )
        # Sorting keeps the rows' own order within a place.
        for (place, kind, label), group in sorted(
            groups.items(), key=lambda item: places.index(item[0][0])
        )
    )


def remaining_part(size: int, parts: Iterable[BreakdownPart]) -> BreakdownPart:
    """Return the bytes of ``size`` (of the download, or of a file) beside some parts."""
    # Rounded shares of the download may add up to more than the whole.
    left = max(0, size - sum(part.weight for part in parts))
    return BreakdownPart(
        label=REST_LABEL,
        kind="",
        note="",
        color=REST_COLOR,
        count=0,
        compressions=(),
        file_bytes=left,
        wheel_bytes=None,
    )


def share_text(part: int, whole: int) -> str:
    """Return ``82 %``; empty for a whole of 0 bytes."""
    return f"{100 * part / whole:.0f} %" if whole else ""


def summarize(inventory: Inventory) -> str:
    """Return one sentence: the size of an inventory, and the part that is device code."""
    weight = sum(row.weight for row in inventory.rows())
    holders = [file for file in inventory.files if file.rows()]
    containers = sum(file.containers for file in holders)
    what = "to download" if inventory.is_wheel else "in all"
    # Zero per cent of zero containers would read like a measurement.
    if not holders:
        return f"{size_text(inventory.size)} {what}; no device code"
    return (
        f"{size_text(inventory.size)} {what}; {size_text(weight)} of it "
        f"({share_text(weight, inventory.size)}) is device code, "
        f"in {count_text(containers, 'container')} of {count_text(len(holders), 'file')}"
    )


_KIND_BY_SUFFIX = {
    ".a": "static libraries",
    ".lib": "static libraries",
    **dict.fromkeys((".h", ".hh", ".hpp", ".hxx", ".cuh", ".inl", ".ipp"), "headers"),
    **dict.fromkeys((".pdb", ".debug", ".dwo"), "debug information"),
}
# Not ptxas and nvlink: Triton and XLA start them.
_PROFILERS = re.compile(
    r"(?:^|/)(nsight|nsys|ncu|compute-sanitizer|cuobjdump|nvdisasm|cu\+\+filt|nvprune|cuda-gdb)\b"
)
_TEST_FOLDERS = {"test", "tests"}
BITCODE = "bitcode for "
"""Beginning of the kind of a file with LLVM bitcode for one GPU; the target follows."""
_BITCODE_NAME = re.compile(r"[_.-](sm_[0-9]+[af]?)\.bc$")


def build_file_kind(path: str) -> str | None:
    """Return the kind of a file by its path, such as ``headers``; None for all others."""
    # Only texts, no paths: an environment has a hundred thousand paths.
    *folders, name = path.split("/")
    suffix = splitext(name)[1]
    # A JIT links it to kernels of its own: libnvshmem_device_sm_90.bc.
    if bitcode := _BITCODE_NAME.search(name):
        return f"{BITCODE}{bitcode[1]}"
    # The folder first: a header of a profiler is the profiler's.
    if _PROFILERS.search(path):
        return "profilers and disassemblers"
    if not _TEST_FOLDERS.isdisjoint(folders):
        return "tests"
    # Headers of C++ libraries have no suffix, and lie below `include`.
    if "include" in folders and suffix in {"", ".inc"}:
        return "headers"
    return _KIND_BY_SUFFIX.get(suffix)


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
