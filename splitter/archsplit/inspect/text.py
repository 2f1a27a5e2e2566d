"""Reports of ``inspect`` and ``diff`` on a terminal, as tables with bars.

In go an inventory and the code that each GPU uses of it, or the growth between two inventories; out
come renderables for rich.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from rich.bar import Bar
from rich.text import Text

from archsplit.arch.compat import GPU_BY_CAPABILITY
from archsplit.devicecode.kernels import find_demangler, readable_name
from archsplit.devicecode.model import Place
from archsplit.devicecode.select import Coverage
from archsplit.devicecode.stats import template_changes
from archsplit.inspect.breakdown import breakdown, remaining_part, share_text, summarize
from archsplit.inspect.sizes import answer_text
from archsplit.system.terminal import BAR, Column, FittingTable, name_column, word_column
from archsplit.system.units import change_text, count_text, size_text, size_texts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from rich.console import RenderableType

    from archsplit.arch.target import Capability
    from archsplit.devicecode.model import Inventory, KernelRow
    from archsplit.devicecode.stats import Growth, SizeChange
    from archsplit.inspect.breakdown import BreakdownPart
    from archsplit.inspect.sizes import DeviceUsage

_USED, _UNUSED = "green", "bright_black"
# The terminal's own 16 colors: its user has chosen them to be seen on its background.
_ANSI = ("cyan", "magenta", "yellow", "blue", "green", "red")
_MAX_SHOWN = 20
_NOTABLE = 0.01
"""Least share of all bytes for which files of another kind are named."""
_MAX_NAME = 240
"""Letters of a kernel's name."""


def inventory_text(
    inventory: Inventory,
    devices: Iterable[DeviceUsage],
    *,
    is_asked: bool = False,
    required: Capability | None = None,
    names: Mapping[Capability, str] | None = None,
    targets: bool = False,
) -> Iterator[RenderableType]:
    """Yield the output of ``archsplit inspect``.

    Args:
        inventory: to show.
        devices: the GPUs to judge it for.
        is_asked: True if the user named these GPUs; else a table has them all.
        required: the GPU that must have code, which is answered first if no other is asked for.
        names: the GPUs as the user wrote them.
        targets: True to add the tables of targets and files.
    """
    yield Text(inventory.path, style="bold", overflow="fold")
    yield Text(summarize(inventory))
    rows, usages = inventory.rows(), tuple(devices)
    if usages and _is_run(inventory, usages):
        # Without a question the answer is about the required GPU, or the one that uses most.
        shown = usages if is_asked else (max(usages, key=lambda one: _rank(one, required)),)
        for one in shown:
            answer = answer_text(one, (names or {}).get(one.capability, ""))
            yield from ("", Text(answer))
            if one.used:
                yield from (_three_sizes(inventory, one), Text(_parts(inventory, one)))
        if len(usages) > 1:
            yield from ("", *_devices(usages))
        yield from next_commands(inventory, shown)
    elif rows and usages:
        yield "nothing in it is registered at run time: it is input for a linker or a program"
    if rows and targets:
        yield from ("", _targets(inventory))
        # A table of one file would repeat the headline.
        if sum(bool(file.units) for file in inventory.files) > 1:
            yield from ("", _files(inventory))
    for line in filter(
        None, (shares_text(inventory), zstd_text(inventory), other_files_text(inventory))
    ):
        yield from ("", Text(line))
    kernels = inventory.kernels()
    if kernels:
        yield from ("", *_kernels(kernels))


def _rank(usage: DeviceUsage, required: Capability | None) -> tuple[bool, int, bool, int]:
    """Return a rank by the code that was compiled for the GPU, cards first."""
    gpu, count = GPU_BY_CAPABILITY.get(usage.capability), usage.containers[Coverage.NATIVE]
    return usage.capability == required, count, not (gpu and gpu.embedded), usage.used


def next_commands(inventory: Inventory, usages: Iterable[DeviceUsage]) -> Iterator[str]:
    """Yield the commands that leave out what the GPUs never use."""
    gpus = [one for one in usages if one.used and one.unused]
    if not gpus or Path(inventory.path).is_dir():
        return
    # An installed package has a name and no path.
    path = shlex.quote(inventory.path) if Path(inventory.path).is_file() else "--site-packages DIR"
    names = ",".join(str(one.capability) for one in gpus)
    yield f"next: archsplit slim {path} --device {names}"
    if inventory.path.endswith(".whl") and any(one.pack is not None for one in gpus):
        yield f"next: archsplit split {path} --out split"


