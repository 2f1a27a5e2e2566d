"""An inventory on a terminal: tables with bars.

Advice on a terminal, and as JSON (schema 1: keys are only ever added).
"""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

from rich.bar import Bar
from rich.table import Table
from rich.text import Text

from archsplit.arch.compat import GPU_BY_CAPABILITY, capability_text
from archsplit.arch.target import CodeKind
from archsplit.devicecode.kernels import find_demangler, readable_name
from archsplit.devicecode.model import Place
from archsplit.devicecode.select import Coverage
from archsplit.inspect.breakdown import (
    DEAD_COLOR,
    USABLE_COLOR,
    breakdown,
    remaining_part,
    share_text,
    summarize,
)
from archsplit.system.units import size_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rich.console import RenderableType

    from archsplit.devicecode.model import Inventory, KernelRow
    from archsplit.devicecode.stats import DeviceUsage, Growth, SizeChange
    from archsplit.inspect.advise import Advice, TargetListEffect
    from archsplit.inspect.target_search import Proposal

SERVICE_WORDS = {
    Coverage.NATIVE: "native",
    Coverage.OLDER_MINOR: "older minor",
    Coverage.PTX: "PTX",
    Coverage.NONE: "not at all",
}

_BAR_WIDTH = 24
_MOST = 20


def inventory_text(
    inventory: Inventory, devices: Iterable[DeviceUsage]
) -> Iterator[RenderableType]:
    """What ``archsplit inspect`` prints."""
    yield Text(inventory.path, style="bold", overflow="fold")
    yield summarize(inventory)
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
    lines = (*parts, remaining_part(inventory.size, parts))
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
            Bar(longest, 0, code, width=_BAR_WIDTH, color=USABLE_COLOR),
            size_text(file.weight),
            share_text(code, file.weight),
            str(file.containers),
        )
    return table


