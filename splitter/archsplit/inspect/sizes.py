"""The answer of an inspection: what one GPU uses, and what slim and split would leave.

In goes an inventory and a capability; out comes a `DeviceSizes`, whose parts add up to the whole:
used + unused + link code + other = download. Code outside of the fatbin sections counts like code
that is registered: the library loads it itself, and a GPU runs the same images of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from archsplit.arch.compat import GPU_BY_CAPABILITY
from archsplit.arch.target import Target
from archsplit.devicecode.model import Place, join_units
from archsplit.devicecode.select import (
    Selection,
    is_code,
    kept_bitcode,
    newest_ptx,
    runs_linked_code,
    selected_images,
)
from archsplit.devicecode.stats import device_usage
from archsplit.inspect.breakdown import BITCODE, share_text
from archsplit.system.units import size_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from archsplit.arch.target import Capability
    from archsplit.devicecode.model import Image, Inventory, Unit

__pure__ = True

_LETTERS_WITH_AN = "AEFHILMNORSX"
"""Letters whose names begin with a vowel: an H100, a T4."""
_BRANDS = ("GeForce ", "Tesla ")
_LEAST_MOVED = 0.001
"""The least share of all bytes for which a split is worth a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSizes:
    """Bytes of a subject, as one GPU sees them: of the download, or of files outside of wheels.

    Attributes:
        whole: all bytes.
        used: machine code and PTX that the GPU takes.
        unused: machine code and PTX that it never takes.
        link_code: input of a device link, and bitcode for one GPU.
        unregistered: the part of ``used`` and ``unused`` outside of the fatbin sections.
        slimmed: all bytes after ``archsplit slim --device``, before anything is packed again.
        core, pack: bytes of ``archsplit split``, likewise; None for what is split already, and for
            what has next to nothing to move, as cuFFT, which chooses its images itself.
        newer_ptx: the part of ``slimmed`` that only GPUs newer than all machine code need.
    """

    capability: Capability
    whole: int
    used: int
    unused: int
    link_code: int
    unregistered: int
    slimmed: int
    core: int | None
    pack: int | None
    newer_ptx: int

    @property
    def device_code(self) -> int:
        """Machine code, PTX and link code."""
        return self.used + self.unused + self.link_code

    @property
    def other(self) -> int:
        """Bytes that are not device code."""
        return self.whole - self.device_code


def device_sizes(inventory: Inventory, capability: Capability) -> DeviceSizes:
    """Add up an inventory for one GPU."""
    units = join_units(inventory.units())
    (usage,) = device_usage(inventory, (capability,))
    outside = [unit for unit in units if unit.place is Place.OUTSIDE]
    code = sum(_code(unit.images) for unit in units) + _other_images(units)
    taken = sum(_code(selected_images(_by_place(unit), capability)) for unit in outside)
    unregistered = sum(_code(unit.images) for unit in outside)
    used, unused = usage.usable.cost + taken, usage.dead.cost + unregistered - taken
    bitcode = {
        Target.parse(one.kind.removeprefix(BITCODE)): one.size
        for one in inventory.other_files
        if one.kind.startswith(BITCODE)
    }
    linked = kept_bitcode(bitcode, Selection(devices=frozenset([capability])))
    inside = [unit for unit in units if unit.place is not Place.OUTSIDE]
    replaced = _replaced_input(inventory, capability)
    selected = [
        () if unit in replaced else selected_images(_by_place(unit), capability) for unit in inside
    ]
    cut = sum(_code(unit.images) for unit in inside)
    kept = sum(map(_code, selected))
    moved = sum(_code(unit.images) for unit in inside if _can_move(unit))
    pairs = zip(inside, selected, strict=True)
    pack = sum(_code(images) for unit, images in pairs if _can_move(unit))
    # slim keeps the newest PTX of each container too, for GPUs that are not made yet.
    newer = [
        [one for one in newest_ptx(_by_place(unit)) if one not in images]
        for unit, images in zip(inside, selected, strict=True)
    ]
    newer_ptx = sum(map(_code, newer))
    whole = inventory.size - (_weight(inventory.units()) - _weight(units))
    can_split = moved > _LEAST_MOVED * whole and all(unit.fat is None for unit in units)
    return DeviceSizes(
        capability=capability,
        whole=whole,
        used=used,
        unused=unused,
        # Shares of a download are rounded; the remainder of all code closes the sum.
        link_code=max(0, code - used - unused) + sum(bitcode.values()),
        unregistered=unregistered,
        slimmed=whole
        - cut
        + kept
        + newer_ptx
        - sum(size for target, size in bitcode.items() if target not in linked),
        core=whole - moved if can_split else None,
        pack=pack if can_split else None,
        newer_ptx=newer_ptx,
    )


def _can_move(unit: Unit) -> bool:
    """Return True for a container that a split moves: the driver takes each of its images."""
    is_run = unit.place is Place.EXECUTABLE or unit.is_device_linked
    return unit.member is None and is_run and all(map(is_code, unit.images))


def _replaced_input(inventory: Inventory, capability: Capability) -> frozenset[Unit]:
    """Return the input of device links whose results serve a GPU: no driver reads it for that."""
    found: set[Unit] = set()
    for file in inventory.files:
        units = [unit for unit in file.units if unit.is_device_linked]
        linked = (unit.images for unit in units if unit.place is Place.EXECUTABLE)
        if runs_linked_code(linked, capability):
            found |= {unit for unit in units if unit.place is Place.RELOCATABLE}
    return frozenset(found)


def _by_place(unit: Unit) -> tuple[Image, ...]:
    """Return the images with offsets of their own, by which a selection tells them apart."""
    return tuple(image._replace(offset=number) for number, image in enumerate(unit.images))


def _images(units: Iterable[Unit]) -> list[Image]:
    return [image for unit in units for image in unit.images]


def _code(images: Iterable[Image]) -> int:
    return sum(image.weight for image in images if is_code(image))


def _other_images(units: Iterable[Unit]) -> int:
    """Return the bytes of LTO-IR and of unknown kinds, which no driver chooses by target."""
    return sum(image.weight for image in _images(units) if not is_code(image))


def _weight(units: Iterable[Unit]) -> int:
    return sum(image.weight for image in _images(units))


def gpu_name(capability: Capability) -> str:
    """Return a well-known product of a capability: ``H100``; the number for an unknown one."""
    known = GPU_BY_CAPABILITY.get(capability)
    name = known.display.partition(", ")[0] if known else ""
    for brand in _BRANDS:
        name = name.removeprefix(brand)
    return name or f"GPU of {capability}"


def answer_text(sizes: DeviceSizes, name: str = "") -> str:
    """Return the answer as a sentence: what the GPU uses, and what is for others.

    Args:
        name: of the GPU, as the user wrote it; "" for a well-known product.
    """
    name = name or gpu_name(sizes.capability)
    article = "An" if name[0] in _LETTERS_WITH_AN and not name[1:2].islower() else "A"
    if not sizes.used:
        return f"{article} {name} finds no code here that it can run"
    code = sizes.device_code
    text = (
        f"{article} {name} uses {size_text(sizes.used)} of {size_text(code)} of device code;"
        f" {size_text(sizes.unused)} ({share_text(sizes.unused, code)}) is for other GPUs"
    )
    return text + (f", {size_text(sizes.link_code)} is link code" if sizes.link_code else "")
