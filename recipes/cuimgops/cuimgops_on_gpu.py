"""Run kernels of the installed cuimgops, and compare them with NumPy."""
# ruff: noqa: INP001 (a script, no part of a package)

from __future__ import annotations

import cuimgops
import numpy as np
from PIL import Image

pixels = np.random.default_rng(1).integers(0, 256, (97, 131, 3), dtype=np.uint8)
image = Image.fromarray(pixels)
flipped = np.asarray(cuimgops.get_horizontal_flip(image))
assert np.array_equal(flipped, pixels[:, ::-1]), "the horizontal flip is wrong"
flipped = np.asarray(cuimgops.get_vertical_flip(image))
assert np.array_equal(flipped, pixels[::-1]), "the vertical flip is wrong"
gray = Image.fromarray(np.full((64, 64, 3), 100, dtype=np.uint8))
noisy = np.asarray(cuimgops.get_gaussian_noise(gray, 0.0, 15.0)).astype(float)
LOW, HIGH = 8.0, 22.0
assert LOW < noisy.std() < HIGH, f"noise of 15.0 has a deviation of {noisy.std():.1f}"
print(f"cuimgops: two flips of 97x131 pixels are right, noise has a deviation of {noisy.std():.1f}")  # noqa: T201 (a script)
