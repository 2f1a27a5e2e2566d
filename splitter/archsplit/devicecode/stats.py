"""Numbers that are computed from inventories: growth, use by devices, limits.

In go inventories; out come records for reports. `compare_inventories` weighs two builds,
`device_usage` what GPUs can use of one, and `limit_findings` checks one against the limits that a
project sets for its CI.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from archsplit.arch.compat import best_target
from archsplit.arch.target import Target
from archsplit.devicecode.kernels import stable_name, template_name
from archsplit.devicecode.model import Place, join_units
from archsplit.devicecode.select import (
    Coverage,
    classify_coverage,
    code_targets,
    is_code,
    replaces_input,
)
from archsplit.system.finding import Finding
from archsplit.system.units import size_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from archsplit.arch.target import Capability
    from archsplit.devicecode.model import Image, Inventory, InventoryRow, Unit

_MAX_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeChange:
    """A size before and after, in bytes; 0 where there was or is none.

    Attributes:
        target: ``sm_90``; the kind's name for an image without a target.
        name: the kernel's stable name (see `stable_name`), or None for the whole target.
    """

    target: str
    old: int
    new: int
    name: str | None = None

    @property
    def growth(self) -> int:
        """Number of added bytes; negative for a saving."""
        return self.new - self.old


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """All changes between two inventories.

    Attributes:
        in_download: True if sizes of targets are bytes of the download, which both must have; else
            they are bytes of files. Kernels are weighed by their decompressed machine code.
        targets: every target of either, in the order of the older inventory.
        kernels: the changed kernels, the largest change first.
    """

    in_download: bool
    targets: tuple[SizeChange, ...]
    kernels: tuple[SizeChange, ...] = field(repr=False)


def compare_inventories(old: Inventory, new: Inventory) -> Growth:
    """Compare two inventories; kernels are compared only if both have them."""
    # Compressed and decompressed bytes can't be compared.
    in_download = old.is_wheel and new.is_wheel
    before, after = (
        target_sizes(old, in_download=in_download),
        target_sizes(new, in_download=in_download),
    )
    return Growth(
        in_download=in_download,
        targets=tuple(
            SizeChange(target=target, old=before[target], new=after[target])
            for target in dict.fromkeys((*before, *after))
        ),
        kernels=_kernel_changes(_kernel_sizes(old), _kernel_sizes(new)),
    )


def target_sizes(inventory: Inventory, *, in_download: bool) -> Counter[str]:
    """Add up the bytes of each target, or of each kind of code without one."""
    sizes: Counter[str] = Counter()
    for row in inventory.rows():
        sizes[row.target or row.kind] += row.weight if in_download else row.file_bytes
    return sizes


def _kernel_sizes(inventory: Inventory) -> Counter[tuple[str, str]]:
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
    return tuple(
        sorted(changes, key=lambda change: (-abs(change.growth), change.target, change.name or ""))
    )


def template_changes(kernels: Iterable[SizeChange]) -> tuple[SizeChange, ...]:
    """Add up changes of kernels by their template, the largest net change first.

    Of one template and target, a kernel that went and one that came are one renamed kernel.
    """
    groups: dict[str, list[SizeChange]] = {}
    for change in kernels:
        groups.setdefault(template_name(change.name or ""), []).append(change)
    sums = [_sum_template(name, changes) for name, changes in groups.items()]
    return tuple(sorted(sums, key=lambda one: (-abs(one.growth), one.name or "")))


def _sum_template(name: str, changes: list[SizeChange]) -> SizeChange:
    went = Counter(change.target for change in changes if not change.new)
    came = Counter(change.target for change in changes if not change.old)
    renamed = (went & came).total()
    notes = [f"{len(changes) - renamed} kernels"] if len(changes) > 1 + renamed else []
    notes += [f"{renamed} renamed"] if renamed else []
    return SizeChange(
        target=" ".join(dict.fromkeys(change.target for change in changes)),
        name=f"{name} ({', '.join(notes)})" if notes else name,
        old=sum(change.old for change in changes),
        new=sum(change.new for change in changes),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeSize:
    """Bytes in files, and bytes of the download, which are None outside of wheels."""

    file_bytes: int
    wheel_bytes: int | None

    @property
    def cost(self) -> int:
        """Bytes of the download; bytes in files outside of a wheel."""
        return self.file_bytes if self.wheel_bytes is None else self.wheel_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUsage:
    """The code that GPUs of one capability use, and the code that they don't.

    Counted is code that is registered at run time. Input of a device link counts for GPUs that the
    linked code does not serve, because the driver links it for them; for others it is neither
    usable nor dead weight, and code outside of the fatbin sections isn't either.

    Attributes:
        containers: the number of containers by coverage; an empty container serves no GPU.
        targets: the targets in use, ascending.
        usable: the images that the GPU takes.
        dead: the machine code and PTX that the GPU does not take.
    """

    capability: Capability
    containers: Mapping[Coverage, int]
    targets: tuple[Target, ...]
    usable: CodeSize
    dead: CodeSize

    @property
    def whole(self) -> int:
        """Bytes of all counted code, in the measure of `CodeSize.cost`."""
        return self.usable.cost + self.dead.cost


def device_usage(
    inventory: Inventory, capabilities: Iterable[Capability]
) -> tuple[DeviceUsage, ...]:
    """Compute the usage of all containers of an inventory for each capability."""
    groups = _group_by_targets(inventory)
    return tuple(
        _usage(groups, capability, in_wheel=inventory.is_wheel) for capability in capabilities
    )


class _Group:
    """The sum of containers with code for the same targets.

    A device makes the same choice in all of them.
    """

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _GroupKey:
    """The facts of a container that the choice of a device depends on.

    Attributes:
        targets: of the container's code.
        linked: for input of a device link, the targets of each linked container, which come first.
        input: for linked code, the targets of that input, which comes second.
    """

    targets: frozenset[Target]
    linked: frozenset[frozenset[Target]] | None = None
    input: frozenset[Target] | None = None

    def choose(self, capability: Capability) -> tuple[bool, Target | None]:
        """Return False for containers that don't count for a GPU, and the target it takes."""
        best = best_target(capability, self.targets)
        if self.linked is not None:
            return best is not None and not replaces_input(self.linked, capability), best
        # The driver links the input instead.
        is_replaced = self.input is not None and best_target(capability, self.input) is not None
        return best is not None or not is_replaced, best


