"""The capabilities that NVIDIA has published, each line with its source; plain data, no rules.

Capabilities are named by their sm number here (90 is 9.0), as in target names. What follows from
the table is in `splitter.arch.compat`.
"""

from __future__ import annotations

from dataclasses import dataclass

_CURRENT = "https://developer.nvidia.com/cuda-gpus"
_LEGACY = "https://developer.nvidia.com/cuda/gpus/legacy"
_PTX_ISA_9_0 = "https://docs.nvidia.com/cuda/archive/13.0.0/parallel-thread-execution/"
_CUDA_13_NOTES = "https://docs.nvidia.com/cuda/archive/13.0.0/cuda-toolkit-release-notes/"
_APPENDIX = (
    "https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/compute-capabilities.html"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """One published capability.

    Attributes:
        sm: its sm number.
        generation: NVIDIA's name of the architecture.
        products: the best-known products, for messages.
        suffixes: the suffixes that nvcc has for it beside none; ``a`` began with 9.0 and ``f`` with
            10.0 (CUDA 12.9).
        embedded: its SASS is promised to no other part, and no other part's SASS to it.
        source: the public page that this line is from.
    """

    sm: int
    generation: str
    products: str
    suffixes: str = ""
    embedded: bool = False
    source: str


KNOWN = (
    Known(sm=30, generation="Kepler", products="Tesla K10, GeForce GTX 680", source=_LEGACY),
    Known(sm=32, generation="Kepler", products="Tegra K1", embedded=True, source=_LEGACY),
    Known(sm=35, generation="Kepler", products="Tesla K20, K40", source=_LEGACY),
    Known(sm=37, generation="Kepler", products="Tesla K80", source=_LEGACY),
    Known(sm=50, generation="Maxwell", products="Tesla M10, GeForce GTX 750", source=_LEGACY),
    Known(sm=52, generation="Maxwell", products="Tesla M60, GeForce GTX 980", source=_LEGACY),
    Known(sm=53, generation="Maxwell", products="Jetson TX1, Nano", embedded=True, source=_LEGACY),
    Known(sm=60, generation="Pascal", products="Tesla P100", source=_LEGACY),
    Known(sm=61, generation="Pascal", products="Tesla P4, P40, GeForce GTX 1080", source=_LEGACY),
    Known(sm=62, generation="Pascal", products="Jetson TX2", embedded=True, source=_LEGACY),
    Known(sm=70, generation="Volta", products="V100", source=_LEGACY),
    Known(sm=72, generation="Volta", products="Jetson Xavier", embedded=True, source=_LEGACY),
    Known(sm=75, generation="Turing", products="T4, GeForce RTX 2080", source=_CURRENT),
    Known(sm=80, generation="Ampere", products="A100, A30", source=_CURRENT),
    Known(sm=86, generation="Ampere", products="A10, A40, GeForce RTX 3090", source=_CURRENT),
    Known(sm=87, generation="Ampere", products="Jetson Orin", embedded=True, source=_CURRENT),
    # CUDA 13.0 can build for 8.8, but NVIDIA lists no product with it: nothing is promised to it.
    Known(sm=88, generation="Ampere", products="", embedded=True, source=_PTX_ISA_9_0),
    Known(sm=89, generation="Ada", products="L4, L40S, GeForce RTX 4090", source=_CURRENT),
    Known(sm=90, generation="Hopper", products="H100, H200", suffixes="a", source=_CURRENT),
    Known(sm=100, generation="Blackwell", products="B200", suffixes="af", source=_CURRENT),
    Known(
        sm=101,
        generation="Blackwell",
        products="Thor before CUDA 13",
        suffixes="af",
        embedded=True,
        source=_CUDA_13_NOTES,
    ),
    Known(sm=103, generation="Blackwell", products="B300", suffixes="af", source=_CURRENT),
    Known(sm=107, generation="Rubin", products="Rubin", suffixes="af", source=_APPENDIX),
    Known(
        sm=110,
        generation="Blackwell",
        products="Jetson Thor",
        suffixes="af",
        embedded=True,
        source=_CURRENT,
    ),
    Known(
        sm=120,
        generation="Blackwell",
        products="RTX PRO 6000, GeForce RTX 5090",
        suffixes="af",
        source=_CURRENT,
    ),
    Known(
        sm=121, generation="Blackwell", products="GB10 (DGX Spark)", suffixes="af", source=_CURRENT
    ),
)

RENAMED = {101: 110}
"""Old sm number → the number that CUDA 13 gave the same part. Source: CUDA 13.0 release notes."""
