"""Process that fills a store beside others: ``python fill_store.py FOLDER SEED COUNT``."""

from __future__ import annotations

import random
import sys
from pathlib import Path

from archsplit.cache.cache import Cache
from archsplit.cache.config import Settings
from archsplit.cache.entry import CacheEntry, KeyComponent, ManifestRow


def entry(number: int) -> CacheEntry:
    """Return the entry that every process makes of the same number."""
    content = random.Random(number).randbytes(20_000 + 1000 * (number % 50))
    return CacheEntry(
        components=(KeyComponent("number", str(number)),),
        files={"k.o": content, "k.s": b"x"},
        cpu_seconds=1.0,
    )


def main(folder: Path, seed: int, count: int) -> None:
    def wrong(text: str) -> None:
        raise AssertionError(text)

    cache = Cache(Settings(folder=folder, max_size=1 << 40), warn=wrong)
    for number in random.Random(seed).sample(range(count), count):
        made = entry(number)
        found = cache.find(made.components)
        if found is None:
            cache.leases.acquire(str(number))
            cache.store(made)
            cache.leases.release(str(number))
        elif found.entry != made:
            wrong(f"{number} isn't what was stored")
        cache.add_manifest_row("ab" * 32, ManifestRow(files=(("k.cu", str(number % 8)),)))
    cache.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
