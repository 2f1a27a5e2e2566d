"""Product names of GPUs, as in ``nvidia-smi`` and surveys, and their capabilities.

The names are the column ``models`` of ``gpus.toml``. The one reader of names for advice, doctor and
options.
"""

from __future__ import annotations

import functools
import re

from archsplit.arch.gpus import GPUS
from archsplit.arch.target import Capability

__pure__ = True

_SPACES = re.compile(r"[\s_]+")
_MARKS = re.compile(r"\((?:r|tm|c)\)|[®™]")
# nvidia-smi prints "NVIDIA GeForce RTX 4090" where a survey has "RTX 4090".
_BRANDS = re.compile(r"^(?:nvidia|geforce|tesla|graphics|\s)+")
_VARIANTS = re.compile(
    r"[ -]+(?:laptop gpu|mobile|super|ti|d|max-q(?: design)?|with max-q design|generation|gpu"
    r"|workstation edition|server edition|max-q workstation edition|boost|nvl|pcie|sxm\d?|hbm\w+"
    r"|\d+ ?gb)$"
)
"""Additions to a model's name that don't change the generation of its chip."""


def product_capability(name: str) -> Capability | None:
    """Return the capability of a product, or None for an unknown name.

    Laptop, Ti, SUPER, Max-Q and variants of other memory have the capability of their model.
    """
    words, capabilities = _normalize(name), _capability_by_name()
    # One addition is cut at a time: a longer name may be in the table, with another chip than the
    # shorter one.
    while words and _squeeze(words) not in capabilities:
        shorter = _VARIANTS.sub("", words)
        if shorter == words:
            return None
        words = shorter
    return capabilities.get(_squeeze(words))


def matching_products(words: str, *, limit: int = 4) -> tuple[str, ...]:
    """Return the products that have all these words in their names, with their capabilities."""
    query = set(_normalize(words).split())
    return tuple(
        f"{model} ({Capability.from_sm_number(row.sm)})"
        for row in GPUS
        for model in row.models
        if query and query <= set(_normalize(model).split())
    )[:limit]


def _normalize(name: str) -> str:
    text = _SPACES.sub(" ", _MARKS.sub("", name.casefold())).strip()
    return re.sub(r"-(?=(?:pcie|sxm|nvl|\d+gb))", " ", _BRANDS.sub("", text))


# A shell splits "RTX 4090" at its space, so many write RTX4090.
def _squeeze(name: str) -> str:
    return name.replace(" ", "")


# Built at the first use: most commands name no product.
@functools.cache
def _capability_by_name() -> dict[str, Capability]:
    return {
        _squeeze(_normalize(name)): Capability.from_sm_number(row.sm)
        for row in GPUS
        for name in row.models
    }
