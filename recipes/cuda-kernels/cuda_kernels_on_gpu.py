"""Run kernels of the installed cuda-kernels, and compare them with NumPy."""
# ruff: noqa: INP001 (a script, no part of a package)

from __future__ import annotations

import warnings

import cuda_kernels
import numpy as np

# The package falls back to the CPU with a warning, which is not a run on a GPU.
warnings.simplefilter("error")
data = np.arange(100_000, dtype=np.float32) % 7
found, expected = cuda_kernels.reduction_sum(data), float(data.sum(dtype=np.float64))
assert np.isclose(found, expected, rtol=1e-5), f"the sum is {found}, not {expected}"
lags = cuda_kernels.autocorrelation(np.ones(100, dtype=np.float32), max_lag=5)
assert np.allclose(lags, [100, 99, 98, 97, 96]), f"the autocorrelation is {lags}"
print(f"cuda-kernels: the sum of 100,000 numbers is {found:.0f}, as NumPy's; 5 lags are right")  # noqa: T201 (a script)
