"""Write the variants of a core's wheel; see `archsplit.release.variants`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from archsplit.arch.target import Capability, Target
from archsplit.release.variants import (
    MEMBER,
    Variant,
    index_name,
    value_for,
    values_of,
    variants_file_name,
    variants_json,
)
from archsplit.system.fs import output_errors, replacing, write_file
from archsplit.wheels.archive import write_revised
from archsplit.wheels.filename import extra_name
from archsplit.wheels.reader import open_wheel
from archsplit.wheels.zip_writer import packed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_HEADER_END = re.compile(rb"\r?\n\r?\n|\Z")


def built_variants(plugins: Mapping[str, str]) -> tuple[tuple[Variant, ...], tuple[str, ...]]:
    """The variants of a core that was built, and why some targets have none.

    Args:
        plugins: for each target the requirement that brings its plugin.
    """
    variants: dict[tuple[str, ...], Variant] = {}
    notes = []
    for target, requirement in plugins.items():
        values = values_of(Target.parse(target))
        if not values:
            notes.append(f"{target} has no variant: the draft can't tell its GPUs from others")
        elif values in variants:
            notes.append(f"{target} has no variant: {variants[values].label} is for the same GPUs")
        else:
            label = extra_name(target)
            variants[values] = Variant(label=label, values=values, requires=(requirement,))
    return tuple(variants.values()), tuple(notes)


def split_variants(
    needs: Mapping[str, Sequence[str]], requirements: Mapping[str, str]
) -> tuple[Variant, ...]:
    """The variants of a split's core: one for all GPUs that need the same packs.

    Args:
        needs: the packs of each capability.
        requirements: what brings each pack.
    """
    groups: dict[tuple[str, ...], list[Capability]] = {}
    for capability, packs in needs.items():
        groups.setdefault(tuple(packs), []).append(Capability.parse(capability))
    return tuple(
        Variant(
            label=f"cc{served[0].major}{served[0].minor}",
            values=tuple(map(value_for, served)),
            requires=tuple(requirements[pack] for pack in packs),
        )
        for packs, served in groups.items()
    )


def write_variants(core: Path, variants: Sequence[Variant], folder: Path) -> tuple[str, ...]:
    """Write each variant of a core's wheel, and the list of all for an index; give their names.

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
            path = folder / variants_file_name(wheel.name, one.label)
            changed = {metadata: packed(_requiring(text, one.requires))}
            added = {f"{wheel.dist_info}/{MEMBER}": packed(variants_json([one]).encode())}
            with replacing(path) as new, new.open("wb") as file:
                write_revised(file, wheel, wheel.name, changed, added)
            names.append(path.name)
        names.append(index_name(wheel.name))
    write_file(folder / names[-1], variants_json(variants))
    return tuple(names)


def _requiring(metadata: bytes, requirements: Sequence[str]) -> bytes:
    """METADATA with more requirements, at the end of its fields."""
    end = _HEADER_END.search(metadata)
    at = len(metadata) if end is None else end.start()
    lines = "".join(f"\nRequires-Dist: {requirement}" for requirement in requirements)
    return metadata[:at].rstrip() + lines.encode() + (metadata[at:] or b"\n")
