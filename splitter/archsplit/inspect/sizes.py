"""Code that one GPU uses, and what slim and split would leave of a subject.

In goes an inventory; out comes a `DeviceUsage` for each capability. Its bytes add up to the whole:
used + unused + link code + other = whole. Code outside of the fatbin sections counts like code that
is registered: the library loads it itself, and a GPU runs the same images of it. Containers with
the same facts are one `CodeGroup`: a GPU makes the same choice in all of them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from archsplit.arch.compat import GPU_BY_CAPABILITY
from archsplit.arch.target import CodeKind, Target
from archsplit.devicecode.model import Place, join_units
from archsplit.devicecode.select import (
    ContainerCode,
    Coverage,
    Selection,
    code_targets,
    container_codes,
    is_code,
    kept_bitcode,
)
from archsplit.inspect.breakdown import BITCODE, share_text
from archsplit.system.units import size_text, size_texts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from archsplit.arch.target import Capability
    from archsplit.devicecode.model import File, Inventory, Unit

__pure__ = True

_LETTERS_WITH_AN = "AEFHILMNORSX"
"""Letters whose names begin with a vowel: an H100, a T4."""
_BRANDS = ("GeForce ", "Tesla ")
_LEAST_MOVED = 0.001
"""Least share of all bytes for which a split is worth a line."""
_LOADER, _STUB_LIBRARY = 84_000, 4_500
"""Packed bytes that a core has for the loader, and for each split library: measured."""
_STUB = 2048
"""Largest image of a stub container; see `archsplit.devicecode.file_plan.is_stub`.

