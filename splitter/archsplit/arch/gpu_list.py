"""Lists of GPUs in options: capabilities, targets, product names, ``native``.

An entry is a capability (``9.0``, ``90``, ``cc90``), a target (``sm_90a``, ``sm90``,
``compute_90``, ``90-real``, ``9.0+PTX``, a ``-gencode``), a product (``H100``, ``RTX 4090``) or
``native``. Entries are separated by commas or semicolons, and by spaces unless the whole is a
product. Each function returns the type that its option needs: capabilities, targets or patterns.
The capability of a target is the target's own; the target of a capability is its plain machine
code.

Products are the column ``names`` of `archsplit.arch.gpus`, as ``nvidia-smi`` and surveys write
them. They are never guessed: a name that isn't there is refused.
"""

from __future__ import annotations

import difflib
import functools
import re
from typing import TYPE_CHECKING, TypeVar

from archsplit.arch.compat import GPU_BY_CAPABILITY, published_targets
from archsplit.arch.gpus import GPUS
from archsplit.arch.target import Capability, CodeKind, Target, UnfixedTargetsError, target_names
from archsplit.errors import TargetError
from archsplit.system.nvidia import detect_gpus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Detector = Callable[[], Iterable[str]]
    """A function that returns the capability or product name of each GPU of this machine."""

__pure__ = True

_T = TypeVar("_T")

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


_NATIVE = "native"
# cc90 is how a pack names its GPU, in its extra (`foo[cc90]`) and its file name.
_NUMBER = re.compile(r"(?:cc)?([1-9][0-9]{1,2})([af]?)", re.IGNORECASE)
_DOTTED = re.compile(r"([1-9][0-9]{0,2}\.[0-9])([af]?)", re.IGNORECASE)
_LOOSE_TARGET = re.compile(r"(sm|compute)[ _-]?([0-9]+)[.]?([0-9][af]?)", re.IGNORECASE)
_PATTERN = re.compile(r"[*?\[]")
_SPELLINGS = 'write it like 9.0, sm_90, H100, "RTX 4090" or native'


def parse_capabilities(text: str, *, detect: Detector = detect_gpus) -> tuple[Capability, ...]:
    """Read a list of GPUs as their capabilities, in the order of the list.

    Raises:
        TargetError: an entry can't be read, or stands for several capabilities or for none that
            is published; the list is empty; or ``native`` on a machine without a GPU.
    """
    capabilities = dict.fromkeys(
        capability for entry in _entries(text) for capability in _capabilities(entry, detect)
    )
    return _require_entries(tuple(capabilities), text)


def parse_gpu_targets(text: str, *, detect: Detector = detect_gpus) -> tuple[Target, ...]:
    """Read a list of GPUs as targets, in the targets' own order.

    ``90`` is SASS and PTX, as for CMake; ``9.0`` and a product are only SASS, as for PyTorch.

    Raises:
        TargetError: see `parse_capabilities`.
    """
    if text.lstrip().startswith(("-", "arch=")):
        # A -gencode has commas within its value, so this form can't be split at commas.
        targets = set(map(Target.parse, target_names(text)))
    else:
        targets = {target for entry in _entries(text) for target in _targets(entry, detect)}
    return _require_entries(tuple(sorted(targets)), text)


def parse_target_patterns(text: str, *, detect: Detector = detect_gpus) -> tuple[str, ...]:
    """Read a list of GPUs as shell patterns of target names.

    A pattern (``compute_*``) and a target stay as they are, and ``90-virtual`` is ``compute_90``. A
    capability and a product become their machine code of any suffix: ``9.0`` is ``sm_90`` and
    ``sm_90a``.

    Raises:
        TargetError: see `parse_capabilities`.
    """
    patterns: dict[str, None] = {}
    for entry in _entries(text, keep_patterns=True):
        # A pattern may match nothing that is published: only the library tells which targets there
        # are.
        if _PATTERN.search(entry):
            patterns[entry] = None
        # CMake's 120-virtual is only PTX.
        elif _target(entry) or entry.endswith("-virtual"):
            patterns.update(dict.fromkeys(map(str, _targets(entry, detect))))
        else:
            capabilities = _capabilities(entry, detect)
            # sm_90 and sm_90a both serve an H100: to name one of them would drop the other.
            patterns.update(dict.fromkeys(f"sm_{one.sm_number}*" for one in capabilities))
    return _require_entries(tuple(patterns), text)


def _require_entries(entries: tuple[_T, ...], text: str) -> tuple[_T, ...]:
    if not entries:
        raise TargetError(f"the list of GPUs {text!r} is empty", hint=_SPELLINGS)
    return entries


def _entries(text: str, *, keep_patterns: bool = False) -> Iterable[str]:
    for part in filter(None, map(str.strip, re.split(r"[,;]", text))):
        # A space separates entries only if the whole isn't one entry: "RTX 4090", "sm 90".
        whole = keep_patterns and _PATTERN.search(part)
        if whole or " " not in part or _LOOSE_TARGET.fullmatch(part) or product_capability(part):
            yield part
        else:
            words = part.split()
            # "RTX 9999" is one unknown product, and not an unknown product and a bad number.
            yield from words if all(map(_is_readable, words)) else (part,)


