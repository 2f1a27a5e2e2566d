"""Which code runs on which GPU, and which of several pieces of code is the best for it.

Sources of the rules:

- SASS runs on the same major capability with the same or a higher minor one, between desktop and
  data centre parts only. Embedded (Tegra) parts run what was built for exactly them:
  https://docs.nvidia.com/cuda/archive/12.9.1/cuda-c-programming-guide/#binary-compatibility
- ``a`` code, SASS and PTX, runs on exactly its capability; ``f`` code on its family, from its own
  minor capability up; other PTX on its capability and all later ones:
  https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/compute-capabilities.html
  (table "Family-Specific Compatibility") and
  https://docs.nvidia.com/cuda/parallel-thread-execution/#architecture-family-definition

That the driver must know the PTX version of a piece of PTX is no matter of targets: it depends on
the toolkit that made it, which a `Target` does not say.
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
"""The published capabilities, ascending."""

RENAMED_CAPABILITIES: Mapping[Capability, Capability] = MappingProxyType(
    {
        Capability.from_sm_number(row.sm): Capability.from_sm_number(row.renamed)
        for row in GPUS
        if row.renamed is not None
    }
)
"""Capabilities that a later toolkit calls by another number. Drivers report either, so code for one
number is not promised to a GPU that reports the other; the mapping is for hints."""

_SUFFIX_ORDER: Mapping[Suffix, int] = MappingProxyType({"": 0, "f": 1, "a": 2})


def can_run_on(target: Target, capability: Capability) -> bool:
    """Whether code built for ``target`` runs on a GPU of ``capability``.

    For capabilities and targets that are not known, the general rules are applied.
    """
    if target.suffix == "a":
        return target.capability == capability
    if target.kind is CodeKind.PTX and target.suffix == "":
        return target.capability <= capability
    return _same_line(target.capability, capability)


def best_target(capability: Capability, targets: Iterable[Target]) -> Target | None:
    """The target whose code a GPU of ``capability`` should run, or None where none of them runs.

    Preference, first to last: SASS over PTX, because the driver compiles PTX only where no binary
    image serves (nvcc's documentation of ``--gpu-code``); then the higher capability; then ``a``
    over ``f`` over none, because each is a superset of the next (the source of families above).
    NVIDIA does not say how the driver chooses within one capability, so the last step is our own
    choice. No two different targets tie.
    """
    candidates = [target for target in targets if can_run_on(target, capability)]
    return max(candidates, key=preference, default=None)


def preference(target: Target) -> tuple[bool, Capability, int]:
    """The sort key behind `best_target`: greater is better among targets that run on one GPU."""
    return (target.kind is CodeKind.SASS, target.capability, _SUFFIX_ORDER[target.suffix])


def is_published(target: Target) -> bool:
    """Whether NVIDIA has published this target: the capability, and the suffix for it."""
    known = GPU_BY_CAPABILITY.get(target.capability)
    return known is not None and target.suffix in ("", *known.suffixes)


def published_targets() -> tuple[Target, ...]:
    """Every target for which `is_published` holds, SASS first, ascending."""
    targets = (
        Target(kind=kind, capability=capability, suffix=suffix)
        for kind in CodeKind
        for capability in GPU_BY_CAPABILITY
        for suffix in _SUFFIX_ORDER
    )
    return tuple(sorted(target for target in targets if is_published(target)))


def capability_text(capability: Capability) -> str:
    """The capability with what people call it, for messages: ``9.0 (Hopper: H100, H200)``."""
    known = GPU_BY_CAPABILITY.get(capability)
    if known is None:
        return f"{capability} (not known)"
    return f"{capability} ({': '.join(filter(None, (known.generation, known.display)))})"


def compatibility_matrix() -> dict[str, list[str]]:
    """Every known target with the known capabilities that it runs on, as plain data.

    This is what another implementation of the rules (the C loader) is compared with.
    """
    return {
        str(target): [str(each) for each in GPU_BY_CAPABILITY if can_run_on(target, each)]
        for target in published_targets()
    }


def _same_line(built_for: Capability, capability: Capability) -> bool:
    """Whether SASS moves from one to the other: up within a major, never to or from embedded."""
    if built_for == capability:
        return True
    later_minor = built_for.major == capability.major and built_for.minor < capability.minor
    return later_minor and not (_is_embedded(built_for) or _is_embedded(capability))


def _is_embedded(capability: Capability) -> bool:
    known = GPU_BY_CAPABILITY.get(capability)
    return known is not None and known.embedded
