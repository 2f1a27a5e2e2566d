"""A store on a disk that is full, fills up, or can only be read: compilations go on."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.nvcc.toolkit import Toolkit

UNSHARED = ("unshare", "--map-root-user", "--mount")
"""Begins a command that may mount things which no other program sees."""
SOURCE = """\
static __global__ void kernel(int *p) { p[threadIdx.x] = 1; }
void run(int *p) { kernel<<<1, 32>>>(p); }
"""


def compiled(folder: Path, small_toolkit: Toolkit, before: str) -> tuple[bytes, list[str]]:
    """The object and what was said, with a store that is prepared by a shell."""
    code = "from archsplit.cli.nvcc import launcher; launcher()"
    words = (sys.executable, "-c", code, str(small_toolkit.nvcc), "-cubin", "k.cu", "-o", "k.o")
    done = subprocess.run(
        [*UNSHARED, "sh", "-ec", f"{before}\nexec {shlex.join(words)} -arch=sm_80"],
        cwd=folder,
        env={
            **os.environ,
            "ARCHSPLIT_CACHE": "on",
            "ARCHSPLIT_CACHE_DIR": str(folder / "store"),
            "ARCHSPLIT_CACHE_MIN_SECONDS": "0",
            "ARCHSPLIT_NVCC_OPTIONS": "--reproducible",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return (folder / "k.o").read_bytes(), done.stderr.splitlines()


@pytest.mark.nvcc
@pytest.mark.skipif(
    subprocess.run([*UNSHARED, "true"], capture_output=True, check=False).returncode != 0,
    reason="this system permits no mounts",
)
def test_unwritable_disk_only_warns(tmp_path: Path, small_toolkit: Toolkit) -> None:
    (tmp_path / "k.cu").write_text(SOURCE)
    (tmp_path / "store").mkdir()
    time.sleep(0.1)
    mount = "mount -t tmpfs -o size=%s none store"
    fill = "head -c 1M /dev/zero >store/ballast 2>/dev/null || true"
    cases = {
        "full": (f"{mount % '64k'}\n{fill}", ["can't be written: No space left"]),
        "filling up": (mount % "32k", ["can't be written: No space left"]),
        "read-only": (
            f"{mount % '1M'}\nmount -o remount,bind,ro store",
            ["can't be written: Read-only"],
        ),
        "large enough": (mount % "8M", []),
    }
    objects = set()
    for name, (before, expected) in cases.items():
        made, said = compiled(tmp_path, small_toolkit, before)
        objects.add(made)
        assert len(said) == len(expected), (name, said)
        assert all(part in line for part, line in zip(expected, said, strict=True)), said
    assert len(objects) == 1
