"""Budgets of machines that tests make up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from splitter.system.memory import SystemMemory
from splitter.system.pool import Budget

if TYPE_CHECKING:
    from pathlib import Path

MB = 1 << 20


def budget(folder: Path, *, available: int = 1 << 20, limit: int | None = None) -> Budget:
    """So many megabytes are available, and so many are allowed."""
    root = folder / "made-up"
    (root / "proc").mkdir(parents=True, exist_ok=True)
    kilobytes = available << 10
    text = f"MemTotal: {kilobytes} kB\nMemAvailable: {kilobytes} kB\n"
    (root / "proc/meminfo").write_text(text)
    return Budget(SystemMemory(root), limit=None if limit is None else limit * MB)