def _three_sizes(inventory: Inventory, usage: DeviceUsage) -> FittingTable:
    """Return bars on one scale: today's bytes, slimmed, and core with pack."""
    table = FittingTable(name_column(""), BAR, Column(heading=""), word_column("", rank=2))
    what = "download" if inventory.is_wheel else "today"
    newer = f"{size_text(usage.newer_ptx)} of it is PTX for newer GPUs" if usage.newer_ptx else ""
    rows = [(what, inventory.size, ""), ("slim", usage.slimmed, newer)]
    if usage.core is not None and usage.pack is not None:
        core, pack = size_texts((usage.core, usage.pack))
        note = f"core {core} + pack {pack}, estimated"
        rows.append(("split", usage.core + usage.pack, note))
    for name, size, note in rows:
        bar = Bar(inventory.size, 0, size, color=_USED, bgcolor=_UNUSED)
        table.add_row(name, bar, size_text(size), note)
    return table


def _parts(inventory: Inventory, usage: DeviceUsage) -> str:
    parts = {
        "used": usage.used,
        "for other GPUs": usage.unused,
        "link code": usage.link_code,
        "not device code": usage.other,
        # A GPU takes each image once.
        "copies in other packs": inventory.size - usage.whole,
    }
    texts = zip(parts, size_texts(parts.values()), strict=True)
    words = " + ".join(f"{text} {name}" for name, text in texts if parts[name])
    return f"{words} = {size_text(inventory.size)}"


def shares_text(inventory: Inventory) -> str:
    """Return the line about frames of several images; "" for nothing."""
    images = [image for unit in inventory.units() for image in unit.images if image.is_share]
    if not images:
        return ""
    size = size_text(sum(image.weight for image in images))
    return (
        f"{count_text(len(images), 'image')} ({size}) in frames of several images (kind 256): the"
        " bytes of each are its share by uncompressed size; split leaves such frames"
    )


def zstd_text(inventory: Inventory) -> str:
    """Return the line about the compression that the vendor left; "" for nothing."""
    saves = sum(file.zstd_saves for file in inventory.files)
    whole = size_text(sum(row.file_bytes for row in inventory.rows()))
    if not saves:
        return ""
    return (
        f"compression left on the table: zstd level 9 would save {size_text(saves)} of {whole} on"
        " disk (estimated from a sample)"
    )


def other_files_text(inventory: Inventory) -> str:
    """Return the line about headers, static libraries and tests; "" for less than a hundredth."""
    files = inventory.other_files
    # An empty folder has neither.
    if sum(one.size for one in files) <= inventory.size * _NOTABLE:
        return ""
    words = ", ".join(f"{one.kind} {size_text(one.size)}" for one in files)
    return (
        f"not device code in libraries: {words}. Programs that compile nothing seldom read these;"
        " slim leaves them"
    )


def _is_run(inventory: Inventory, usages: Iterable[DeviceUsage]) -> bool:
    """Return True if a GPU may run it as it is: an object or static library is linked first."""
    places = {row.place for row in inventory.rows()}
    return bool(places - {Place.RELOCATABLE}) or any(usage.used for usage in usages)


def growth_text(growth: Growth) -> Iterator[RenderableType]:
    """Yield the output of ``archsplit diff``: the total first."""
    old, new = sum(one.old for one in growth.targets), sum(one.new for one in growth.targets)
    yield f"device code: {size_text(old)} before, {size_text(new)} after ({change_text(new - old)})"
    yield _changes(growth.targets, "download" if growth.in_download else "in files", summed=True)
    if growth.kernels:
        templates = template_changes(growth.kernels)
        yield from ("", _changes(templates[:_MAX_SHOWN], "machine code"))
        yield from _more(len(templates), "templates of kernels that changed")


def _targets(inventory: Inventory) -> FittingTable:
    """Return a table with a bar for each target, and the sums."""
    parts = breakdown(inventory.rows())
    lines = (*parts, remaining_part(inventory.size, parts))
    longest = max(part.weight for part in lines)
    table = FittingTable(
        name_column("target"),
        BAR,
        Column(heading="download" if inventory.is_wheel else "in files"),
        Column(heading="share"),
        # Outside of wheels both columns would be equal.
        Column(heading="in files" if inventory.is_wheel else "", rank=2),
        Column(heading="images", rank=3),
        word_column("packed", rank=4),
        word_column(""),
    )
    for part in lines:
        table.add_row(
            part.label,
            # The bar is relative to the longest, so that small parts stay visible.
            Bar(longest, 0, part.weight, color=_ansi_color(part)),
            size_text(part.weight),
            share_text(part.weight, inventory.size),
            size_text(part.file_bytes) if part.count and inventory.is_wheel else "",
            str(part.count or ""),
            ", ".join(part.compressions),
            " ".join(filter(None, (part.kind, part.note))),
        )
    table.add_row(
        "together",
        "",
        size_text(inventory.size),
        share_text(inventory.size, inventory.size),
        size_text(sum(part.file_bytes for part in parts)) if inventory.is_wheel else "",
        str(sum(part.count for part in parts)),
        "",
        "",
    )
    return table


