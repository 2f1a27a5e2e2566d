"""One of many processes that fill a store: ``python fill_store.py FOLDER SEED COUNT``."""

from __future__ import annotations

import random
import sys
from pathlib import Path

from splitter.cache.cache import Cache
from splitter.cache.entry import Entry
from splitter.cache.manifest import Row
from splitter.cache.parts import Part
from splitter.cache.settings import Settings


def entry(number: int) -> Entry:
    """What every process would make of the same parts."""
    content = random.Random(number).randbytes(20_000 + 1000 * (number % 50))
    return Entry(
        parts=(Part("number", str(number)),), files={"k.o": content, "k.s": b"x"}, cpu_seconds=1.0
    )


def main(folder: Path, seed: int, count: int) -> None:
    def wrong(text: str) -> None:
        raise AssertionError(text)

    cache = Cache(Settings(folder=folder, max_size=1 << 40), warn=wrong)
    for number in random.Random(seed).sample(range(count), count):
        made = entry(number)
        found = cache.find(made.parts)
        if found is None:
            with cache.leases.held(str(number)):
                cache.store(made)
        elif found.entry != made:
            wrong(f"{number} isn't what was stored")
        cache.add_row("ab" * 32, Row(files=(("k.cu", str(number % 8)),)))
    cache.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
