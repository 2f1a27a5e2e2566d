"""Reports as Markdown tables, for the summaries of CI jobs and for pull requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from archsplit.inspect.breakdown import breakdown, remaining_part, share_text, summarize
from archsplit.inspect.text import coverage_text, product_text
from archsplit.system.units import change_text, size_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from archsplit.devicecode.model import Inventory
    from archsplit.devicecode.stats import DeviceUsage, Growth
    from archsplit.inspect.history import ReleaseSize


def inventory_markdown(inventory: Inventory, devices: Iterable[DeviceUsage]) -> str:
    """Return a section for ``archsplit inspect --summary``."""
    parts = breakdown(inventory.rows())
    rows = [
        (part.label, " ".join(filter(None, (part.kind, part.note))), size_text(part.weight))
        for part in (*parts, remaining_part(inventory.size, parts))
    ]
    lines = [f"### {_escape(inventory.name)}", "", summarize(inventory), ""]
    lines += _table(("target", "kind", "#size"), rows)
    served = [
        (
            f"{device.capability} {product_text(device)}",
            size_text(device.usable.cost),
            share_text(device.usable.cost, device.whole),
            coverage_text(device),
        )
        for device in devices
        if device.targets
    ]
    if served:
        lines += ["", *_table(("GPU", "#can use", "#share", "containers"), served)]
    return "\n".join(lines) + "\n"


def growth_markdown(old: Inventory, new: Inventory, growth: Growth) -> str:
    """Return a section for ``archsplit diff --summary``."""
    rows = [
        (change.target, size_text(change.old), size_text(change.new), change_text(change.growth))
        for change in growth.targets
    ]
    whole = (size_text(old.size), size_text(new.size), change_text(new.size - old.size))
    lines = [f"### {_escape(old.name)} → {_escape(new.name)}", ""]
    lines += _table(("target", "#before", "#after", "#growth"), [*rows, ("**whole**", *whole)])
    return "\n".join(lines) + "\n"


def history_markdown(releases: Sequence[ReleaseSize]) -> str:
    """Return a section for ``archsplit history --summary``."""
    sizes = [0, *(release.size for release in releases)]
    rows = [
        (
            release.version,
            size_text(release.size),
            size_text(release.device_code),
            change_text(release.size - before) if before else "",
        )
        for release, before in zip(releases, sizes, strict=False)
    ]
    lines = ["### Size of releases", ""]
    lines += _table(("release", "#size", "#device code", "#growth"), rows)
    return "\n".join(lines) + "\n"


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """Return the lines of a table; a heading that begins with ``#`` stands above numbers."""
    names = tuple(heads)
    lines = ["| " + " | ".join(name.lstrip("#") for name in names) + " |"]
    lines.append("|" + "|".join("---:" if name.startswith("#") else "---" for name in names) + "|")
    return [*lines, *("| " + " | ".join(map(_escape, row)) + " |" for row in rows)]


def _escape(text: str) -> str:
    """Return a text that can't become markup: names come from other people's wheels."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|").replace("`", "\\`")