def _devices(devices: tuple[DeviceUsage, ...]) -> Iterator[RenderableType]:
    """A bar for each GPU: what it can use, out of all that is registered at run time."""
    served = [device for device in devices if device.targets]
    table = _table("GPU", "", "can use", "share", "dead weight")
    table.add_column("containers")
    table.add_column("takes")
    for device in served:
        whole = device.usable.cost + device.dead.cost
        table.add_row(
            f"{device.capability} {product_text(device)}",
            Bar(
                whole,
                0,
                device.usable.cost,
                width=_BAR_WIDTH,
                color=USABLE_COLOR,
                bgcolor=DEAD_COLOR,
            ),
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


def unserved_text(devices: Iterable[DeviceUsage]) -> str:
    """On which GPUs nothing runs; empty where there are none."""
    names = ", ".join(str(device.capability) for device in devices if not device.targets)
    return f"nothing in it runs on: {names}" if names else ""


def service_text(device: DeviceUsage) -> str:
    """``65 native``; how many containers serve a GPU how well."""
    return ", ".join(
        f"{count} {SERVICE_WORDS[service]}" for service, count in device.containers.items() if count
    )


def product_text(device: DeviceUsage) -> str:
    """What people call it: ``H100, H200``; empty for an unknown one."""
    known = GPU_BY_CAPABILITY.get(device.capability)
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
    return Text(readable_name(name, find_demangler()), overflow="ellipsis", no_wrap=True)


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


ADVICE_SCHEMA = 1
_STEP = 0.01
"""Lists that are better by less are shown on request."""

_ADVICE_WORDS = {
    Coverage.NATIVE: "native",
    Coverage.OLDER_MINOR: "an older minor's code",
    Coverage.PTX: "PTX",
    Coverage.NONE: "nothing",
}
_STRANGERS = 5


def advice_text(advice: Advice, *, subject: str, everything: bool) -> Iterator[RenderableType]:
    """What ``archsplit advise`` prints.

    Args:
        subject: as it was named, for commands.
        everything: show all lists that nothing beats.
    """
    yield _headline(advice)
    yield from _strangers(advice)
    yield _lists(advice, everything=everything)
    if not advice.proposals.exact:
        yield "there are too many targets to weigh all lists: a better one may exist"
    yield _fates(advice)
    if advice.too_big:
        yield (
            f"plugins would have more than {size_text(advice.wish.max_wheel or 0)} for "
            + ", ".join(str(fate.capability) for fate in advice.too_big)
        )
    if advice.best is not None:
        if not any(target.kind is CodeKind.PTX for target in advice.best.targets):
            yield "there is no PTX in it: GPUs that are newer than all of it find nothing"
        yield f"\n# {_summary(advice, advice.best)}\n{advice.snippet()}"
    for arguments in (advice.split_arguments(subject), advice.slim_arguments(subject)):
        if arguments:
            yield shlex.join(arguments)


def advice_json(advice: Advice, *, subject: str) -> str:
    """What ``archsplit advise --json`` prints."""
    offer, best = advice.offer, advice.best
    content = {
        "schema": ADVICE_SCHEMA,
        "subject": subject,
        "unit": "wheel_bytes" if offer.in_download else "file_bytes",
        "size": offer.size,
        "fixed": offer.fixed,
        "targets": {str(target): size for target, size in offer.sizes.items()},
        "budget": advice.wish.budget,
        "max_wheel": advice.wish.max_wheel,
        "exact": advice.proposals.exact,
        "everything": _proposal(advice.proposals.everything),
        "front": [_proposal(one) for one in advice.proposals.front],
        "best": None if best is None else _proposal(best),
        "gpus": [_fate(advice, fate) for fate in advice.fates],
        "unknown": [
            {"gpu": one.gpu, "share": one.share, "line": one.line} for one in advice.users.strangers
        ],
        "policy": advice.snippet(),
        "slim": list(advice.slim_arguments(subject)),
        "split": list(advice.split_arguments(subject)),
    }
    return json.dumps(content, indent=2)


def _proposal(one: Proposal) -> dict[str, Any]:
    return {
        "targets": [str(target) for target in one.targets],
        "size": one.size,
        "machine_code": one.machine_code,
        "served": one.served,
    }


def _fate(advice: Advice, fate: TargetListEffect) -> dict[str, Any]:
    return {
        "capability": str(fate.capability),
        "share": fate.share,
        "names": list(advice.users.gpus.get(fate.capability, ())),
        "before": fate.before.value,
        "after": None if advice.best is None else fate.after.value,
        "plugin": fate.plugin,
        "gaps": fate.gaps,
    }


def _headline(advice: Advice) -> str:
    offer = advice.offer
    what = "to download" if offer.in_download else "in all"
    kind = "the core" if offer.is_release else "no device code that could be left out"
    sizes = size_text(offer.size), size_text(offer.fixed)
    return f"{offer.name}: {sizes[0]} {what}, of which {sizes[1]} are {kind}"


def _strangers(advice: Advice) -> Iterator[str]:
    strangers = sorted(advice.users.strangers, key=lambda one: -one.share)
    if strangers:
        shown = ", ".join(
            f"{one.gpu} (line {one.line}, {_percent(one.share)})" for one in strangers[:_STRANGERS]
        )
        more = len(strangers) - _STRANGERS
        yield (
            f"{_percent(advice.users.unknown)} of the table are GPUs whose capability isn't known;"
            f" they count nowhere: {shown}{f' and {more} more' if more > 0 else ''}"
        )


def _lists(advice: Advice, *, everything: bool) -> Table:
    table = Table(title="lists of targets that no smaller one equals")
    table.add_column("targets", overflow="fold")
    table.add_column("size", justify="right")
    table.add_column("machine code", justify="right")
    table.add_column("and PTX", justify="right")
    table.add_column("")
    shown: list[Proposal] = []
    for one in advice.proposals.front:
        if everything or one == advice.best or _is_step(one, shown):
            shown.append(one)
            _add(table, one, "<- proposed" if one == advice.best else _fit(advice, one))
    _add(table, advice.proposals.everything, "everything")
    return table


def _is_step(one: Proposal, shown: list[Proposal]) -> bool:
    """Whether it is better by enough than each one that was shown."""
    return all(
        one.machine_code >= other.machine_code + _STEP or one.served >= other.served + _STEP
        for other in shown
    )


def _fit(advice: Advice, one: Proposal) -> str:
    budget = advice.wish.budget
    return "" if budget is None or one.size <= budget else "over the budget"


def _add(table: Table, one: Proposal, note: str) -> None:
    table.add_row(
        " ".join(map(str, one.targets)),
        size_text(one.size),
        _percent(one.machine_code),
        _percent(one.served),
        note,
    )


def _fates(advice: Advice) -> Table:
    table = Table(title="what each GPU runs")
    table.add_column("GPU", overflow="fold")
    table.add_column("users", justify="right")
    table.add_column("of everything")
    table.add_column("of the proposal" if advice.best else "")
    table.add_column("its own plugin", justify="right")
    for fate in advice.fates:
        before = _ADVICE_WORDS[fate.before]
        if fate.gaps and fate.before is not Coverage.NONE:
            before += f"; nothing in {fate.gaps} containers"
        after = _ADVICE_WORDS[fate.after] if advice.best else ""
        users, plugin = _percent(fate.share), size_text(fate.plugin)
        table.add_row(capability_text(fate.capability), users, before, after, plugin)
    return table


def _summary(advice: Advice, best: Proposal) -> str:
    sizes = f"{size_text(best.size)} of {size_text(advice.offer.size)}"
    compiling, without = best.served - best.machine_code, 1 - best.served
    return (
        f"{sizes}; {_percent(best.machine_code)} of the users run machine code,"
        f" {_percent(compiling)} PTX, {_percent(without)} nothing"
    )


def _percent(share: float) -> str:
    return f"{100 * abs(share):.1f} %"
