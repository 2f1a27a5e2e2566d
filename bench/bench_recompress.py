# ruff: noqa: INP001, T201 - a script, whose table goes to standard output
"""Measure what wheels become if their images are stored as zstd frames.

    python bench/bench_recompress.py [--level 9] [--capability 9.0] WHEEL...

For each wheel a row of a Markdown table: the fat wheel, the sum of a core and all packs with the
vendor's images and with zstd frames, the download of one GPU both ways, CPU seconds, peak memory,
and the images that have no encoder. The core is an estimate: the wheel without the deflated bytes
of all images in ``.nv_fatbin``; loader, stub and table add some 100 kB. CPU seconds are the time in
`recompress_images`, with the search for the encoder and the way back of every image.

Each wheel runs in a process of its own, so that the peak is this wheel's.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time
import zipfile
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import deflate

from archsplit.arch.target import Capability
from archsplit.devicecode.recompress import KeptReason, recompress_images
from archsplit.devicecode.select import selected_images
from archsplit.errors import BinaryFormatError
from archsplit.formats.elf import Elf
from archsplit.formats.fatbin import EXECUTABLE, Container, host_containers
from archsplit.formats.reader import open_file

if TYPE_CHECKING:
    from collections.abc import Iterator


_HEAD = (
    "wheel | level | fat MB | sum today | sum new | GPU today | GPU new | new / fat "
    "| CPU s | peak MB | unmatched"
)
_DEFLATE_LEVEL = 6
_BATCH = 1 << 28


def libraries(wheel: Path, folder: Path) -> Iterator[Elf]:
    """Yield the ELF files of a wheel, one at a time."""
    with zipfile.ZipFile(wheel) as archive:
        for number, info in enumerate(archive.infolist()):
            with archive.open(info) as file:
                if file.read(4) != b"\x7fELF":
                    continue
            path = folder / str(number)
            path.write_bytes(archive.read(info))
            yield Elf(open_file(path))
            path.unlink()


def containers(elf: Elf) -> Iterator[Container]:
    """Yield the containers of linked code."""
    try:
        for section, container in host_containers(elf):
            if section.name == EXECUTABLE:
                yield container
    except BinaryFormatError as error:
        print(error, file=sys.stderr)


def deflated(content: bytes | memoryview) -> int:
    """Return the size of content in a wheel."""
    return len(deflate.deflate_compress(bytes(content), _DEFLATE_LEVEL))


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and its threads."""
    return sum(os.times()[:2])


def measure(wheel: Path, level: int, capability: Capability) -> str:
    """Return the row of a wheel."""
    sizes, kept, images, seconds = Counter[str](), Counter[KeptReason](), 0, 0.0
    with TemporaryDirectory() as folder:
        for elf in libraries(wheel, Path(folder)):
            batch, size = list[Container](), 0
            for container in [*containers(elf), None]:
                if container is not None:
                    batch.append(container)
                    size += container.size
                if batch and (container is None or size > _BATCH):
                    count, spent = measure_batch(batch, level, capability, sizes, kept)
                    images, seconds = images + count, seconds + spent
                    batch, size = [], 0
    fat = wheel.stat().st_size
    core = fat - sizes["today"]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    megabytes = (
        fat,
        core + sizes["today"],
        core + sizes["new"],
        core + sizes["GPU today"],
        core + sizes["GPU new"],
    )
    return " | ".join(
        (
            wheel.name.split("-")[0],
            str(level),
            *(f"{one / 1e6:.1f}" for one in megabytes),
            f"{(core + sizes['new']) / fat:.3f}",
            f"{seconds:.1f}",
            f"{peak:.0f}",
            f"{kept[KeptReason.UNMATCHED]} of {images}",
        )
    )


def measure_batch(
    batch: list[Container],
    level: int,
    capability: Capability,
    sizes: Counter[str],
    kept: Counter[KeptReason],
) -> tuple[int, float]:
    """Count the images of some containers; return their number and CPU seconds."""
    images = [(container, entry) for container in batch for entry in container.entries()]
    taken = {
        entry.offset
        for container in batch
        for entry in selected_images(tuple(container.entries()), capability)
    }
    before = cpu_seconds()
    results = recompress_images(images, level=level)
    seconds = cpu_seconds() - before
    for (container, entry), result in zip(images, results, strict=True):
        today = deflated(container.body.at(entry.offset, entry.size, "image").data)
        new = deflated(result.content) if result.content else today
        kept.update([] if result.kept is None else [result.kept])
        sizes["today"] += today
        # A frame is a stored member if deflate gains nothing.
        sizes["new"] += min(new, len(result.content) or new)
        if entry.offset in taken:
            sizes["GPU today"] += today
            sizes["GPU new"] += min(new, len(result.content) or new)
    return len(images), seconds


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--level", type=int, default=9, choices=(9, 19))
    parser.add_argument("--capability", default="9.0")
    parser.add_argument("wheels", type=Path, nargs="+")
    options = parser.parse_args()
    print(f"| {_HEAD} |\n|{'---|' * len(_HEAD.split('|'))}", flush=True)
    for wheel in options.wheels:
        start = time.monotonic()
        child = os.fork()
        if child == 0:
            row = measure(wheel, options.level, Capability.parse(options.capability))
            print(f"| {row} |", flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        print(f"{wheel.name}: {time.monotonic() - start:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
