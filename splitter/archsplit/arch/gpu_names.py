"""The capabilities of GPUs by their product names, as surveys and ``nvidia-smi`` have them.

The names are the column ``models`` of ``gpus.toml``.
"""

from __future__ import annotations

import functools
import re

from archsplit.arch.gpus import GPUS
from archsplit.arch.target import Capability

__pure__ = True

_SPACES = re.compile(r"[\s_]+")
_MARKS = re.compile(r"\((?:r|tm|c)\)|[®™]")
_BRANDS = re.compile(r"^(?:nvidia|geforce|tesla|graphics|\s)+")
_VARIANTS = re.compile(
    r"[ -]+(?:laptop gpu|mobile|super|ti|d|max-q(?: design)?|with max-q design|generation|gpu"
    r"|workstation edition|server edition|max-q workstation edition|boost|nvl|pcie|sxm\d?|hbm\w+"
    r"|\d+ ?gb)$"
)
"""What a maker adds to a model's name without another generation of chips under it."""


def product_capability(name: str) -> Capability | None:
    """The capability of a GPU, or None if its name isn't known.

    Laptop, Ti, SUPER, Max-Q and variants of other memory are known by the model's own name.
    """
    words, capabilities = _plain(name), _capability_by_name()
    while words and words not in capabilities:
        shorter = _VARIANTS.sub("", words)
        if shorter == words:
            return None
        words = shorter
    return capabilities.get(words)


def matching_products(words: str, *, limit: int = 4) -> tuple[str, ...]:
    """Return the products that have all these words in their names, with their capabilities."""
    wanted = set(_plain(words).split())
    return tuple(
        f"{model} ({Capability.from_sm_number(row.sm)})"
        for row in GPUS
        for model in row.models
        if wanted and wanted <= set(_plain(model).split())
    )[:limit]


def _plain(name: str) -> str:
    text = _SPACES.sub(" ", _MARKS.sub("", name.casefold())).strip()
    return re.sub(r"-(?=(?:pcie|sxm|nvl|\d+gb))", " ", _BRANDS.sub("", text))


@functools.cache
def _capability_by_name() -> dict[str, Capability]:
    return {_plain(name): Capability.from_sm_number(row.sm) for row in GPUS for name in row.models}