In CUDA 11.8 to 13.0 stubs have 600 to 1600 bytes. Here nothing is decompressed, so size decides.
"""


class ContainerFacts(NamedTuple):
    """Facts of a container that the choice of a GPU depends on.

    Attributes:
        is_stub: True if no GPU misses anything where it finds no code here.
        is_cut: True if slim removes images.
        is_moved: True if split moves it: the driver takes each of the images.
    """

    code: ContainerCode
    is_stub: bool
    is_cut: bool
    is_moved: bool

    @property
    def newest_ptx(self) -> Target | None:
        """PTX that slim keeps for GPUs that are not made yet."""
        ptx = (one for one in self.code.targets if one.kind is CodeKind.PTX and not one.suffix)
        return max(ptx, default=None)


class CodeGroup:
    """Sum of containers with the same facts.

    Attributes:
        sizes: bytes of each target: of the download, or of files outside of wheels.
        packed: the same as `archsplit split` stores them: a container with the same images once.
        other: bytes of code without a target that a driver chooses by.
    """

    def __init__(self, facts: ContainerFacts) -> None:
        self.facts = facts
        self.containers = self.other = 0
        self.sizes: Counter[Target] = Counter()
        self.packed: Counter[Target] = Counter()
        self._seen: set[tuple[int | None, ...]] = set()

    def add(self, unit: Unit, file: File | None) -> None:
        """Add a container; ``file`` has the estimate of its images as zstd frames."""
        self.containers += 1
        content = (unit.checksum, *(image.file_bytes for image in unit.images))
        is_copy = unit.checksum is not None and content in self._seen
        self._seen.add(content)
        for image in unit.images:
            if image.target is None or not is_code(image):
                self.other += image.weight
                continue
            self.sizes[image.target] += image.weight
            packed = image.weight if file is None else file.zstd_size(unit, image)
            self.packed[image.target] += 0 if is_copy else min(image.weight, packed)


def code_groups(inventory: Inventory) -> tuple[CodeGroup, ...]:
    """Group the containers of an inventory; parts of one container in several packs are joined."""
    groups: dict[ContainerFacts, CodeGroup] = {}

    def add(unit: Unit, facts: ContainerFacts, file: File | None) -> None:
        if facts not in groups:
            groups[facts] = CodeGroup(facts)
        groups[facts].add(unit, file)

    for file in inventory.files:
        codes = container_codes(
            [(unit.place, unit.is_device_linked, code_targets(unit.images)) for unit in file.units]
        )
        for unit, code in zip(file.units, codes, strict=True):
            if unit.fat is None:
                add(unit, _facts(unit, code), file)
    for unit in join_units(unit for unit in inventory.units() if unit.fat is not None):
        add(unit, _facts(unit, ContainerCode(unit.place, code_targets(unit.images))), None)
    return tuple(groups.values())


def _facts(unit: Unit, code: ContainerCode) -> ContainerFacts:
    is_run, is_linked = unit.place is Place.EXECUTABLE, unit.is_device_linked
    # Slim takes a frame of several images apart, if no linker reads it; split never does.
    is_apart = not any(image.is_share for image in unit.images)
    is_file = unit.member is None or unit.fat is not None
    return ContainerFacts(
        code=code,
        is_stub=is_run and _is_stub(unit),
        # A static library is input of a linker.
        is_cut=unit.place is not Place.OUTSIDE and is_file and (is_run or is_apart),
        is_moved=unit.is_registered
        and (is_run or is_linked)
        and is_apart
        and all(map(is_code, unit.images)),
    )


def _is_stub(unit: Unit) -> bool:
    """Return True for a container with nothing but small machine code, as nvcc's own ones."""
    return bool(unit.images) and all(
        image.file_bytes <= _STUB
        and not image.is_share
        and (image.target is None or image.target.kind is CodeKind.SASS)
        for image in unit.images
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUsage:
    """Code that GPUs of one capability use, and code that they don't.

    All bytes are of the download, or of files outside of wheels. Input of a device link counts for
    GPUs that the linked code does not serve, because the driver links it for them.

    Attributes:
        containers: the number of registered containers by coverage.
        targets: the targets in use, ascending, of registered code.
        outside: the same, of code that only the library finds.
        whole: all bytes.
        device_code: machine code, PTX and link code.
        used: machine code and PTX that the GPU takes.
        unused: machine code and PTX that it never takes.
        slimmed: all bytes after ``archsplit slim --device``, before anything is packed again.
        core, pack: bytes of ``archsplit split``, estimated from a sample of the images; None for
            what is split already, for several files at once, and for what has next to nothing to
            move, as cuFFT, which chooses its images itself.
        newer_ptx: the part of ``slimmed`` that only GPUs newer than all machine code need.
    """

    capability: Capability
    containers: Mapping[Coverage, int]
    targets: tuple[Target, ...]
    outside: tuple[Target, ...]
    whole: int
    device_code: int
    used: int
    unused: int
    slimmed: int
    core: int | None
    pack: int | None
    newer_ptx: int

    @property
    def link_code(self) -> int:
        """Input of a device link, and bitcode for one GPU."""
        return self.device_code - self.used - self.unused

    @property
    def other(self) -> int:
        """Bytes that are not device code."""
        return self.whole - self.device_code


def device_usage(
    inventory: Inventory, capabilities: Iterable[Capability]
) -> tuple[DeviceUsage, ...]:
    """Add up an inventory for each of some GPUs."""
    groups = code_groups(inventory)
    totals = _add_up(inventory, groups)
    return tuple(_usage(totals, groups, capability) for capability in capabilities)


def download_size(inventory: Inventory) -> int:
    """Return all bytes; an image that lies in several packs counts once."""
    units = tuple(inventory.units())
    copies = sum(image.weight for unit in units for image in unit.images)
    copies -= sum(image.weight for unit in join_units(units) for image in unit.images)
    return inventory.size - copies


class _Totals(NamedTuple):
    """Sums of an inventory that are the same for each GPU; bytes.

    Attributes:
        added: what a core has beside what the wheel had.
        code: in containers.
        moved: in containers that split moves; None if it can't split the subject.
        bitcode: of files of LLVM bitcode, by target.
    """

    whole: int
    added: int
    code: int
    moved: int | None
    bitcode: Mapping[Target, int]


def _add_up(inventory: Inventory, groups: tuple[CodeGroup, ...]) -> _Totals:
    whole = download_size(inventory)
    moved = sum(group.sizes.total() for group in groups if group.facts.is_moved)
    is_estimated = all(file.zstd is not None for file in inventory.files)
    libraries = sum(bool(file.units) for file in inventory.files)
    return _Totals(
        whole=whole,
        added=_LOADER + _STUB_LIBRARY * libraries if inventory.is_wheel else 0,
        code=sum(group.sizes.total() + group.other for group in groups),
        moved=moved if is_estimated and moved > _LEAST_MOVED * whole else None,
        bitcode={
            Target.parse(one.kind.removeprefix(BITCODE)): one.size
            for one in inventory.other_files
            if one.kind.startswith(BITCODE)
        },
    )


def _usage(totals: _Totals, groups: tuple[CodeGroup, ...], capability: Capability) -> DeviceUsage:
    containers: Counter[Coverage] = Counter()
    used = unused = cut = newer = pack = 0
    targets: dict[bool, set[Target]] = {True: set(), False: set()}
    for group in groups:
        facts = group.facts
        best, coverage = facts.code.choose(capability), facts.code.coverage(capability)
        is_outside = facts.code.place is Place.OUTSIDE
        taken = 0 if best is None else group.sizes[best]
        if coverage is not None:
            used, unused = used + taken, unused + group.sizes.total() - taken
            if best is not None:
                targets[is_outside].add(best)
            if not is_outside and (best is not None or not facts.is_stub):
                containers[coverage] += group.containers
        if facts.is_cut:
            cut += group.sizes.total() - taken
            # slim keeps the newest PTX of each container too, for GPUs that are not made yet.
            ptx = facts.newest_ptx
            newer += 0 if ptx is None or ptx == best else group.sizes[ptx]
        if facts.is_moved and best is not None:
            pack += group.packed[best]
    whole, added, code, moved, bitcode = totals
    linked = kept_bitcode(bitcode, Selection(devices=frozenset([capability])))
    return DeviceUsage(
        capability=capability,
        containers={coverage: containers[coverage] for coverage in Coverage},
        targets=tuple(sorted(targets[False])),
        outside=tuple(sorted(targets[True])),
        whole=whole,
        # Shares of a download are rounded.
        device_code=max(code, used + unused) + sum(bitcode.values()),
        used=used,
        unused=unused,
        slimmed=whole
        - cut
        + newer
        - sum(size for target, size in bitcode.items() if target not in linked),
        core=None if moved is None else whole + added - moved,
        pack=None if moved is None else pack,
        newer_ptx=newer,
    )


def gpu_name(capability: Capability) -> str:
    """Return a well-known product of a capability: ``H100``; the number for an unknown one."""
    known = GPU_BY_CAPABILITY.get(capability)
    name = known.display.partition(", ")[0] if known else ""
    for brand in _BRANDS:
        name = name.removeprefix(brand)
    return name or f"GPU of {capability}"


def answer_text(usage: DeviceUsage, name: str = "") -> str:
    """Return the answer as a sentence: what the GPU uses, and what is for others.

    Args:
        name: of the GPU, as the user wrote it; "" for a well-known product.
    """
    name = name or gpu_name(usage.capability)
    article = "An" if name[0] in _LETTERS_WITH_AN and not name[1:2].islower() else "A"
    if not usage.used:
        return f"{article} {name} finds no code here that it can run"
    _, unused, link = size_texts((usage.used, usage.unused, usage.link_code))
    return (
        f"{article} {name} uses {size_text(usage.used)} of {size_text(usage.device_code)} of device"
        f" code; {unused} ({share_text(usage.unused, usage.device_code)}) is for other GPUs"
        f"{f', {link} is link code' if usage.link_code else ''}"
    )
