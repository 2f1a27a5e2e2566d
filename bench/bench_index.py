# ruff: noqa: INP001, T201 - a script, whose table goes to standard output
"""Seconds for one wheel that is added to static indexes of growing size.

    python bench/bench_index.py [--files 100000] [--limit SECONDS]

Each index is twice as big as the one before. It has ten files a project, and nine of ten projects
are plugins. With --limit the exit code is 1 if the biggest index needs more seconds for the wheel.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from archsplit.index.static_folder import lock_folder
from archsplit.index.static_model import IndexEntry, IndexProject
from archsplit.index.static_update import IndexChange, update_index
from archsplit.wheels.filename import WheelName, distribution_name
from archsplit.wheels.metadata import CoreMetadata
from archsplit.wheels.writer import WheelDraft, write_wheels

DOUBLINGS = 5
FILES_A_PROJECT = 10
EPOCH = 1_767_225_600


def main() -> int:
    """Print the seconds for each size."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--files", type=int, default=100_000, help="of the biggest index")
    parser.add_argument("--limit", type=float, default=0.0)
    arguments = parser.parse_args()
    seconds = 0.0
    print("  files  projects  seconds for one wheel")
    for power in range(DOUBLINGS, -1, -1):
        files = arguments.files >> power
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder) / "index"
            projects = make_index(root, files)
            seconds = add_wheel(root, Path(folder))
        print(f"{files:7}  {projects:8}  {seconds:.3f}", flush=True)
    return int(bool(arguments.limit) and seconds > arguments.limit)


def make_index(root: Path, files: int) -> int:
    """Write the pages of an index, without its wheels; return the number of projects."""
    names = []
    with lock_folder(root, print) as folder:
        for number in range(files // FILES_A_PROJECT):
            core = f"project-{number - number % 10}"
            name = distribution_name(core if number % 10 == 0 else f"{core}-cc{number % 10}0")
            entries = [
                IndexEntry(
                    file=f"{name.replace('-', '_')}-1.{minor}-py3-none-any.whl",
                    sha256=f"{number:064x}",
                    metadata_sha256=f"{minor:064x}",
                    size=1_000_000,
                    uploaded=EPOCH,
                )
                for minor in range(FILES_A_PROJECT)
            ]
            folder.write_project(IndexProject.of(name, entries))
            names.append(name)
        folder.write_root(iter(names))
    return len(names)


def add_wheel(root: Path, scratch: Path) -> float:
    """Add a plugin of one project; return the seconds."""
    project = distribution_name("project-0-cc90")
    name = WheelName(project=project, version="2.0", platforms=("any",))
    metadata = CoreMetadata(name=str(project), version="2.0", summary="A plugin.")
    (wheel,) = write_wheels(
        scratch,
        [WheelDraft(name=name, metadata=metadata, generator="bench", members=(), purelib=True)],
        epoch=EPOCH,
    )
    began = time.perf_counter()
    with lock_folder(root, print) as folder:
        update_index(folder, IndexChange(add=(wheel,), yank={}, grace=0, now=EPOCH))
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
