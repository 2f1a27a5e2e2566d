"""The parser of options that take GPUs: capabilities, targets, product names, ``native``.

An entry is a capability (``9.0``, ``90``, ``cc90``), a target (``sm_90a``, ``sm90``,
``compute_90``, ``90-real``, ``9.0+PTX``, a ``-gencode``), a product (``H100``, ``RTX 4090``) or
``native``. Entries are separated by commas or semicolons, and by spaces where the whole is no
product. Each function returns the kind that its option needs: a capability of a target is the
target's own; the target of a capability is its plain machine code.

A product is never guessed: a name that isn't in ``gpus.toml`` is refused.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

from archsplit.arch.compat import GPU_BY_CAPABILITY
from archsplit.arch.gpu_names import matching_products, product_capability
from archsplit.arch.parsing import target_names
from archsplit.arch.target import Capability, CodeKind, Target
from archsplit.errors import TargetError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Detector = Callable[[], Iterable[str]]
    """Returns an entry for each GPU of this machine: its capability, or its product name."""

_T = TypeVar("_T")
__pure__ = True

_NATIVE = "native"
_NUMBER = re.compile(r"(?:cc)?([1-9][0-9]{1,2})([af]?)", re.IGNORECASE)
_DOTTED = re.compile(r"([1-9][0-9]{0,2}\.[0-9])([af]?)", re.IGNORECASE)
_LOOSE_TARGET = re.compile(r"(sm|compute)[ _-]?([0-9]+)[.]?([0-9][af]?)", re.IGNORECASE)
_PATTERN = re.compile(r"[*?\[]")
_SPELLINGS = 'write it as in 9.0, sm_90, H100, "RTX 4090" or native'


def parse_capabilities(text: str, *, detect: Detector) -> tuple[Capability, ...]:
    """Read a list of GPUs as their capabilities, in the order of the list.

    Raises:
        TargetError: an entry can't be read, or stands for several capabilities or for none that
            is published; there is none; or ``native`` on a machine without a GPU.
    """
    found = dict.fromkeys(
        capability for entry in _entries(text) for capability in _capabilities(entry, detect)
    )
    return _some(tuple(found), text)


def parse_gpu_targets(text: str, *, detect: Detector) -> tuple[Target, ...]:
    """Read a list of GPUs as targets, in the targets' own order.

    ``90`` is SASS and PTX, as for CMake; ``9.0`` and a product are SASS alone, as for PyTorch.

    Raises:
        TargetError: see `parse_capabilities`.
    """
    if text.lstrip().startswith(("-", "arch=")):
        targets = set(map(Target.parse, target_names(text)))
    else:
        targets = {target for entry in _entries(text) for target in _targets(entry, detect)}
    return _some(tuple(sorted(targets)), text)


def parse_target_patterns(text: str, *, detect: Detector) -> tuple[str, ...]:
    """Read a list of GPUs as shell patterns of target names.

    A pattern (``compute_*``) and a target stand for themselves; a capability and a product stand
    for their machine code of any suffix: ``9.0`` is ``sm_90`` and ``sm_90a``.

    Raises:
        TargetError: see `parse_capabilities`.
    """
    patterns: dict[str, None] = {}
    for entry in _entries(text, keep_patterns=True):
        if _PATTERN.search(entry):
            patterns[entry] = None
        elif target := _target(entry):
            patterns[str(target)] = None
        else:
            found = _capabilities(entry, detect)
            patterns.update(dict.fromkeys(f"sm_{one.sm_number}*" for one in found))
    return _some(tuple(patterns), text)


def _some(found: tuple[_T, ...], text: str) -> tuple[_T, ...]:
    if not found:
        raise TargetError(f"the list of GPUs {text!r} is empty", hint=_SPELLINGS)
    return found


def _entries(text: str, *, keep_patterns: bool = False) -> Iterable[str]:
    for part in filter(None, map(str.strip, re.split(r"[,;]", text))):
        whole = keep_patterns and _PATTERN.search(part)
        if whole or " " not in part or _LOOSE_TARGET.fullmatch(part) or product_capability(part):
            yield part
        else:
            words = part.split()
            # "RTX 9999" is one unknown product, and not an unknown product and a bad number.
            yield from words if all(map(_is_readable, words)) else (part,)


def _is_readable(word: str) -> bool:
    """Return True if a word alone is an entry."""
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
        return (_known(Capability.from_sm_number(int(digits)), entry),)
    product = product_capability(entry)
    if product is not None:
        return (product,)
    found = {target.capability for target in _named_targets(entry)}
    if not found:
        raise _unreadable(entry)
    if len(found) > 1:
        raise TargetError(
            f"{entry!r} stands for several capabilities: {', '.join(map(str, sorted(found)))}",
            hint="name one of them",
        )
    return tuple(_known(capability, entry) for capability in found)


def _targets(entry: str, detect: Detector) -> tuple[Target, ...]:
    if entry.lower() == _NATIVE:
        return tuple(map(_sass, _native(detect)))
    if entry.lower().startswith("cc") or product_capability(entry) is not None:
        return tuple(map(_sass, _capabilities(entry, detect)))
    target = _target(entry)
    if target is not None:
        return (target,)
    targets = _named_targets(entry)
    if not targets:
        raise _unreadable(entry)
    for target in targets:
        _known(target.capability, entry)
    return targets


def _target(entry: str) -> Target | None:
    """Read a target's name in any case and punctuation, also of a capability to come."""
    match = _LOOSE_TARGET.fullmatch(entry)
    if match is None:
        return None
    return Target.parse(f"{match[1]}_{match[2]}{match[3]}".lower())


def _named_targets(entry: str) -> tuple[Target, ...]:
    """Read the spellings of nvcc, PyTorch and CMake; empty where the entry is in none of them."""
    target = _target(entry)
    if target is not None:
        return (target,)
    dotted = _DOTTED.fullmatch(entry) or _NUMBER.fullmatch(entry)
    try:
        return tuple(map(Target.parse, target_names(entry.lower() if dotted else entry)))
    except TargetError as error:
        # The words that name no fixed set have a reason of their own.
        if "no fixed set" in str(error):
            raise
        return ()


def _native(detect: Detector) -> tuple[Capability, ...]:
    found = dict.fromkeys(one for entry in detect() for one in _capabilities(entry, detect))
    if not found:
        raise TargetError(
            "'native' needs an NVIDIA GPU, and this machine shows none",
            hint="name the GPU, as in 9.0 or H100",
        )
    return tuple(found)


def _sass(capability: Capability) -> Target:
    return Target(kind=CodeKind.SASS, capability=capability)


def _known(capability: Capability, entry: str) -> Capability:
    if capability not in GPU_BY_CAPABILITY:
        known = f"the published ones are {', '.join(map(str, GPU_BY_CAPABILITY))}"
        raise TargetError(
            f"{entry!r}: there is no GPU of compute capability {capability}",
            hint=_products(entry) or known,
        )
    return capability


def _unreadable(entry: str) -> TargetError:
    hint = _products(entry) or _SPELLINGS
    return TargetError(f"{entry!r} is no GPU or target that is known", hint=hint)


def _products(words: str) -> str:
    named = matching_products(words)
    return f"do you mean {' or '.join(named)}?" if named else ""
