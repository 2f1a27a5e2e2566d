"""Numbers that are computed from inventories: growth, and sizes against limits.

In go inventories; out come records for reports. `compare_inventories` weighs two builds, and
`limit_findings` checks one against the limits that a project sets for its CI.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from archsplit.devicecode.kernels import stable_name, template_name
from archsplit.devicecode.model import Place
from archsplit.devicecode.select import is_code
from archsplit.system.finding import Finding
from archsplit.system.units import size_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from archsplit.devicecode.model import Image, Inventory, InventoryRow, Unit


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeChange:
    """A size before and after, in bytes; 0 if there was or is none.

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
    before, after = (target_sizes(one, in_download=in_download) for one in (old, new))
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
    removed = Counter(change.target for change in changes if not change.new)
    added = Counter(change.target for change in changes if not change.old)
    renamed = (removed & added).total()
    notes = [f"{len(changes) - renamed} kernels"] if len(changes) > 1 + renamed else []
    notes += [f"{renamed} renamed"] if renamed else []
    targets = sorted({change.target for change in changes})
    return SizeChange(
        # A list of ten targets would be wider than a terminal.
        target=f"{len(targets)} targets" if targets[2:] else " ".join(targets),
        name=f"{name} ({', '.join(notes)})" if notes else name,
        old=sum(change.old for change in changes),
        new=sum(change.new for change in changes),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeLimits:
    """Limits of a release; patterns of targets are shell patterns: ``compute_*``.

    Attributes:
        budget: bytes of the whole: of the download for a wheel, else of the files; None for none.
        max_targets: patterns, each with the limit in bytes for each matching target.
        forbid: targets that must have no image.
        require: targets that must have an image in a container registered at run time, or in the
            input of a device link, which the driver links.
    """

    budget: int | None = None
    max_targets: tuple[tuple[str, int], ...] = ()
    forbid: tuple[str, ...] = ()
    require: tuple[str, ...] = ()


def limit_findings(inventory: Inventory, limits: SizeLimits) -> tuple[Finding, ...]:
    """Return a finding for each limit that an inventory exceeds; none if all hold.

    If a limit is set, an unreadable file is a finding too.
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
    # The driver links the input of a device link if the linked code has nothing for a GPU; in an
    # object, such input runs nowhere.
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
