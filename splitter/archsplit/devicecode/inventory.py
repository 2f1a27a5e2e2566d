"""What was inspected: files, with what device code is in them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from archsplit.devicecode.model import Place
from archsplit.devicecode.rows import inventory_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archsplit.devicecode.model import Unit
    from archsplit.devicecode.rows import InventoryRow


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRow:
    """All copies of one kernel for one target; a template may be in many translation units."""

    target: str
    name: str
    count: int
    code_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A file that can hold device code.

    Attributes:
        path: the member's name in a wheel, else relative to what was inspected.
        wheel_bytes: its part of the download; None outside of wheels.
        units: in the order of the file.
        problem: why less is said about it than there may be, or None.
        kernels: empty where nobody asked for them.
    """

    path: str
    size: int
    wheel_bytes: int | None
    units: tuple[Unit, ...] = field(repr=False)
    problem: str | None = None
    kernels: tuple[KernelRow, ...] = field(default=(), repr=False)

    @property
    def weight(self) -> int:
        """What it costs: bytes of the download where one is known, else of the file."""
        return self.size if self.wheel_bytes is None else self.wheel_bytes

    @property
    def containers(self) -> int:
        """How many units its sections have; what lies outside of them isn't counted."""
        return sum(unit.place is not Place.OUTSIDE for unit in self.units)

    def rows(self) -> tuple[InventoryRow, ...]:
        """Its images, added up."""
        return inventory_rows(self.units)


def without_placeholders(files: tuple[File, ...]) -> tuple[File, ...]:
    """Leave out the empty containers of libraries that a core's table among the files lists.

    The table's containers stand for them, and are joined with what packs have of each.
    """
    listed = tuple({unit.member for file in files for unit in file.units if _is_in_table(unit)})
    return tuple(
        replace(file, units=tuple(unit for unit in file.units if unit.images or unit.fat))
        if any(name and f"/{file.path}".endswith(f"/{name}") for name in listed)
        else file
        for file in files
    )


def _is_in_table(unit: Unit) -> bool:
    return unit.fat is not None and not unit.images


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """What was found in a file, wheel, folder or installed package.

    Attributes:
        path: what was asked about.
        sha256: of the file; None for folders and packages, and where nobody asked.
        size: bytes of the file, or of all files.
        is_wheel: whether ``size`` is that of a download.
        files: those that can hold device code, whether they do or not.
    """

    path: str
    sha256: str | None
    size: int
    is_wheel: bool
    files: tuple[File, ...] = field(repr=False)

    @property
    def name(self) -> str:
        """The last part of its path: what may be shown to others."""
        return self.path.rstrip("/").rpartition("/")[2]

    def units(self) -> Iterator[Unit]:
        """The units of all files."""
        return (unit for file in self.files for unit in file.units)

    def rows(self) -> tuple[InventoryRow, ...]:
        """The images of all files, added up."""
        return inventory_rows(self.units())

    def kernels(self) -> tuple[KernelRow, ...]:
        """The kernels of all files, added up, in the order in which they come."""
        counts: Counter[tuple[str, str]] = Counter()
        sizes: Counter[tuple[str, str]] = Counter()
        for file in self.files:
            for row in file.kernels:
                counts[row.target, row.name] += row.count
                sizes[row.target, row.name] += row.code_bytes
        return tuple(
            KernelRow(target=target, name=name, count=counts[target, name], code_bytes=size)
            for (target, name), size in sizes.items()
        )
