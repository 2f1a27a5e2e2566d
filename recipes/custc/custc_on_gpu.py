"""Embed messages with the installed custc on the GPU, and extract them on the CPU."""
# ruff: noqa: INP001 (a script, no part of a package)

from __future__ import annotations

import custc
import numpy as np

random = np.random.default_rng(1)
covers = [random.integers(2, 254, (64, 64)) for _ in range(8)]
messages = [random.integers(0, 2, 800, dtype=np.uint8) for _ in covers]
costs = []
for cover in covers:
    # A change by -1 or +1 costs; to leave a pixel as it is costs nothing.
    change = random.uniform(0.5, 2.0, cover.size)
    costs.append(np.stack([change, np.zeros(cover.size), change], axis=1))
result = custc.embed_pm1_batch(covers, costs, messages, h=10)
assert not result.img_err.any(), f"errors of the images: {result.img_err}"
found = custc.extract_batch(result.stegos, result.num_msg_bits, h=10)
for number, (message, bits) in enumerate(zip(messages, found, strict=True)):
    assert np.array_equal(message, bits), f"message {number} came back differently"
print(f"custc: {len(messages)} messages of 800 bits came back from {covers[0].size} pixels each")  # noqa: T201 (a script)