def _ansi_color(part: BreakdownPart) -> str:
    """Return a color of the terminal, one for each generation; gray for other bytes."""
    digits = "".join(filter(str.isdigit, part.label))
    return _ANSI[int(digits[:-1]) % len(_ANSI)] if len(digits) > 1 else "white"


def _files(inventory: Inventory) -> FittingTable:
    """Return a table with a bar for each file: its part that is device code."""
    table = FittingTable(
        name_column("file"),
        BAR,
        Column(heading="size"),
        Column(heading="device code"),
        Column(heading="containers", rank=2),
    )
    holders = [file for file in inventory.files if file.units]
    longest = max(file.weight for file in holders)
    # The path makes the order the same for files of one size.
    for file in sorted(holders, key=lambda file: (-file.weight, file.path)):
        code = sum(row.weight for row in file.rows())
        table.add_row(
            file.path,
            Bar(longest, 0, code, color=_USED),
            size_text(file.weight),
            share_text(code, file.weight),
            str(file.containers),
        )
    return table


def _devices(usages: tuple[DeviceUsage, ...]) -> Iterator[RenderableType]:
    """Yield a table with a bar for each GPU: the part of device code that it can use."""
    table = FittingTable(
        name_column("GPU"),
        BAR,
        Column(heading="uses"),
        Column(heading="share"),
        Column(heading="for others"),
        word_column("containers", rank=2),
        word_column("takes", rank=3),
    )
    served = [usage for usage in usages if usage.used]
    for usage in served:
        table.add_row(
            f"{usage.capability} {product_text(usage)}",
            Bar(usage.device_code, 0, usage.used, color=_USED, bgcolor=_UNUSED),
            size_text(usage.used),
            share_text(usage.used, usage.device_code),
            size_text(usage.unused),
            coverage_text(usage),
            " ".join(map(str, usage.targets)),
        )
    if served:
        yield table
    # GPUs without code would fill the table with empty rows.
    if unserved := unserved_text(usages):
        yield unserved


def unserved_text(usages: Iterable[DeviceUsage]) -> str:
    """Return a sentence on the GPUs without code; empty if there are none."""
    names = ", ".join(str(one.capability) for one in usages if not one.used)
    return f"nothing in it runs on: {names}" if names else ""


def coverage_text(usage: DeviceUsage) -> str:
    """Return the number of containers by coverage: ``65 native``."""
    return ", ".join(
        f"{count} {coverage.words}" for coverage, count in usage.containers.items() if count
    )


def product_text(usage: DeviceUsage) -> str:
    """Return the product names of a capability: ``H100, H200``; empty for an unknown one."""
    known = GPU_BY_CAPABILITY.get(usage.capability)
    return "" if known is None else known.display


def _kernels(kernels: tuple[KernelRow, ...]) -> Iterator[RenderableType]:
    """Yield for each target the number of kernels, and the largest ones."""
    targets: dict[str, list[KernelRow]] = {}
    for row in kernels:
        targets.setdefault(row.target, []).append(row)
    for target, rows in targets.items():
        table = FittingTable(
            name_column(f"{target}: {count_text(len(rows), 'kernel')}"),
            Column(heading="machine code"),
            Column(heading="copies", rank=1),
        )
        # A library can have tens of thousands of kernels; the largest explain its size.
        for row in sorted(rows, key=lambda row: (-row.code_bytes, row.name))[:_MAX_SHOWN]:
            table.add_row(_one_line(row.name), size_text(row.code_bytes), str(row.count))
        yield table
        yield from _more(len(rows), "kernels")


def _more(number: int, what: str) -> Iterator[RenderableType]:
    if number > _MAX_SHOWN:
        yield Text(f"… and {number - _MAX_SHOWN} more {what}; --json has them all", style="dim")


def _one_line(name: str) -> Text:
    """Return a kernel's name; names of templates can have thousands of characters."""
    text = Text(readable_name(name, find_demangler()))
    text.truncate(_MAX_NAME, overflow="ellipsis")
    return text


def _changes(changes: tuple[SizeChange, ...], what: str, *, summed: bool = False) -> FittingTable:
    table = FittingTable(
        word_column("target"),
        Column(heading=f"{what}, old"),
        Column(heading="new"),
        Column(heading="growth"),
        name_column("kernel" if any(change.name for change in changes) else ""),
    )
    for change in changes:
        sizes = size_text(change.old), size_text(change.new), change_text(change.growth)
        table.add_row(change.target, *sizes, _one_line(change.name or ""))
    if summed and len(changes) > 1:
        old, new = sum(one.old for one in changes), sum(one.new for one in changes)
        table.add_row("together", size_text(old), size_text(new), change_text(new - old), "")
    return table
