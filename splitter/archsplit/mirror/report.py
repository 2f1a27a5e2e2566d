"""Report of a mirror: text for a terminal, and JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from archsplit.mirror.edit import NO_CODE_FOR_GPU
from archsplit.mirror.model import MIRROR_SCHEMA
from archsplit.system.terminal import Column, FittingTable, name_column, word_column
from archsplit.system.units import count_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from archsplit.mirror.mirror import MirrorReport
    from archsplit.mirror.model import MirroredWheel

_PAGE = "https://archsplit.readthedocs.io/en/latest/how-to/mirror.html"


def mirror_text(report: MirrorReport) -> Iterator[RenderableType]:
    """Yield the output of ``archsplit mirror``."""
    yield _sizes(report)
    for wheel in report.wheels:
        # The reason is for those who expected an edit; most wheels simply have no device code.
        if any(each in wheel.unchanged for each in (" fails: ", NO_CODE_FOR_GPU)):
            yield f"{wheel.original.file} stays as it is: {wheel.unchanged}"
    if report.removed:
        yield f"no lock needs {', '.join(report.removed)} any more: removed from the pages"
    before = sum(wheel.original.size for wheel in report.wheels)
    wheels = count_text(len(report.wheels), "wheel")
    changed = sum(not wheel.unchanged for wheel in report.wheels)
    yield f"{report.out}: {wheels}, {changed} edited, {len(report.new)} new"
    for device in report.devices:
        after = sum(wheel.size_for(device) for wheel in report.wheels)
        yield f"a GPU of {device} downloads {after / 1e6:.1f} MB, {before / 1e6:.1f} MB before"
    if report.removed_locks:
        yield f"removed locks: {', '.join(report.removed_locks)}"
    yield f"locks: {', '.join(report.locks)}"
    yield f"next: serve this folder, and install by a lock: {_PAGE}#install-from-it"


def _sizes(report: MirrorReport) -> FittingTable:
    # Without packs, all GPUs download the same.
    is_split = any(file.role == "plugin" for wheel in report.wheels for file in wheel.files)
    devices = report.devices if is_split else report.devices[:1]
    titles = [f"MB for {one}" for one in devices] if len(devices) > 1 else ["MB after"]
    table = FittingTable(
        name_column("package"),
        word_column("version", rank=1),
        word_column("edit"),
        Column(heading="MB before"),
        *(Column(heading=title) for title in titles),
        Column(heading="saved"),
    )
    for wheel in sorted(report.wheels, key=lambda each: -each.original.size):
        # No user gets less than the report says.
        saved = wheel.original.size - max(wheel.size_for(device) for device in report.devices)
        table.add_row(
            wheel.name,
            wheel.version,
            "" if wheel.unchanged else wheel.edit.kind,
            f"{wheel.original.size / 1e6:.1f}",
            *(f"{wheel.size_for(device) / 1e6:.1f}" for device in devices),
            "" if wheel.unchanged else f"{saved / wheel.original.size:.0%}",
        )
    return table


def license_warning(wheels: tuple[MirroredWheel, ...]) -> str | None:
    """Return the warning about edited wheels whose licence forbids changes, or None."""
    licenses: dict[str, list[str]] = {}
    for wheel in wheels:
        # An unchanged copy needs no permission to modify.
        if wheel.original.license and not wheel.unchanged:
            licenses.setdefault(wheel.original.license, []).append(wheel.name)
    if not licenses:
        return None
    named = "; ".join(f"{', '.join(names)} ({text})" for text, names in sorted(licenses.items()))
    return (
        f"warning: edited wheels whose licence forbids changes: {named}. Don't publish this mirror"
        f" without the owner's permission; --proprietary keep leaves such wheels as they are."
        f" See {_PAGE}#licences"
    )


def mirror_json(report: MirrorReport) -> str:
    """Return the report as JSON."""
    wheels = [
        {**asdict(wheel), "downloads": {one: wheel.size_for(one) for one in report.devices}}
        for wheel in report.wheels
    ]
    content = {
        "schema": MIRROR_SCHEMA,
        "out": str(report.out),
        "devices": report.devices,
        "wheels": wheels,
        "new": report.new,
        "locks": report.locks,
        "removed": report.removed,
        "removed_locks": report.removed_locks,
        "warning": license_warning(report.wheels),
    }
    return json.dumps(content, indent=2, sort_keys=True)
