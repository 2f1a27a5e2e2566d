"""Published compute capabilities: the one place where a GPU is added.

Capabilities are named by their sm numbers (90 is 9.0), as in target names. The rules that follow
from the table are in `archsplit.arch.compat`. `python tools/gpu_tables.py` writes the loader's C
table and the table of the manual's page on targets from this module.
"""

from __future__ import annotations

from dataclasses import dataclass

__pure__ = True

_CURRENT = "https://developer.nvidia.com/cuda-gpus"
_LEGACY = "https://developer.nvidia.com/cuda/gpus/legacy"
_DOCS = "https://docs.nvidia.com/cuda/"


@dataclass(frozen=True, slots=True)
class GpuRow:
    """A published compute capability.

    Attributes:
        sm: the sm number; rows are in ascending order.
        generation: NVIDIA's name of the architecture.
        display: the best-known products, for messages; never parsed.
        names: product names for detection, separated by commas, without the brands NVIDIA, GeForce
            and Tesla: the words of ``/proc/driver/nvidia/gpus/*/information``, of NVML and of
            surveys. A name that was sold with chips of several capabilities is left out (GT 730).
        suffixes: the suffixes that nvcc has for the capability in addition to none; ``a`` began
            with 9.0 and ``f`` with 10.0 (CUDA 12.9).
        embedded: SASS of this part is promised to no other part, and no other part's SASS to it.
        renamed: the sm number that a later toolkit gave the same part, or None.
        source: the public page of the row.
    """

    sm: int
    generation: str
    display: str
    names: str
    suffixes: str = ""
    embedded: bool = False
    renamed: int | None = None
    source: str = _CURRENT

    @property
    def models(self) -> tuple[str, ...]:
        """Product names."""
        return tuple(self.names.split(", ")) if self.names else ()


# fmt: off
GPUS = (
    GpuRow(30, "Kepler", "Tesla K10, GeForce GTX 680", "K10, GTX 680", source=_LEGACY),
    GpuRow(32, "Kepler", "Tegra K1", "Tegra K1, Jetson TK1", embedded=True, source=_LEGACY),
    GpuRow(35, "Kepler", "Tesla K20, K40", "K20, K40", source=_LEGACY),
    GpuRow(37, "Kepler", "Tesla K80", "K80", source=_LEGACY),
    GpuRow(50, "Maxwell", "Tesla M10, GeForce GTX 750",
           "GTX 745, GTX 750, GTX 850M, GTX 950M, GTX 960M, MX110, MX130, M10", source=_LEGACY),
    GpuRow(52, "Maxwell", "Tesla M60, GeForce GTX 980",
           "M4, M40, M60, GTX 950, GTX 960, GTX 970, GTX 980, GTX 965M, GTX 970M, GTX 980M,"
           " GTX TITAN X, Quadro M4000, Quadro M6000", source=_LEGACY),
    GpuRow(53, "Maxwell", "Jetson TX1, Nano",
           "Jetson TX1, Jetson Nano", embedded=True, source=_LEGACY),
    GpuRow(60, "Pascal", "Tesla P100", "P100, Quadro GP100", source=_LEGACY),
    GpuRow(61, "Pascal", "Tesla P4, P40, GeForce GTX 1080",
           "P4, P40, GT 1030, MX150, MX250, MX350, TITAN Xp, GTX 1050, GTX 1060, GTX 1070,"
           " GTX 1080, Quadro P400, Quadro P1000, Quadro P2000, Quadro P4000, Quadro P5000,"
           " Quadro P6000", source=_LEGACY),
    GpuRow(62, "Pascal", "Jetson TX2", "Jetson TX2", embedded=True, source=_LEGACY),
    GpuRow(70, "Volta", "V100", "V100, V100S, TITAN V, Quadro GV100", source=_LEGACY),
    GpuRow(72, "Volta", "Jetson Xavier",
           "Jetson Xavier, Jetson AGX Xavier, Jetson Xavier NX", embedded=True, source=_LEGACY),
    GpuRow(75, "Turing", "T4, GeForce RTX 2080",
           "T4, T400, T600, T1000, TITAN RTX, MX450, MX550, GTX 1630, GTX 1650, GTX 1660,"
           " RTX 2060, RTX 2070, RTX 2080, Quadro RTX 4000, Quadro RTX 5000,"
           " Quadro RTX 6000, Quadro RTX 8000"),
    GpuRow(80, "Ampere", "A100, A30", "A100, A30, A800"),
    GpuRow(86, "Ampere", "A10, A40, GeForce RTX 3090",
           "A2, A10, A10G, A16, A40, RTX A2000, RTX A3000, RTX A4000, RTX A4500, RTX A5000,"
           " RTX A5500, RTX A6000, MX570, RTX 2050, RTX 3050, RTX 3060, RTX 3070, RTX 3080,"
           " RTX 3090"),
    GpuRow(87, "Ampere", "Jetson Orin",
           "Jetson AGX Orin, Jetson Orin NX, Jetson Orin Nano, Jetson Orin", embedded=True),
    # CUDA 13.0 can build for 8.8, but NVIDIA lists no product with it.
    GpuRow(88, "Ampere", "", "", embedded=True,
           source=_DOCS + "archive/13.0.0/parallel-thread-execution/"),
    GpuRow(89, "Ada", "L4, L40S, GeForce RTX 4090",
           "L4, L20, L40, L40S, RTX 2000 Ada, RTX 4000 Ada, RTX 4000 SFF Ada, RTX 4500 Ada,"
           " RTX 5000 Ada, RTX 6000 Ada, RTX 4050, RTX 4060, RTX 4070, RTX 4080, RTX 4090"),
    GpuRow(90, "Hopper", "H100, H200", "H100, H200, H800, H20, GH200", suffixes="a"),
    GpuRow(100, "Blackwell", "B200", "B200, GB200", suffixes="af"),
    GpuRow(101, "Blackwell", "Thor before CUDA 13", "", suffixes="af", embedded=True, renamed=110,
           source=_DOCS + "archive/13.0.0/cuda-toolkit-release-notes/"),
    GpuRow(103, "Blackwell", "B300", "B300, GB300", suffixes="af"),
    GpuRow(107, "Rubin", "Rubin",
           "Rubin", suffixes="af",
           source=_DOCS + "cuda-programming-guide/05-appendices/compute-capabilities.html"),
    GpuRow(110, "Blackwell", "Jetson Thor",
           "Jetson T4000, Jetson T5000, Jetson Thor, Jetson AGX Thor", suffixes="af",
           embedded=True),
    GpuRow(120, "Blackwell", "RTX PRO 6000, GeForce RTX 5090",
           "RTX PRO 2000 Blackwell, RTX PRO 4000 Blackwell, RTX PRO 4500 Blackwell,"
           " RTX PRO 5000 Blackwell, RTX PRO 6000 Blackwell, RTX 5050, RTX 5060, RTX 5070,"
           " RTX 5080, RTX 5090, RTX PRO 6000", suffixes="af"),
    GpuRow(121, "Blackwell", "GB10 (DGX Spark)", "GB10, DGX Spark", suffixes="af"),
)
# fmt: on
