# ruff: noqa: T201 - ccache's statistics go to standard output
"""ccache's command line for its own test suite, carried out by archsplit-nvcc.

``COMPILER …`` compiles in a store below ``CCACHE_DIR`` and writes one line: a hit or a miss, from
the counts that the call has added. ``--print-stats`` prints the sums, ``-Cz`` removes all. Two
counters are ccache's own and are computed: archsplit has one kind of direct hit, so with
``CCACHE_NODIRECT`` a hit of any kind is a preprocessed one; ``files_in_cache`` follows from the
misses.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from counted_call import call_counted

KINDS = ("direct_cache_hit", "preprocessed_cache_hit", "cache_miss", "uncacheable")


def main() -> int:
    """Do what ccache would do with the arguments."""
    folder = Path(os.environ["CCACHE_DIR"])
    is_direct = "CCACHE_NODIRECT" not in os.environ
    if sys.argv[1] == "-Cz":
        shutil.rmtree(folder, ignore_errors=True)
        return 0
    log = folder / "calls"
    if sys.argv[1] == "--print-stats":
        calls = log.read_text().split() if log.exists() else []
        counts = {kind: calls.count(kind) for kind in KINDS}
        misses = counts["cache_miss"]
        counts["files_in_cache"] = misses
        if is_direct:  # ccache has a manifest for each
            counts["files_in_cache"] += misses + counts["preprocessed_cache_hit"]
        print("\n".join(f"{kind}\t{count}" for kind, count in counts.items()))
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    if base := os.environ.get("CCACHE_BASEDIR"):
        # The root, which archsplit refuses, stands for all folders of a test.
        os.environ["ARCHSPLIT_CACHE_BASE_DIR"] = str(folder.parent) if base == "/" else base
    code, added = call_counted(sys.argv[1:], folder / "store")
    with log.open("a") as file:
        file.write(f"{_kind(added, is_direct=is_direct)}\n")
    return code


def _kind(added: list[tuple[str, str]], *, is_direct: bool) -> str:
    tiers = {tier for step, tier in added if not step.startswith("request")}
    if any(step.startswith("request") and tier != "miss" for step, tier in added):
        return "direct_cache_hit" if is_direct else "preprocessed_cache_hit"
    if tiers and "miss" not in tiers:
        return "preprocessed_cache_hit"
    return "cache_miss" if added else "uncacheable"


if __name__ == "__main__":
    raise SystemExit(main())
