"""The capabilities of GPUs by their names, as surveys and ``nvidia-smi`` have them.

Source: NVIDIA's tables of compute capabilities, https://developer.nvidia.com/cuda-gpus for those of
today (7.5 and later) and https://developer.nvidia.com/cuda/gpus/legacy for earlier ones. What they
don't list is listed here only if all GPUs of the name have one chip; ``GeForce GT 730`` is several.
"""

from __future__ import annotations

import re

from splitter.arch.target import Capability

_NAMES = {
    "5.0": "GTX 745, GTX 750, GTX 850M, GTX 950M, GTX 960M, MX110, MX130",
    "5.2": (
        "Tesla M4, Tesla M40, Tesla M60, GTX 950, GTX 960, GTX 970, GTX 980, GTX 965M, "
        "GTX 970M, GTX 980M, GTX TITAN X, Quadro M4000, Quadro M6000"
    ),
    "6.0": "Tesla P100, Quadro GP100",
    "6.1": (
        "Tesla P4, Tesla P40, GT 1030, MX150, MX250, MX350, TITAN Xp, GTX 1050, "
        "GTX 1060, GTX 1070, GTX 1080, Quadro P400, Quadro P1000, Quadro P2000, "
        "Quadro P4000, Quadro P5000, Quadro P6000"
    ),
    "7.0": "V100, Tesla V100S, TITAN V, Quadro GV100",
    "7.5": (
        "T4, T400, T600, T1000, TITAN RTX, MX450, MX550, GTX 1630, GTX 1650, GTX 1660, "
        "RTX 2060, RTX 2070, RTX 2080, Quadro RTX 4000, Quadro RTX 5000, "
        "Quadro RTX 6000, Quadro RTX 8000"
    ),
    "8.0": "A100, A30, A800",
    "8.6": (
        "A2, A10, A10G, A16, A40, RTX A2000, RTX A3000, RTX A4000, RTX A4500, "
        "RTX A5000, RTX A5500, RTX A6000, MX570, RTX 2050, RTX 3050, RTX 3060, "
        "RTX 3070, RTX 3080, RTX 3090"
    ),
    "8.7": "Jetson AGX Orin, Jetson Orin NX, Jetson Orin Nano",
    "8.9": (
        "L4, L20, L40, L40S, RTX 2000 Ada, RTX 4000 Ada, RTX 4000 SFF Ada, "
        "RTX 4500 Ada, RTX 5000 Ada, RTX 6000 Ada, RTX 4050, RTX 4060, RTX 4070, "
        "RTX 4080, RTX 4090"
    ),
    "9.0": "H100, H200, H800, H20, GH200",
    "10.0": "B200, GB200",
    "10.3": "B300, GB300",
    "11.0": "Jetson T4000, Jetson T5000",
    "12.0": (
        "RTX PRO 2000 Blackwell, RTX PRO 4000 Blackwell, RTX PRO 4500 Blackwell, "
        "RTX PRO 5000 Blackwell, RTX PRO 6000 Blackwell, RTX 5050, RTX 5060, RTX 5070, "
        "RTX 5080, RTX 5090"
    ),
    "12.1": "GB10, DGX Spark",
}
_SPACES = re.compile(r"[\s_]+")
_MARKS = re.compile(r"\((?:r|tm|c)\)|[®™]")
_BRANDS = re.compile(r"^(?:nvidia|geforce|tesla|graphics|\s)+")
_VARIANTS = re.compile(
    r"[ -]+(?:laptop gpu|mobile|super|ti|d|max-q(?: design)?|with max-q design|generation|gpu"
    r"|workstation edition|server edition|max-q workstation edition|boost|nvl|pcie|sxm\d?|hbm\w+"
    r"|\d+ ?gb)$"
)
"""What a maker adds to a model's name without another generation of chips under it."""


def capability_of(name: str) -> Capability | None:
    """The capability of a GPU, or None if its name isn't known.

    Laptop, Ti, SUPER, Max-Q and variants of other memory are known by the model's own name.
    """
    words = _plain(name)
    while words and words not in _BY_NAME:
        shorter = _VARIANTS.sub("", words)
        if shorter == words:
            return None
        words = shorter
    return _BY_NAME.get(words)


def _plain(name: str) -> str:
    text = _SPACES.sub(" ", _MARKS.sub("", name.casefold())).strip()
    return re.sub(r"-(?=(?:pcie|sxm|nvl|\d+gb))", " ", _BRANDS.sub("", text))


_BY_NAME = {
    _plain(name): Capability.parse(capability)
    for capability, names in _NAMES.items()
    for name in names.split(", ")
}
