"""An inventory on a terminal: tables with bars."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.bar import Bar
from rich.table import Table
from rich.text import Text

from archsplit.arch.compat import KNOWN_CAPABILITIES
from archsplit.devicecode.model import Place
from archsplit.devicecode.names import demangler, readable_name
from archsplit.devicecode.select import Coverage
from archsplit.inspect.breakdown import breakdown, headline, rest_of, share_text
from archsplit.inspect.colours import DEAD, USABLE
from archsplit.system.units import size_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rich.console import RenderableType

    from archsplit.devicecode.devices import Device
    from archsplit.devicecode.growth import Growth, SizeChange
    from archsplit.devicecode.inventory import Inventory, KernelRow

SERVICE_WORDS = {
    Coverage.NATIVE: "native",
    Coverage.OLDER_MINOR: "older minor",
    Coverage.PTX: "PTX",
    Coverage.NONE: "not at all",
}

_BAR_WIDTH = 24
_MOST = 20


def inventory_text(inventory: Inventory, devices: Iterable[Device]) -> Iterator[RenderableType]:
    """What ``archsplit inspect`` prints."""
    yield Text(inventory.path, style="bold", overflow="fold")
    yield headline(inventory)
    rows = inventory.rows()
    if rows:
        yield from ("", _targets(inventory))
        if sum(bool(file.units) for file in inventory.files) > 1:
            yield from ("", _files(inventory))
        yield ""
        if any(row.place is Place.EXECUTABLE for row in rows):
            yield from _devices(tuple(devices))
        else:
            yield "nothing in it is registered at run time: what runs where, its user decides"
    kernels = inventory.kernels()
    if kernels:
        yield from ("", *_kernels(kernels))


def growth_text(growth: Growth) -> Iterator[RenderableType]:
    """What ``archsplit diff`` prints."""
    yield _changes(growth.targets, "download" if growth.in_download else "in files")
    if growth.kernels:
        yield from ("", _changes(growth.kernels[:_MOST], "machine code"))
        yield from _more(len(growth.kernels), "kernels that changed")


def _targets(inventory: Inventory) -> Table:
    """A bar for each target, and one for all else."""
    parts = breakdown(inventory.rows())
    lines = (*parts, rest_of(inventory.size, parts))
    longest = max(part.weight for part in lines)
    table = _table("target", "", "download" if inventory.is_wheel else "in files", "share")
    table.add_column("in files" if inventory.is_wheel else "", justify="right")
    table.add_column("images", justify="right")
    table.add_column("packed")
    table.add_column("")
    for part in lines:
        table.add_row(
            part.label,
            Bar(longest, 0, part.weight, width=_BAR_WIDTH, color=part.colour),
            size_text(part.weight),
            share_text(part.weight, inventory.size),
            size_text(part.file_bytes) if part.count and inventory.is_wheel else "",
            str(part.count or ""),
            ", ".join(part.compressions),
            " ".join(filter(None, (part.kind, part.note))),
        )
    return table


def _files(inventory: Inventory) -> Table:
    """A bar for each file with device code: how much of it that is."""
    table = _table("file", "", "size", "device code", "containers")
    holders = [file for file in inventory.files if file.units]
    longest = max(file.weight for file in holders)
    for file in sorted(holders, key=lambda file: (-file.weight, file.path)):
        code = sum(row.weight for row in file.rows())
        table.add_row(
            Text(file.path, overflow="fold"),
            Bar(longest, 0, code, width=_BAR_WIDTH, color=USABLE),
            size_text(file.weight),
            share_text(code, file.weight),
            str(file.containers),
        )
    return table


def _devices(devices: tuple[Device, ...]) -> Iterator[RenderableType]:
    """A bar for each GPU: what it can use, out of all that is registered at run time."""
    served = [device for device in devices if device.targets]
    table = _table("GPU", "", "can use", "share", "dead weight")
    table.add_column("containers")
    table.add_column("takes")
    for device in served:
        whole = device.usable.cost + device.dead.cost
        table.add_row(
            f"{device.capability} {product_text(device)}",
            Bar(whole, 0, device.usable.cost, width=_BAR_WIDTH, color=USABLE, bgcolor=DEAD),
            size_text(device.usable.cost),
            share_text(device.usable.cost, whole),
            size_text(device.dead.cost),
            service_text(device),
            " ".join(map(str, device.targets)),
        )
    if served:
        yield table
    if len(served) < len(devices):
        yield unserved_text(devices)


def unserved_text(devices: Iterable[Device]) -> str:
    """On which GPUs nothing runs; empty where there are none."""
    names = ", ".join(str(device.capability) for device in devices if not device.targets)
    return f"nothing in it runs on: {names}" if names else ""


def service_text(device: Device) -> str:
    """``65 native``; how many containers serve a GPU how well."""
    return ", ".join(
        f"{count} {SERVICE_WORDS[service]}" for service, count in device.containers.items() if count
    )


def product_text(device: Device) -> str:
    """What people call it: ``H100, H200``; empty for an unknown one."""
    known = KNOWN_CAPABILITIES.get(device.capability)
    return "" if known is None else known.display


def _kernels(kernels: tuple[KernelRow, ...]) -> Iterator[RenderableType]:
    """Per target: how many kernels, and the largest ones."""
    targets: dict[str, list[KernelRow]] = {}
    for row in kernels:
        targets.setdefault(row.target, []).append(row)
    for target, rows in targets.items():
        table = _table(f"{target}: {len(rows)} kernels", "machine code", "copies")
        for row in sorted(rows, key=lambda row: (-row.code_bytes, row.name))[:_MOST]:
            table.add_row(_one_line(row.name), size_text(row.code_bytes), str(row.count))
        yield table
        yield from _more(len(rows), "kernels")


def _more(number: int, what: str) -> Iterator[RenderableType]:
    if number > _MOST:
        yield Text(f"… and {number - _MOST} more {what}; --json has them all", style="dim")


def _one_line(name: str) -> Text:
    return Text(readable_name(name, demangler()), overflow="ellipsis", no_wrap=True)


def _changes(changes: tuple[SizeChange, ...], what: str) -> Table:
    table = _table("target", f"{what}, old", "new", "growth")
    table.add_column("kernel" if any(change.name for change in changes) else "")
    for change in changes:
        sign = "+" if change.growth > 0 else ""
        table.add_row(
            change.target,
            size_text(change.old),
            size_text(change.new),
            f"{sign}{size_text(change.growth)}",
            _one_line(change.name or ""),
        )
    return table


def _table(first: str, *others: str) -> Table:
    """A table without lines: names in the first column, numbers in the others."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(first)
    for other in others:
        table.add_column(other, justify="right")
    return table
