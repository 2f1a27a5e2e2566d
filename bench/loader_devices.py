# ruff: noqa: INP001, S603, TID251 - a script, which starts programs to measure them
"""Measure the search for GPUs with ten device packs: with driver files, and with NVML.

On a machine with a GPU, which needs nothing but Python::

    python bench/bench_loader.py --install FOLDER        # where archsplit is installed
    python bench/loader_devices.py FOLDER [--rounds 15]  # on the machine with the GPU

Each time is the first one of a new process, from making the loader to knowing the capability of
device 0; the shortest counts. A device that is named by its UUID makes the loader use NVML.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

MOST_MS = 3.0

PROGRAM = """
import os, sys, time
from {package}._archsplit import _bindings, _opening, _reading
core, library = _reading.read_core(), _bindings.open_library()
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024
before, begun = resident(), time.perf_counter()
with _opening.start_loader(core, None) as loader:
    capability = loader.capability(0)
    seconds, kilobytes = time.perf_counter() - begun, resident() - before
print(seconds * 1e3, kilobytes, capability, "libnvidia-ml" in open("/proc/self/maps").read())
"""


class Cost(NamedTuple):
    """A search for GPUs: its duration, its memory, the capability, and True if NVML was loaded."""

    milliseconds: float
    kilobytes: int
    capability: str
    asked: bool


def measured(site: Path, package: str, rounds: int, **variables: str) -> Cost:
    """Return the best of all rounds, for a core that is installed in ``site``."""
    hidden = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
    child = {name: value for name, value in os.environ.items() if name not in hidden}
    child |= {"PYTHONPATH": str(site), **variables}
    command = [sys.executable, "-S", "-c", PROGRAM.format(package=package)]
    costs = []
    for _ in range(rounds):
        done = subprocess.run(command, env=child, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr)
        milliseconds, kilobytes, capability, asked = done.stdout.split()
        costs.append(Cost(float(milliseconds), int(kilobytes), capability, asked == "True"))
    return min(costs)


def both(site: Path, package: str, rounds: int, uuid: str, **variables: str) -> tuple[Cost, Cost]:
    """Measure the search with the driver's files, and with NVML.

    Args:
        uuid: of the GPU that is device 0.
    """
    return (
        measured(site, package, rounds, **variables),
        measured(site, package, rounds, CUDA_VISIBLE_DEVICES=uuid, **variables),
    )


def rows(quick: Cost, nvml: Cost) -> list[str]:
    """Return both searches as rows of a table; the first one's name says if it asked NVML."""
    if not nvml.asked or quick.capability != nvml.capability:
        raise SystemExit(f"the two ways are not what they should be: {quick}, {nvml}")
    how = "by NVML, because a quick look is not enough here" if quick.asked else "by a quick look"
    ratio = quick.milliseconds / nvml.milliseconds
    return [
        f"| the loader over 10 packs, GPUs {how} | {quick.milliseconds:.2f} | {ratio:.2f} "
        f"| {MOST_MS:.0f} ms | {quick.kilobytes} kB |",
        f"| the same by NVML | {nvml.milliseconds:.2f} | | | {nvml.kilobytes} kB |",
    ]


def main(site: Path, rounds: int) -> int:
    """Measure with the GPUs of this machine."""
    told = min(Path("/proc/driver/nvidia/gpus").glob("*/information")).read_text()
    uuid = told.partition("GPU UUID:")[2].split()[0]
    quick, nvml = both(site, "packs", rounds, uuid)
    lines = ["| what | ms | times its peer | goal | memory |", "|---|---|---|---|---|"]
    sys.stdout.write("\n".join([*lines, *rows(quick, nvml)]) + "\n")
    return 1 if quick.milliseconds > MOST_MS else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    sys.exit(main(arguments.folder.resolve(), arguments.rounds))
