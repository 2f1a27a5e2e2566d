"""Compatibility of code and GPUs: the targets that run on a GPU, and the best of them.

In: a capability and targets. Out: True or False, or one target. The rules are few functions over
the table `archsplit.arch.gpus`; the C loader has the same rules, and a test compares both.
Sources of the rules:

- SASS runs on the same major capability with the same or a higher minor one, between desktop and
  data center GPUs only. Embedded GPUs (Tegra) run only code that was built for exactly them:
  https://docs.nvidia.com/cuda/archive/12.9.1/cuda-c-programming-guide/#binary-compatibility
- ``a`` code, SASS and PTX, runs on exactly its capability; ``f`` code on its family, from its own
  minor capability up; other PTX on its capability and all later ones:
  https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/compute-capabilities.html
  (table "Family-Specific Compatibility") and
  https://docs.nvidia.com/cuda/parallel-thread-execution/#architecture-family-definition

The driver must also support the version of the PTX ISA. That is outside of these rules: it depends
on the toolkit that made the PTX, which is not part of a `Target`.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from archsplit.arch.gpus import GPUS, GpuRow
from archsplit.arch.target import Capability, CodeKind, Suffix, Target

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__pure__ = True

GPU_BY_CAPABILITY: Mapping[Capability, GpuRow] = MappingProxyType(
    {Capability.from_sm_number(row.sm): row for row in GPUS}
)
"""Published capabilities with their rows of the table, ascending."""

RENAMED_CAPABILITIES: Mapping[Capability, Capability] = MappingProxyType(
    {
        Capability.from_sm_number(row.sm): Capability.from_sm_number(row.renamed)
        for row in GPUS
        if row.renamed is not None
    }
)
"""Capabilities with the number that a later toolkit gave the same part.

A driver may report either number. Code for one number may not run on a GPU that reports the other,
so no rule uses this mapping: it is for hints.
"""

_SUFFIX_ORDER: Mapping[Suffix, int] = MappingProxyType({"": 0, "f": 1, "a": 2})


def can_run_on(target: Target, capability: Capability) -> bool:
    """Return True if code built for ``target`` runs on a GPU of ``capability``.

    Unpublished capabilities and targets follow the general rules.
    """
    # Neither a later GPU nor a later driver makes up for the `a`: instructions such as wgmma
    # (sm_90a) exist on that capability only, so `a` PTX can't be compiled for others.
    if target.suffix == "a":
        return target.capability == capability
    # The driver compiles plain PTX for any later GPU: the only code that serves GPUs to come.
    if target.kind is CodeKind.PTX and target.suffix == "":
        return target.capability <= capability
    # Left are SASS, and PTX with `f`. Each family so far is a range of minor numbers within one
    # major, so both follow one rule.
    return _can_run_within_major(target.capability, capability)


def best_target(capability: Capability, targets: Iterable[Target]) -> Target | None:
    """Return the best target for a GPU of ``capability``, None if none runs.

    Preference, first to last: SASS over PTX, because the driver compiles PTX only without a binary
    image that runs (nvcc's documentation of ``--gpu-code``); then the higher capability; then ``a``
    over ``f`` over no suffix, because each is a superset of the next (source: the table
    "Family-Specific Compatibility"). NVIDIA does not document the driver's choice within one
    capability, so the last step is archsplit's own rule. Two different targets are never equal.
    """
    # The order of `targets` has no effect: two different targets have different keys.
    candidates = [target for target in targets if can_run_on(target, capability)]
    return max(candidates, key=preference, default=None)


def preference(target: Target) -> tuple[bool, Capability, int]:
    """Return the sort key of `best_target`: greater is better among targets that run."""
    return (target.kind is CodeKind.SASS, target.capability, _SUFFIX_ORDER[target.suffix])


def is_published(target: Target) -> bool:
    """Return True if NVIDIA has published the target's capability, with its suffix."""
    gpu = GPU_BY_CAPABILITY.get(target.capability)
    return gpu is not None and target.suffix in ("", *gpu.suffixes)


def published_targets() -> tuple[Target, ...]:
    """Return all published targets, SASS first, ascending."""
    targets = (
        Target(kind=kind, capability=capability, suffix=suffix)
        for kind in CodeKind
        for capability in GPU_BY_CAPABILITY
        for suffix in _SUFFIX_ORDER
    )
    return tuple(sorted(target for target in targets if is_published(target)))


def capability_text(capability: Capability) -> str:
    """Return the capability with its products, for messages: ``9.0 (Hopper: H100, H200)``."""
    gpu = GPU_BY_CAPABILITY.get(capability)
    if gpu is None:
        return f"{capability} (unknown)"
    return f"{capability} ({': '.join(filter(None, (gpu.generation, gpu.display)))})"


def _can_run_within_major(built_for: Capability, capability: Capability) -> bool:
    """Return True for the same capability, or a later minor of the same major.

    Embedded parts match only exactly.
    """
    # First, because it holds for embedded parts too.
    if built_for == capability:
        return True
    later_minor = built_for.major == capability.major and built_for.minor < capability.minor
    # Going only by numbers, Orin's sm_87 would run on Ada (8.9), and Ampere's sm_86 on Orin.
    return later_minor and not (_is_embedded(built_for) or _is_embedded(capability))


def _is_embedded(capability: Capability) -> bool:
    gpu = GPU_BY_CAPABILITY.get(capability)
    # A number that isn't in the table is taken for a desktop or data center part, as most new ones
    # are. A new embedded part needs its row before its plugins can be trusted.
    return gpu is not None and gpu.embedded
