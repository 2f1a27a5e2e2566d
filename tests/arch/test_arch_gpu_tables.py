"""The generated tables of GPUs agree with the table in Python."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from archsplit.arch.gpus import GPUS

ROOT = Path(__file__).parents[2]


def check(root: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(root / "tools" / "gpu_tables.py"), "--check"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_checked_in_tables_are_the_generated_ones() -> None:
    done = check(ROOT)
    assert (done.returncode, done.stderr) == (0, "")


def test_capabilities_are_ascending_because_the_loader_walks_them_in_order() -> None:
    numbers = [row.sm for row in GPUS]
    assert numbers == sorted(set(numbers))


def test_the_loader_and_the_module_have_the_embedded_gpus() -> None:
    page = (ROOT / "docs" / "explanation" / "concepts.md").read_text()
    for capability in ("3.2", "5.3", "6.2", "7.2", "8.7", "8.8", "10.1", "11.0"):
        row = next(line for line in page.splitlines() if line.startswith(f"| {capability} |"))
        assert "embedded" in row
