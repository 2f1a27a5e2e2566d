"""The GPUs of this machine, as nvidia-smi and the kernel driver report them.

A module of its own, because no other one queries the driver.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from archsplit.errors import ToolFailedError, ToolNotFoundError
from archsplit.system.process import Command, SubprocessRunner

PROC_GPUS = Path("/proc/driver/nvidia/gpus")
_QUERY = ("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader")
# A driver that hangs must not hang a build.
_SECONDS = 30.0
_MODEL = re.compile(r"^Model:\s*(\S.*?)\s*$", re.MULTILINE)


def detect_gpus(*, proc: Path = PROC_GPUS) -> tuple[str, ...]:
    """Return a capability (``9.0``) or a product name for each GPU; nothing without a driver.

    Args:
        proc: the kernel driver's folder, which containers without nvidia-smi have too.
    """
    # A process of its own: initializing CUDA here would make this process unable to fork.
    command = Command(argv=_QUERY, cwd=Path.cwd(), env=os.environ, timeout=_SECONDS)
    try:
        result = SubprocessRunner().run(command)
    except (ToolNotFoundError, ToolFailedError):
        return _read_models(proc)
    lines = tuple(filter(None, map(str.strip, result.stdout.splitlines())))
    # The nvidia-smi of an old driver doesn't know the query, and fails.
    return lines if result.returncode == 0 and lines else _read_models(proc)


def _read_models(proc: Path) -> tuple[str, ...]:
    try:
        texts = [file.read_text(errors="replace") for file in sorted(proc.glob("*/information"))]
    except OSError:
        return ()
    return tuple(match[1] for text in texts for match in _MODEL.finditer(text))
