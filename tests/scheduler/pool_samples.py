"""Budgets of machines that tests make up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from archsplit.scheduler.pool import MemoryBudget
from archsplit.system.resources import SystemMemory

if TYPE_CHECKING:
    from pathlib import Path

MB = 1 << 20


def budget(folder: Path, *, available: int = 1 << 20, limit: int | None = None) -> MemoryBudget:
    """So many megabytes are available, and so many are allowed."""
    root = folder / "made-up"
    (root / "proc").mkdir(parents=True, exist_ok=True)
    kilobytes = available << 10
    text = f"MemTotal: {kilobytes} kB\nMemAvailable: {kilobytes} kB\n"
    (root / "proc/meminfo").write_text(text)
    return MemoryBudget(SystemMemory(root), limit=None if limit is None else limit * MB)
