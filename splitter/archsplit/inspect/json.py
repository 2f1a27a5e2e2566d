"""An inventory, or the growth between two, as JSON (schema 1).

Keys are only ever added. ``problem`` is present where there is one, ``kernels`` if they were
requested.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from archsplit.arch.compat import capability_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from archsplit.devicecode.model import File, Inventory, InventoryRow
    from archsplit.devicecode.stats import CodeSize, DeviceUsage, Growth, SizeChange

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
        "other_files": [
            {"kind": one.kind, "count": one.count, "size": one.size}
            for one in inventory.other_files
        ],
    }
    return json.dumps(content, indent=2)


def growth_json(old: Inventory, new: Inventory, growth: Growth) -> str:
    """Return the output of ``archsplit diff --json``."""
    content = {
        "schema": INVENTORY_SCHEMA,
        "old": _identity(old),
        "new": _identity(new),
        # Two numbers are compared in one unit: see `Growth.in_download`.
        "unit": "wheel_bytes" if growth.in_download else "file_bytes",
        "targets": [_change(change) for change in growth.targets],
        "kernels": [_change(change) for change in growth.kernels],
    }
    return json.dumps(content, indent=2)


def _identity(inventory: Inventory) -> dict[str, Any]:
    return {"path": inventory.path, "sha256": inventory.sha256, "size": inventory.size}


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
            {
                "target": kernel.target,
                "name": kernel.name,
                "count": kernel.count,
                "code_bytes": kernel.code_bytes,
            }
            for kernel in file.kernels
        ]
    return content


def _images(rows: Iterable[InventoryRow]) -> list[dict[str, Any]]:
    return [
        {
            "kind": row.kind,
            "target": row.target,
            "section": row.section,
            "compression": row.compression,
            "count": row.count,
            "file_bytes": row.file_bytes,
            "wheel_bytes": row.wheel_bytes,
        }
        for row in rows
    ]


def _device(device: DeviceUsage) -> dict[str, Any]:
    return {
        "device": str(device.capability),
        "name": capability_text(device.capability),
        "targets": [str(target) for target in device.targets],
        "containers": {coverage.value: count for coverage, count in device.containers.items()},
        "usable": _weight(device.usable),
        "dead": _weight(device.dead),
    }


def _weight(weight: CodeSize) -> dict[str, Any]:
    return {"file_bytes": weight.file_bytes, "wheel_bytes": weight.wheel_bytes}


def _change(change: SizeChange) -> dict[str, Any]:
    content: dict[str, Any] = {"target": change.target}
    if change.name is not None:
        content["name"] = change.name
    return {**content, "old": change.old, "new": change.new, "growth": change.growth}