def _is_readable(word: str) -> bool:
    """Return True if a word by itself is an entry."""
    try:
        return word.lower() == _NATIVE or bool(_named_targets(word) or product_capability(word))
    except TargetError:
        return False


def _capabilities(entry: str, detect: Detector) -> tuple[Capability, ...]:
    if entry.lower() == _NATIVE:
        return _native(detect)
    number = _NUMBER.fullmatch(entry) or _DOTTED.fullmatch(entry)
    if number is not None:
        digits = number[1].replace(".", "")
        return (_require_published(Capability.from_sm_number(int(digits)), entry),)
    product = product_capability(entry)
    if product is not None:
        return (product,)
    capabilities = {target.capability for target in _named_targets(entry)}
    if not capabilities:
        raise _unreadable(entry)
    # A generation such as Ampere is several GPUs, of which the user means one.
    if len(capabilities) > 1:
        several = ", ".join(map(str, sorted(capabilities)))
        raise TargetError(
            f"{entry!r} stands for several capabilities: {several}", hint="name one of them"
        )
    return tuple(_require_published(capability, entry) for capability in capabilities)


def _targets(entry: str, detect: Detector) -> tuple[Target, ...]:
    if entry.lower() == _NATIVE:
        return tuple(map(_sass, _native(detect)))
    # cc90 is the GPU, not CMake's 90: only machine code. There is neither a GPU nor a target cc90a.
    if re.fullmatch("cc[0-9]+", entry, re.IGNORECASE) or product_capability(entry) is not None:
        return tuple(map(_sass, _capabilities(entry, detect)))
    target = _target(entry)
    if target is not None:
        return (target,)
    targets = _named_targets(entry)
    if not targets:
        raise _unreadable(entry)
    # A bare number is a typing error more often than a GPU to come.
    for target in targets:
        _require_published(target.capability, entry)
    return targets


def _target(entry: str) -> Target | None:
    """Read a target's name in any case and punctuation, also of an unpublished capability."""
    match = _LOOSE_TARGET.fullmatch(entry)
    if match is None:
        return None
    return Target.parse(f"{match[1]}_{match[2]}{match[3]}".lower())


def _named_targets(entry: str) -> tuple[Target, ...]:
    """Read the spellings of nvcc, PyTorch and CMake; return nothing for other entries."""
    target = _target(entry)
    if target is not None:
        return (target,)
    dotted = _DOTTED.fullmatch(entry) or _NUMBER.fullmatch(entry)
    try:
        return tuple(map(Target.parse, target_names(entry.lower() if dotted else entry)))
    # Its hint is better than any here.
    except UnfixedTargetsError:
        raise
    except TargetError:
        return ()


def _native(detect: Detector) -> tuple[Capability, ...]:
    # Several equal GPUs are one entry.
    gpus = dict.fromkeys(one for entry in detect() for one in _capabilities(entry, detect))
    if not gpus:
        raise TargetError(
            "no NVIDIA GPU was found on this machine",
            hint="name the GPU, such as 9.0 or H100",
        )
    return tuple(gpus)


# No PTX: a user who names a GPU wants the code that it runs without a compilation by the driver.
def _sass(capability: Capability) -> Target:
    return Target(kind=CodeKind.SASS, capability=capability)


def require_published(targets: Iterable[Target]) -> frozenset[Target]:
    """Return the targets, and refuse unpublished capabilities.

    PTX serves all later capabilities: for a mistyped target, only PTX would be kept.

    Raises:
        TargetError: no GPU has the capability of one of them.
    """
    found = frozenset(targets)
    for target in sorted(found):
        _require_published(target.capability, str(target))
    return found


def _require_published(capability: Capability, entry: str) -> Capability:
    if capability not in GPU_BY_CAPABILITY:
        published = f"the published ones are {', '.join(map(str, GPU_BY_CAPABILITY))}"
        raise TargetError(
            f"{entry!r}: no GPU has the compute capability {capability}",
            hint=_product_hint(entry) or published,
        )
    return capability


def _unreadable(entry: str) -> TargetError:
    # "RTX 6000" is a part of several names, which are better than the nearest one.
    if products := _product_hint(entry):
        return TargetError(f"unknown GPU {entry!r}", hint=products)
    near = _nearest(entry)
    suggestion = f"; did you mean {near}?" if near else ""
    return TargetError(f"unknown GPU {entry!r}{suggestion}", hint=_SPELLINGS)


def _nearest(entry: str) -> str:
    """Return the product or target whose name is nearly the entry; "" for none."""
    names = {_squeeze(_normalize(model)): model for row in GPUS for model in row.models}
    names |= {str(target): str(target) for target in published_targets()}
    near = difflib.get_close_matches(_squeeze(_normalize(entry)), names, n=1, cutoff=0.75)
    return names[near[0]] if near else ""


def _product_hint(words: str) -> str:
    """Return a hint with the products that have all these words in their names; "" for none."""
    query = set(_normalize(words).split())
    products = [
        f"{model} ({Capability.from_sm_number(row.sm)})"
        for row in GPUS
        for model in row.models
        if query and query <= set(_normalize(model).split())
    ][:4]
    return f"did you mean {' or '.join(products)}?" if products else ""
