"""What a release may weigh and must hold, for a CI that says no before users do."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from archsplit.devicecode.model import Place
from archsplit.system.units import size_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from archsplit.devicecode.inventory import File, Inventory
    from archsplit.devicecode.rows import InventoryRow

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


def exceeded_limits(inventory: Inventory, limits: SizeLimits) -> tuple[str, ...]:
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
        for target in fitting(weights, pattern):
            if weights[target] > most:
                found, limit = size_text(weights[target]), size_text(most)
                yield f"{target} has {found} ({weights[target]} bytes), more than its {limit}"


def _forbidden(rows: Iterable[InventoryRow], patterns: Iterable[str]) -> Iterator[str]:
    weights = _weights(rows)
    for pattern in patterns:
        for target in fitting(weights, pattern):
            yield f"{target} is forbidden ({pattern}), and has {size_text(weights[target])}"


def _missing(rows: Iterable[InventoryRow], patterns: Iterable[str]) -> Iterator[str]:
    executable = _weights(row for row in rows if row.place is Place.EXECUTABLE)
    for pattern in patterns:
        if not fitting(executable, pattern):
            yield f"{pattern} is required; found {', '.join(executable) or 'no device code'}"


def fitting(names: Iterable[str], pattern: str) -> list[str]:
    """The names that fit a shell's pattern, in their order."""
    return [name for name in names if fnmatchcase(name, pattern)]


def _weights(rows: Iterable[InventoryRow]) -> Counter[str]:
    """What each target costs, in the rows' order."""
    weights: Counter[str] = Counter()
    for row in rows:
        if row.target is not None:
            weights[row.target] += row.weight
    return weights
