"""What grew from one build to the next, per target and per kernel."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from archsplit.devicecode.names import stable_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from archsplit.devicecode.inventory import Inventory


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


def growth_between(old: Inventory, new: Inventory) -> Growth:
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
