"""Reports of ``inspect`` and ``diff`` for programs and web pages: JSON (schema 1), Markdown.

In goes what `archsplit.inspect.text` shows on a terminal; out comes text. Keys of the JSON are only
ever added. ``problem`` is present where there is one, ``kernels`` if they were requested. The
Markdown tables are for the summaries of CI jobs and for pull requests.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from archsplit.arch.compat import capability_text
from archsplit.inspect.breakdown import breakdown, remaining_part, share_text, summarize
from archsplit.inspect.text import coverage_text, product_text
from archsplit.system.units import change_text, size_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from archsplit.devicecode.model import File, Inventory, InventoryRow
    from archsplit.devicecode.stats import Growth, SizeChange
    from archsplit.inspect.history import ReleaseSize
    from archsplit.inspect.sizes import DeviceUsage

INVENTORY_SCHEMA = 1


def inventory_json(inventory: Inventory, devices: Iterable[DeviceUsage]) -> str:
    """Return the output of ``archsplit inspect --json``."""
    content = {
        "schema": INVENTORY_SCHEMA,
        "path": inventory.path,
        "sha256": inventory.sha256,
        "size": inventory.size,
        "files": [_file(file) for file in inventory.files],
        "totals": _images(inventory.rows()),
        "devices": [_device(device) for device in devices],
        "other_files": [_attributes(one, "kind", "count", "size") for one in inventory.other_files],
        "zstd_saves": sum(file.zstd_saves for file in inventory.files),
    }
    return json.dumps(content, indent=2)


def growth_json(old: Inventory, new: Inventory, growth: Growth) -> str:
    """Return the output of ``archsplit diff --json``."""
    content = {
        "schema": INVENTORY_SCHEMA,
        "old": _attributes(old, "path", "sha256", "size"),
        "new": _attributes(new, "path", "sha256", "size"),
        # Two numbers are compared in one unit: see `Growth.in_download`.
        "unit": "wheel_bytes" if growth.in_download else "file_bytes",
        "targets": [_change(change) for change in growth.targets],
        "kernels": [_change(change) for change in growth.kernels],
    }
    return json.dumps(content, indent=2)


def _file(file: File) -> dict[str, Any]:
    content: dict[str, Any] = {
        "path": file.path,
        "size": file.size,
        "wheel_bytes": file.wheel_bytes,
        "containers": file.containers,
        "images": _images(file.rows()),
    }
    # The key is present only where there is a problem, as the schema says.
    if file.problem is not None:
        content["problem"] = file.problem
    if file.kernels:
        content["kernels"] = [
            _attributes(kernel, "target", "name", "count", "code_bytes") for kernel in file.kernels
        ]
    return content


def _images(rows: Iterable[InventoryRow]) -> list[dict[str, Any]]:
    names = ("kind", "target", "section", "compression", "count", "file_bytes", "wheel_bytes")
    return [_attributes(row, *names) for row in rows]


def _attributes(record: object, *names: str) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names}


def _device(device: DeviceUsage) -> dict[str, Any]:
    return {
        "device": str(device.capability),
        "name": capability_text(device.capability),
        "targets": [str(target) for target in device.targets],
        "containers": {coverage.value: count for coverage, count in device.containers.items()},
        "sizes": {
            "whole": device.whole,
            "used": device.used,
            "for_other_gpus": device.unused,
            "link_code": device.link_code,
            "not_device_code": device.other,
            "slim": device.slimmed,
            "core": device.core,
            "pack": device.pack,
        },
    }


def _change(change: SizeChange) -> dict[str, Any]:
    content: dict[str, Any] = {"target": change.target}
    if change.name is not None:
        content["name"] = change.name
    return {**content, "old": change.old, "new": change.new, "growth": change.growth}


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """Device code, and what GPUs can use of it.

    Attributes:
        devices: one for each capability that the inventory was judged for.
    """

    inventory: Inventory
    devices: tuple[DeviceUsage, ...]

    def as_json(self) -> str:
        """Return the document that ``archsplit inspect --json`` prints."""
        return inventory_json(self.inventory, self.devices)

    def _repr_html_(self) -> str:
        """Return the inventory's table for Jupyter."""
        return self.inventory._repr_html_()


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
            size_text(device.used),
            share_text(device.used, device.device_code),
            coverage_text(device),
        )
        for device in devices
        if device.used
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
    """Return a section for ``archsplit diff --summary`` of releases."""
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