def _group_by_targets(inventory: Inventory) -> Mapping[_GroupKey, _Group]:
    groups: dict[_GroupKey, _Group] = {}
    for unit in join_units(inventory.units()):
        # Only these are registered, and a device chooses from each by itself.
        if unit.place is Place.EXECUTABLE and not unit.is_device_linked:
            key = _GroupKey(targets=code_targets(unit.images))
            groups.setdefault(key, _Group()).add(unit)
    for file in inventory.files:
        results, inputs = (
            [unit for unit in file.units if unit.is_device_linked and unit.place is place]
            for place in (Place.EXECUTABLE, Place.RELOCATABLE)
        )
        linked, input_sets = (
            frozenset(code_targets(unit.images) for unit in units) for units in (results, inputs)
        )
        input_targets = frozenset[Target]().union(*input_sets)
        for unit in results:
            key = _GroupKey(targets=code_targets(unit.images), input=input_targets)
            groups.setdefault(key, _Group()).add(unit)
        for unit in inputs:
            key = _GroupKey(targets=code_targets(unit.images), linked=linked)
            groups.setdefault(key, _Group()).add(unit)
    return groups


def _usage(
    groups: Mapping[_GroupKey, _Group], capability: Capability, *, in_wheel: bool
) -> DeviceUsage:
    containers: Counter[Coverage] = Counter()
    file_bytes, wheel_bytes = [0, 0], [0, 0]
    used: set[Target] = set()
    for key, group in groups.items():
        counts, best = key.choose(capability)
        if not counts:
            continue
        containers[classify_coverage(best, capability)] += group.containers
        if best is not None:
            used.add(best)
        for target in key.targets:
            # Index 0 is what the device takes, index 1 is dead weight.
            file_bytes[target != best] += group.file_bytes[target]
            wheel_bytes[target != best] += group.wheel_bytes[target]
    usable, dead = (
        CodeSize(file_bytes=in_files, wheel_bytes=in_download if in_wheel else None)
        for in_files, in_download in zip(file_bytes, wheel_bytes, strict=True)
    )
    return DeviceUsage(
        capability=capability,
        containers={coverage: containers[coverage] for coverage in Coverage},
        targets=tuple(sorted(used)),
        usable=usable,
        dead=dead,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeLimits:
    """The limits of a release; patterns of targets are shell patterns: ``compute_*``.

    Attributes:
        budget: bytes of the whole: of the download for a wheel, else of the files; None for none.
        max_targets: patterns, each with the limit in bytes for each matching target.
        forbid: targets that must have no image.
        require: targets that must have an image in a container registered at run time, or in the
            input of a device link, which the driver links.
        same_kernels: True if all targets of machine code must have the same kernels.
    """

    budget: int | None = None
    max_targets: tuple[tuple[str, int], ...] = ()
    forbid: tuple[str, ...] = ()
    require: tuple[str, ...] = ()
    same_kernels: bool = False


def limit_findings(inventory: Inventory, limits: SizeLimits) -> tuple[Finding, ...]:
    """Return a finding for each limit that an inventory exceeds; none if all hold.

    Where a limit is set, an unreadable file is a finding too. For ``same_kernels`` the inventory
    must have kernels.
    """
    # Without a limit an unreadable file is shown, and fails nothing.
    if limits == SizeLimits():
        return ()
    rows = inventory.rows()
    return (
        *_unread_files(inventory),
        *_over_budget(inventory, limits.budget),
        *_over_target_limit(rows, limits.max_targets),
        *_forbidden_targets(rows, limits.forbid),
        *_missing_targets(inventory, limits.require),
        *(unequal_kernels(inventory) if limits.same_kernels else ()),
    )


def unequal_kernels(inventory: Inventory) -> Iterator[Finding]:
    """Yield for each target of machine code the kernels that only other targets have."""
    # A target without any kernel must be found too.
    names: dict[str, set[str]] = {
        row.target: set()
        for row in inventory.rows()
        if row.kind == "SASS" and row.target is not None and row.place is Place.EXECUTABLE
    }
    for kernel in inventory.kernels():
        names.setdefault(kernel.target, set()).add(kernel.name)
    all_names = set[str]().union(*names.values())
    for target, present in names.items():
        missing = sorted(all_names - present)
        if missing:
            more = f" and {len(missing) - _MAX_SHOWN} more" if len(missing) > _MAX_SHOWN else ""
            shown = ", ".join(missing[:_MAX_SHOWN])
            yield _finding(
                "unequal-kernels",
                f"{target} lacks {len(missing)} of {len(all_names)} kernels: {shown}{more}",
                hint="compile all sources for the same targets",
            )


def _finding(code: str, found: str, *, hint: str) -> Finding:
    return Finding(code=code, subject="", found=found, expected="", hint=hint)


def _unread_files(inventory: Inventory) -> Iterator[Finding]:
    for file in inventory.files:
        if file.problem is not None and not file.units:
            found = f"{file.path}: {file.problem}"
            yield _finding("unreadable-file", found, hint="replace the file, or leave it out")


def _over_budget(inventory: Inventory, budget: int | None) -> Iterator[Finding]:
    if budget is not None and inventory.size > budget:
        yield _finding(
            "over-budget",
            f"{inventory.path} has {size_text(inventory.size)} ({inventory.size} bytes), "
            f"more than its budget of {size_text(budget)}",
            hint="archsplit advise finds a shorter list of targets",
        )


def _over_target_limit(
    rows: Iterable[InventoryRow], limits: Iterable[tuple[str, int]]
) -> Iterator[Finding]:
    weights = _weights(rows)
    for pattern, limit in limits:
        for target in matching_names(weights, pattern):
            if weights[target] > limit:
                size = size_text(weights[target])
                yield _finding(
                    "over-target-limit",
                    f"{target} has {size} ({weights[target]} bytes), "
                    f"more than its {size_text(limit)}",
                    hint="archsplit diff with an older release shows the kernels that grew",
                )


def _forbidden_targets(rows: Iterable[InventoryRow], patterns: Iterable[str]) -> Iterator[Finding]:
    weights = _weights(rows)
    for pattern in patterns:
        for target in matching_names(weights, pattern):
            yield _finding(
                "forbidden-target",
                f"{target} is forbidden ({pattern}), and has {size_text(weights[target])}",
                hint=f"build without {target}, or archsplit slim --drop {target}",
            )


def _missing_targets(inventory: Inventory, patterns: Iterable[str]) -> Iterator[Finding]:
    targets = {
        image.target
        for unit in inventory.units()
        for image in unit.images
        if image.target is not None and _can_run(unit, image)
    }
    names = [str(target) for target in sorted(targets)]
    for pattern in patterns:
        if not matching_names(names, pattern):
            yield _finding(
                "missing-target",
                f"{pattern} is required; found {', '.join(names) or 'no device code'}",
                hint="add it to the targets of the build, or of archsplit slim",
            )


def _can_run(unit: Unit, image: Image) -> bool:
    # The driver links the input of a device link where the linked code has nothing for a GPU; in
    # an object, such input runs nowhere.
    is_input = unit.place is Place.RELOCATABLE and unit.is_device_linked
    return unit.place is Place.EXECUTABLE or (is_input and is_code(image))


def matching_names(names: Iterable[str], pattern: str) -> list[str]:
    """Return the names that match a shell's pattern, in their order."""
    return [name for name in names if fnmatchcase(name, pattern)]


def _weights(rows: Iterable[InventoryRow]) -> Counter[str]:
    """Return the weight of each target, in the rows' order."""
    weights: Counter[str] = Counter()
    for row in rows:
        if row.target is not None:
            weights[row.target] += row.weight
    return weights
