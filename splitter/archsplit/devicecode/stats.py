"""What grew from one build to the next, per target and per kernel.

What an inventory is worth to a device: what it uses, what is dead weight, how it is served.

What a release may weigh and must hold, for a CI that says no before users do.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from archsplit.arch.compat import best_target
from archsplit.devicecode.kernels import stable_name
from archsplit.devicecode.model import Place, join_units
from archsplit.devicecode.select import Coverage, classify_coverage, code_targets, is_code
from archsplit.system.units import size_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from archsplit.arch.target import Capability, Target
    from archsplit.devicecode.model import File, Inventory, InventoryRow, Unit


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeChange:
    """A size, before and after, in bytes; 0 where there was or is none.

    Attributes:
        target: ``sm_90``; the kind's name for what has no target.
        name: the kernel's mangled name without what changes with every build, or None for the
            whole target.
    """

    target: str
    old: int
    new: int
    name: str | None = None

    @property
    def growth(self) -> int:
        """Bytes more than before; negative for a saving."""
        return self.new - self.old


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """All changes between two inventories.

    Attributes:
        in_download: whether targets are weighed by the bytes of the download, which both must have;
            else by those in files. Kernels are weighed by their machine code, unpacked.
        targets: every target of either, in the order of the older inventory.
        kernels: those that changed, the largest change first.
    """

    in_download: bool
    targets: tuple[SizeChange, ...]
    kernels: tuple[SizeChange, ...] = field(repr=False)


def compare_inventories(old: Inventory, new: Inventory) -> Growth:
    """Compare two inventories; their kernels only where both were made with them."""
    in_download = old.is_wheel and new.is_wheel
    before, after = _targets(old, in_download=in_download), _targets(new, in_download=in_download)
    return Growth(
        in_download=in_download,
        targets=tuple(
            SizeChange(target=target, old=before[target], new=after[target])
            for target in dict.fromkeys((*before, *after))
        ),
        kernels=_kernel_changes(_kernels(old), _kernels(new)),
    )


def _targets(inventory: Inventory, *, in_download: bool) -> Counter[str]:
    sizes: Counter[str] = Counter()
    for row in inventory.rows():
        sizes[row.target or row.kind] += row.weight if in_download else row.file_bytes
    return sizes


def _kernels(inventory: Inventory) -> Counter[tuple[str, str]]:
    sizes: Counter[tuple[str, str]] = Counter()
    for row in inventory.kernels():
        sizes[row.target, stable_name(row.name)] += row.code_bytes
    return sizes


def _kernel_changes(
    before: Mapping[tuple[str, str], int], after: Mapping[tuple[str, str], int]
) -> tuple[SizeChange, ...]:
    changes = (
        SizeChange(target=key[0], name=key[1], old=before.get(key, 0), new=after.get(key, 0))
        for key in {**before, **after}
        if before.get(key) != after.get(key)
    )
    return tuple(sorted(changes, key=lambda it: (-abs(it.growth), it.target, it.name or "")))


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeSize:
    """Bytes in files, and of the download; the second None outside of wheels."""

    file_bytes: int
    wheel_bytes: int | None

    @property
    def cost(self) -> int:
        """Bytes of the download where one is known, else in files."""
        return self.file_bytes if self.wheel_bytes is None else self.wheel_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUsage:
    """What device code is worth to GPUs of one capability.

    Only what is registered at run time is judged: leftovers of a device link and what lies outside
    of the fatbin sections are neither usable nor dead weight here.

    Attributes:
        containers: how many containers serve it how well; one that is empty serves nobody.
        targets: what it uses, in their order.
        usable: the images that it takes.
        dead: the machine code and PTX that it doesn't take.
    """

    capability: Capability
    containers: Mapping[Coverage, int]
    targets: tuple[Target, ...]
    usable: CodeSize
    dead: CodeSize


def device_usage(
    inventory: Inventory, capabilities: Iterable[Capability]
) -> tuple[DeviceUsage, ...]:
    """Judge all containers of an inventory for each capability."""
    groups = _alike(inventory)
    return tuple(
        _device(groups, capability, in_wheel=inventory.is_wheel) for capability in capabilities
    )


class _Group:
    """Containers that hold code for the same targets: a device chooses alike in all of them."""

    def __init__(self) -> None:
        self.containers = 0
        self.file_bytes: Counter[Target] = Counter()
        self.wheel_bytes: Counter[Target] = Counter()

    def add(self, unit: Unit) -> None:
        self.containers += 1
        for image in unit.images:
            if image.target is not None and is_code(image):
                self.file_bytes[image.target] += image.file_bytes
                self.wheel_bytes[image.target] += image.wheel_bytes or 0


def _alike(inventory: Inventory) -> Mapping[frozenset[Target], _Group]:
    groups: dict[frozenset[Target], _Group] = {}
    for unit in join_units(inventory.units()):
        if unit.place is Place.EXECUTABLE:
            groups.setdefault(code_targets(unit.images), _Group()).add(unit)
    return groups


def _device(
    groups: Mapping[frozenset[Target], _Group], capability: Capability, *, in_wheel: bool
) -> DeviceUsage:
    containers: Counter[Coverage] = Counter()
    file_bytes, wheel_bytes = [0, 0], [0, 0]
    used: set[Target] = set()
    for targets, group in groups.items():
        best = best_target(capability, targets)
        containers[classify_coverage(best, capability)] += group.containers
        if best is not None:
            used.add(best)
        for target in targets:
            file_bytes[target != best] += group.file_bytes[target]
            wheel_bytes[target != best] += group.wheel_bytes[target]
    usable, dead = (
        CodeSize(file_bytes=in_files, wheel_bytes=in_download if in_wheel else None)
        for in_files, in_download in zip(file_bytes, wheel_bytes, strict=True)
    )
    return DeviceUsage(
        capability=capability,
        containers={service: containers[service] for service in Coverage},
        targets=tuple(sorted(used)),
        usable=usable,
        dead=dead,
    )


_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeLimits:
    """The limits; patterns of targets are those of a shell: ``compute_*``.

    Attributes:
        budget: bytes of the whole: of the download for a wheel, else of the files; None for none.
        max_targets: patterns, each with the bytes that each target it fits may have.
        forbid: targets of which there may be no image.
        require: targets of which there must be one in a container that is registered at run time.
        same_kernels: whether all targets of machine code must have the same kernels.
    """

    budget: int | None = None
    max_targets: tuple[tuple[str, int], ...] = ()
    forbid: tuple[str, ...] = ()
    require: tuple[str, ...] = ()
    same_kernels: bool = False


def limit_findings(inventory: Inventory, limits: SizeLimits) -> tuple[str, ...]:
    """Say what an inventory has against its limits, one finding each; none when it keeps them.

    Where a limit is set, a file that can't be read is a finding too. For ``same_kernels`` the
    inventory must have been made with kernels.
    """
    if limits == SizeLimits():
        return ()
    rows = inventory.rows()
    return (
        *(f"{file.path}: {file.problem}" for file in inventory.files if _is_unread(file)),
        *_over_budget(inventory, limits.budget),
        *_too_heavy(rows, limits.max_targets),
        *_forbidden(rows, limits.forbid),
        *_missing(rows, limits.require),
        *(unequal_kernels(inventory) if limits.same_kernels else ()),
    )


def unequal_kernels(inventory: Inventory) -> Iterator[str]:
    """For each target of machine code, the kernels that it lacks and another one has."""
    names: dict[str, set[str]] = {
        row.target: set()
        for row in inventory.rows()
        if row.kind == "SASS" and row.target is not None and row.place is Place.EXECUTABLE
    }
    for kernel in inventory.kernels():
        names.setdefault(kernel.target, set()).add(kernel.name)
    everything = set[str]().union(*names.values())
    for target, own in names.items():
        lacking = sorted(everything - own)
        if lacking:
            more = f" and {len(lacking) - _SHOWN} more" if len(lacking) > _SHOWN else ""
            shown = ", ".join(lacking[:_SHOWN])
            yield f"{target} lacks {len(lacking)} of {len(everything)} kernels: {shown}{more}"


def _is_unread(file: File) -> bool:
    return file.problem is not None and not file.units


def _over_budget(inventory: Inventory, budget: int | None) -> Iterator[str]:
    if budget is not None and inventory.size > budget:
        yield (
            f"{inventory.path} has {size_text(inventory.size)} ({inventory.size} bytes), "
            f"more than its budget of {size_text(budget)}"
        )


def _too_heavy(rows: Iterable[InventoryRow], maxima: Iterable[tuple[str, int]]) -> Iterator[str]:
    weights = _weights(rows)
    for pattern, most in maxima:
        for target in matching_names(weights, pattern):
            if weights[target] > most:
                found, limit = size_text(weights[target]), size_text(most)
                yield f"{target} has {found} ({weights[target]} bytes), more than its {limit}"


def _forbidden(rows: Iterable[InventoryRow], patterns: Iterable[str]) -> Iterator[str]:
    weights = _weights(rows)
    for pattern in patterns:
        for target in matching_names(weights, pattern):
            yield f"{target} is forbidden ({pattern}), and has {size_text(weights[target])}"


def _missing(rows: Iterable[InventoryRow], patterns: Iterable[str]) -> Iterator[str]:
    executable = _weights(row for row in rows if row.place is Place.EXECUTABLE)
    for pattern in patterns:
        if not matching_names(executable, pattern):
            yield f"{pattern} is required; found {', '.join(executable) or 'no device code'}"


def matching_names(names: Iterable[str], pattern: str) -> list[str]:
    """The names that fit a shell's pattern, in their order."""
    return [name for name in names if fnmatchcase(name, pattern)]


def _weights(rows: Iterable[InventoryRow]) -> Counter[str]:
    """What each target costs, in the rows' order."""
    weights: Counter[str] = Counter()
    for row in rows:
        if row.target is not None:
            weights[row.target] += row.weight
    return weights
