"""GPUs and the driver of this machine, as nvidia-smi and CUDA report them."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from archsplit.errors import ToolFailedError, ToolNotFoundError
from archsplit.system.process import Command, SubprocessRunner

PROC_GPUS = Path("/proc/driver/nvidia/gpus")
_QUERY = ("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader")
# A driver that hangs must not hang a build.
_SECONDS = 30.0
_VERSION = """\
import ctypes
version = ctypes.c_int()
ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
print(version.value)
"""
_MODEL = re.compile(r"^Model:\s*(\S.*?)\s*$", re.MULTILINE)


def detect_gpus(*, proc: Path = PROC_GPUS) -> tuple[str, ...]:
    """Return a capability (``9.0``) or a product name for each GPU; nothing without a driver.

    Args:
        proc: the kernel driver's folder, which containers without nvidia-smi have too.
    """
    # The nvidia-smi of an old driver doesn't know the query, and fails.
    return _lines_of(*_QUERY) or _read_models(proc)


def driver_version() -> int:
    """Return the CUDA version of the driver: 12040 for 12.4; 0 without a driver."""
    # CUDA's and not the kernel driver's: with cuda-compat the two differ.
    version = "".join(_lines_of(sys.executable, "-I", "-c", _VERSION))
    return int(version) if version.isdecimal() else 0


def _lines_of(*argv: str) -> tuple[str, ...]:
    """Return what a program prints, without blank lines; nothing if it fails."""
    # A process of its own: initializing CUDA here would make this process unable to fork.
    command = Command(argv=argv, cwd=Path.cwd(), env=os.environ, timeout=_SECONDS)
    try:
        result = SubprocessRunner().run(command)
    except (ToolNotFoundError, ToolFailedError):
        return ()
    lines = filter(None, map(str.strip, result.stdout.splitlines()))
    return tuple(lines) if result.returncode == 0 else ()


def _read_models(proc: Path) -> tuple[str, ...]:
    try:
        texts = [file.read_text(errors="replace") for file in sorted(proc.glob("*/information"))]
    except OSError:
        return ()
    return tuple(match[1] for text in texts for match in _MODEL.finditer(text))
