"""A call of archsplit-nvcc as other caches' own tests make it, and the counts that it adds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_RUN = "from archsplit.cli.{} import {}; raise SystemExit({}())"


def call_counted(words: Sequence[str], store: Path) -> tuple[int, list[tuple[str, str]]]:
    """Compile with a store; return the exit status, and the steps and tiers whose counts grew."""
    environment = {
        **os.environ,
        "ARCHSPLIT_CACHE_DIR": str(store),
        "ARCHSPLIT_CACHE_MIN_SECONDS": "0",
        "ARCHSPLIT_NVCC_OPTIONS": "--reproducible",
    }
    before = _counts(environment)
    program = _RUN.format("nvcc", "launcher", "launcher")
    code = subprocess.call([sys.executable, "-c", program, *words], env=environment)
    after = _counts(environment)
    return code, [key for key, count in after.items() if count != before.get(key)]


def _counts(environment: dict[str, str]) -> dict[tuple[str, str], int]:
    program = _RUN.format("main", "entry_point", "entry_point")
    argv = [sys.executable, "-c", program, "cache", "stats", "--json"]
    done = subprocess.run(argv, env=environment, capture_output=True, check=True)
    counts: dict[tuple[str, str], int] = {}
    # One step has a row for each target.
    for row in json.loads(done.stdout)["counts"]:
        counts[row["step"], row["tier"]] = counts.get((row["step"], row["tier"]), 0) + row["number"]
    return counts
