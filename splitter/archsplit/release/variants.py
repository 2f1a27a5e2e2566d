"""Wheel variants of a core, by the drafts PEP 825 and PEP 850 (``providers``); experimental.

In: a core's wheel and its plugins. Out: one wheel per variant, and the list of all for an index. A
variant is the core with requirements on the plugins of some GPUs. An installer selects the variant
by its label and the GPU of the machine. So the index has each plugin's device code once.

Facts of the drafts, checked with variantlib 0.2 and uv 0.13: ``variant.json`` in a wheel lists
exactly one label; the namespace ``nvidia`` has the feature ``sm_arch`` with values such as
``90_real`` for machine code, and ``90_virtual`` for PTX.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from archsplit.arch.compat import GPU_BY_CAPABILITY, can_run_on
from archsplit.arch.target import Capability, CodeKind, Target
from archsplit.devicecode.partition import capability_extra
from archsplit.errors import WheelError
from archsplit.system.fs import atomic_replace, output_errors, write_file
from archsplit.wheels.filename import extra_name
from archsplit.wheels.metadata import edit_metadata
from archsplit.wheels.reader import open_wheel
from archsplit.wheels.rewrite import WheelRewrite
from archsplit.wheels.zip_writer import pack

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

__pure__ = True

VARIANTS_FOLDER = "variants"
"""Subfolder for variants: tools without variants must not find them beside the wheels."""

MEMBER = "variant.json"
SCHEMA_URL = "https://variants-schema.wheelnext.dev/peps/850/v0.2.0.json"
NAMESPACE, FEATURE = "nvidia", "sm_arch"
PROVIDER = {
    "plugin-api": "nvidia_variant_provider.plugin:NvidiaVariantPlugin",
    "requires": ["nvidia-variant-provider"],
}

_LABEL = re.compile(r"[0-9a-z_.]+")
_NULL = "null"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A variant of a core.

    Attributes:
        label: the last part of its file name.
        values: the values of ``nvidia :: sm_arch`` that select it.
        requires: the requirements of its plugins, pinned.
    """

    label: str
    values: tuple[str, ...]
    requires: tuple[str, ...]

    def __post_init__(self) -> None:
        if not _LABEL.fullmatch(self.label) or self.label == _NULL:
            raise WheelError(f"{self.label!r} can't be the label of a variant")
        # An installer would prefer such a variant to the core, and gain nothing.
        if not self.values or not self.requires:
            raise WheelError(f"variant {self.label} has no property, or brings nothing")


def variant_values(target: Target) -> tuple[str, ...]:
    """Return the values of a target; empty if the draft can't separate its GPUs from others.

    The provider of ``nvidia`` matches machine code from its minor capability up, which is wrong for
    ``a`` code if a later minor capability exists. It matches PTX of the same major capability only,
    though PTX runs on all later ones: so each known capability is listed.
    """
    if target.kind is CodeKind.PTX:
        return tuple(
            f"{one.sm_number}_virtual" for one in GPU_BY_CAPABILITY if can_run_on(target, one)
        )
    own = target.capability
    later = any(one.major == own.major and one > own for one in GPU_BY_CAPABILITY)
    return () if target.suffix == "a" and later else (preferred_value(own),)


def preferred_value(capability: Capability) -> str:
    """Return the preferred value of a GPU."""
    return f"{capability.sm_number}_real"


def variants_json(variants: Iterable[Variant]) -> str:
    """Return the JSON of variants: of one for its wheel, of all for an index."""
    content: dict[str, Any] = {
        "$schema": SCHEMA_URL,
        "default-priorities": {"namespace": [NAMESPACE]},
        "providers": {NAMESPACE: PROVIDER},
        "variants": {one.label: {NAMESPACE: {FEATURE: sorted(one.values)}} for one in variants},
    }
    return json.dumps(content, indent=4, sort_keys=True) + "\n"


def built_variants(plugins: Mapping[str, str]) -> tuple[tuple[Variant, ...], tuple[str, ...]]:
    """Return the variants of a built core, and a note for each target without one.

    Args:
        plugins: the requirement of each target's plugin.
    """
    variants: dict[tuple[str, ...], Variant] = {}
    notes = []
    for target, requirement in plugins.items():
        values = variant_values(Target.parse(target))
        # A wrong variant would install code that the GPU can't run, so none is better.
        if not values:
            notes.append(f"{target} has no variant: the draft has no property for its GPUs")
        # sm_90 and sm_90a: an installer could not choose between two variants of equal properties.
        elif values in variants:
            notes.append(f"{target} has no variant: {variants[values].label} is for the same GPUs")
        else:
            label = extra_name(target)
            variants[values] = Variant(label=label, values=values, requires=(requirement,))
    return tuple(variants.values()), tuple(notes)


def split_variants(
    needs: Mapping[str, Sequence[str]], requirements: Mapping[str, str]
) -> tuple[Variant, ...]:
    """Return the variants of a split's core: one for all GPUs with the same packs.

    Args:
        needs: the packs of each capability.
        requirements: the requirement of each pack.
    """
    groups: dict[tuple[str, ...], list[Capability]] = {}
    for capability, packs in needs.items():
        groups.setdefault(tuple(packs), []).append(Capability.parse(capability))
    return tuple(
        Variant(
            label=capability_extra(served[0]),
            values=tuple(map(preferred_value, served)),
            requires=tuple(requirements[pack] for pack in packs),
        )
        for packs, served in groups.items()
    )


def write_variants(core: Path, variants: Sequence[Variant], folder: Path) -> tuple[str, ...]:
    """Write the variants of a core and their list for an index; return the file names.

    Raises:
        WheelError: the core is damaged.
        OutputError: the folder can't be written.
    """
    with output_errors(folder):
        folder.mkdir(exist_ok=True)
    names = []
    with open_wheel(core, same_tags=False) as wheel:
        metadata = f"{wheel.dist_info}/METADATA"
        text = wheel.read(metadata)
        for one in variants:
            path = folder / f"{str(wheel.name).removesuffix('.whl')}-{one.label}.whl"
            fields = [f"Requires-Dist: {requirement}" for requirement in one.requires]
            changed = {metadata: pack(edit_metadata(text, fields=fields))}
            added = {f"{wheel.dist_info}/{MEMBER}": pack(variants_json([one]).encode())}
            rewrite = WheelRewrite(wheel=wheel, name=wheel.name, changed=changed, added=added)
            with atomic_replace(path) as new, new.open("wb") as file:
                rewrite.write(file)
            names.append(path.name)
        # The list goes last: what it names is there.
        names.append(f"{wheel.name.dist_info.removesuffix('.dist-info')}-variants.json")
    write_file(folder / names[-1], variants_json(variants))
    return tuple(names)
