# ruff: noqa: INP001, S606, T201 - a script, which starts programs to measure them
"""Measure what wheels become if their images are stored as zstd frames.

    python bench/bench_recompress.py [--level 9] [--gpu 9.0] WHEEL...

Each wheel is split with the vendor's images and with zstd frames, and joined again. A row of a
Markdown table has the fat wheel, the sum of core and packs both ways, the download of one GPU both
ways, the CPU seconds and the peak memory of the split with frames, the images without an encoder,
and whether `join` gave the bytes of all libraries. Packs that grow are listed below the row.
"""

from __future__ import annotations

import argparse
import os
import sys
import zipfile
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from program_usage import megabytes

from archsplit.devicecode.recompress import KeptReason
from archsplit.release.report import REPORT_FILE, Release, read_report

_HEAD = (
    "wheel | level | fat MB | sum: vendor | sum: zstd | zstd / fat | GPU: vendor | GPU: zstd "
    "| CPU s | peak MB | images | no encoder | join"
)


def run(*words: str) -> tuple[float, float]:
    """Run archsplit; return its CPU seconds and its peak of memory in MB."""
    child = os.fork()
    if child == 0:
        os.dup2(2, 1)
        os.execv(sys.executable, (sys.executable, "-m", "archsplit", *words))
    _, status, usage = os.wait4(child, 0)
    if status:
        raise SystemExit(f"archsplit {' '.join(words)} failed")
    return usage.ru_utime + usage.ru_stime, megabytes(usage.ru_maxrss)


def download(release: Release, gpu: str) -> int:
    """Return the bytes of the core and of a GPU's packs."""
    details = release.split
    assert details is not None
    names = details.needs.get(gpu, ())
    return sum(one.size for one in release.wheels if one.role == "core" or one.label in names)


def measure(wheel: Path, level: str, gpu: str) -> str:
    """Return the row of a wheel, and lines about packs that grow."""
    with TemporaryDirectory() as name:
        before, after, fat = (Path(name, part) for part in ("before", "after", "fat"))
        run("split", str(wheel), "--out", str(before), "--recompress", "off")
        seconds, peak = run("split", str(wheel), "--out", str(after), "--recompress", level)
        run("join", str(after), "--out", str(fat))
        libraries = [path for path in fat.rglob("*") if path.is_file()]
        same = _same(wheel, fat, libraries)
        old, new = (read_report(folder / REPORT_FILE) for folder in (before, after))
    assert new.split is not None
    counts = Counter[str]()
    for note in new.split.notes:
        number, _, text = note.partition(" images ")
        counts[text.rpartition(": ")[2]] += int(number) if number.isdecimal() else 0
    sizes = {one.distribution: one.size for one in old.wheels if one.role != "core"}
    grown = [
        one.file for one in new.wheels if one.size > sizes.get(one.distribution, one.size) + 16
    ]
    full = wheel.stat().st_size
    total = sum(one.size for one in new.wheels)
    figures = (full, sum(one.size for one in old.wheels), total)
    row = " | ".join(
        (
            wheel.name.split("-")[0],
            level,
            *(f"{one / 1e6:.1f}" for one in figures),
            f"{total / full:.3f}",
            *(f"{download(one, gpu) / 1e6:.1f}" for one in (old, new)),
            f"{seconds:.1f}",
            f"{peak:.0f}",
            str(sum(counts.values())),
            str(counts[KeptReason.UNMATCHED.value]),
            same,
        )
    )
    return "\n".join([f"| {row} |", *(f"larger: {one}" for one in grown)])


def _same(wheel: Path, fat: Path, libraries: list[Path]) -> str:
    with zipfile.ZipFile(wheel) as archive:
        names = {
            name.rpartition(".data/")[2].partition("/")[2]: name for name in archive.namelist()
        }
        for path in libraries:
            name = str(path.relative_to(fat))
            member = name if name in archive.NameToInfo else names[name]
            if archive.read(member) != path.read_bytes():
                return f"{name} differs"
    return f"{len(libraries)} equal"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--level", default="9", choices=("9", "19"))
    parser.add_argument("--gpu", default="9.0")
    parser.add_argument("wheels", type=Path, nargs="+")
    options = parser.parse_args()
    print(f"| {_HEAD} |\n|{'---|' * len(_HEAD.split('|'))}", flush=True)
    for wheel in options.wheels:
        print(measure(wheel, options.level, options.gpu), flush=True)


if __name__ == "__main__":
    main()
