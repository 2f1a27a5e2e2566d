"""The report of a mirror: text for a terminal, JSON, and a page for browsers.

The page has the frame of all pages, and three tables: a row for each wheel, for each GPU, and for
each lock.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from html import escape
from typing import TYPE_CHECKING

from archsplit.arch.compat import capability_text
from archsplit.arch.target import Capability
from archsplit.inspect.breakdown import share_text
from archsplit.inspect.html import (
    FILTER_BOX,
    NO_ORIGIN,
    PageOrigin,
    render_page,
    render_table,
    size_cell,
)
from archsplit.mirror.model import MIRROR_SCHEMA
from archsplit.system.terminal import Column, FittingTable, name_column, word_column
from archsplit.system.units import size_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from archsplit.mirror.mirror import MirrorReport
    from archsplit.mirror.model import MirroredWheel

_LICENSE_PAGE = "https://archsplit.readthedocs.io/en/latest/how-to/mirror.html#licences"


def mirror_text(report: MirrorReport) -> Iterator[RenderableType]:
    """Yield the output of ``archsplit mirror``."""
    yield _sizes(report)
    for wheel in report.wheels:
        # The reason is for those who expected an edit; most wheels simply have no device code.
        if wheel.unchanged and " fails: " in wheel.unchanged:
            yield f"{wheel.original.file} stays as it is: {wheel.unchanged}"
    if report.removed:
        yield f"no lock needs {', '.join(report.removed)} any more: removed from the pages"
    before = _before(report.wheels)
    changed = sum(not wheel.unchanged for wheel in report.wheels)
    yield (
        f"{report.out}: {len(report.wheels)} wheels, {changed} of them edited,"
        f" {len(report.new)} in this run"
    )
    for device in report.devices:
        after = sum(wheel.size_for(device) for wheel in report.wheels)
        yield f"a GPU of {device} downloads {after / 1e6:.1f} MB, {before / 1e6:.1f} MB before"
    yield f"locks: {', '.join(report.locks)}"


def _before(wheels: tuple[MirroredWheel, ...]) -> int:
    return sum(wheel.original.size for wheel in wheels)


def _sizes(report: MirrorReport) -> FittingTable:
    devices = sized_devices(report)
    titles = [f"MB for {one}" for one in devices] if len(devices) > 1 else ["MB after"]
    table = FittingTable(
        (
            name_column("package"),
            word_column("version", rank=1),
            word_column("edit"),
            Column(heading="MB before"),
            *(Column(heading=title) for title in titles),
            Column(heading="saved"),
        )
    )
    for wheel in sorted(report.wheels, key=lambda each: -each.original.size):
        sizes = [wheel.size_for(device) for device in devices]
        saved = wheel.original.size - largest_download(wheel, report)
        table.add_row(
            wheel.name,
            wheel.version,
            "" if wheel.unchanged else wheel.edit.kind,
            f"{wheel.original.size / 1e6:.1f}",
            *(f"{size / 1e6:.1f}" for size in sizes),
            "" if wheel.unchanged else f"{saved / wheel.original.size:.0%}",
        )
    return table


def sized_devices(report: MirrorReport) -> tuple[str, ...]:
    """Return the GPUs whose downloads differ: all if wheels were split, else the first."""
    return report.devices if _is_split(report) else report.devices[:1]


def largest_download(wheel: MirroredWheel, report: MirrorReport) -> int:
    """Return the bytes for the GPU with the largest download."""
    # No user gets less than the report says.
    return max(wheel.size_for(device) for device in report.devices)


def _is_split(report: MirrorReport) -> bool:
    return any(file.role == "plugin" for wheel in report.wheels for file in wheel.files)


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
        f" See {_LICENSE_PAGE}"
    )


def mirror_json(report: MirrorReport) -> str:
    """Return the report as JSON."""
    content = {
        "schema": MIRROR_SCHEMA,
        "out": str(report.out),
        "devices": report.devices,
        "wheels": [
            {
                **asdict(wheel),
                "downloads": {device: wheel.size_for(device) for device in report.devices},
            }
            for wheel in report.wheels
        ],
        "new": report.new,
        "locks": report.locks,
        "removed": report.removed,
        "warning": license_warning(report.wheels),
    }
    return json.dumps(content, indent=2, sort_keys=True)


_TERMS = {
    "edit": "slim removes the code that these GPUs can't run. split makes a core wheel and one"
    " pack of device code for each GPU. kept: the original bytes.",
    "GPU": "Compute capability, NVIDIA's number of a GPU generation: an H100 is 9.0.",
    "lock": "A file for pip or uv that names each wheel of an installation with its SHA-256.",
}


def mirror_page(report: MirrorReport, origin: PageOrigin = NO_ORIGIN) -> str:
    """Return the page of ``archsplit mirror --html``: wheels, edits, GPUs and locks."""
    warning = license_warning(report.wheels)
    body = [f'<p class="warning" role="note">{escape(warning)}</p>'] if warning else []
    body += [
        "<h2>Wheels</h2>",
        FILTER_BOX,
        _wheel_table(report),
        "<h2>What each GPU downloads</h2>",
        _gpu_table(report),
        "<h2>Locks</h2>",
        _lock_list(report),
    ]
    title = f"Mirror: {report.out}"
    return render_page(title, _headline(report), origin, "\n".join(body), terms=_TERMS)


def _headline(report: MirrorReport) -> str:
    before = sum(wheel.original.size for wheel in report.wheels)
    after = sum(largest_download(wheel, report) for wheel in report.wheels)
    edited = sum(not wheel.unchanged for wheel in report.wheels)
    change = share_text(abs(before - after), before) or "0 %"
    # A split of small wheels adds more than it takes away.
    word = "saved" if after <= before else "more"
    return (
        f"{len(report.wheels)} wheels, {edited} of them edited: {size_text(before)} before,"
        f" {size_text(after)} after, {change} {word}"
    )


def _wheel_table(report: MirrorReport) -> str:
    devices = sized_devices(report)
    rows = [
        _wheel_row(wheel, report, devices)
        for wheel in sorted(report.wheels, key=lambda each: -each.original.size)
    ]
    titles = [f"#for {one}" for one in devices] if len(devices) > 1 else ["#after"]
    heads = ("package", "version", "edit", "#before", *titles, "#saved", "notes")
    caption = "the largest wheel first; saved: for the GPU with the largest download"
    return render_table(caption, heads, rows, style="sortable filtered", terms=_TERMS)


def _wheel_row(wheel: MirroredWheel, report: MirrorReport, devices: tuple[str, ...]) -> str:
    before = wheel.original.size
    saved = before - largest_download(wheel, report)
    share = "" if wheel.unchanged else f" ({share_text(saved, before) or '0 %'})"
    edit = "kept" if wheel.unchanged else str(wheel.edit)
    # The licence stands beside the edit that it may forbid.
    notes = "; ".join(filter(None, (wheel.unchanged, wheel.original.license)))
    sizes = "".join(size_cell(wheel.size_for(device)) for device in devices)
    return (
        f'<tr><td class="name">{escape(wheel.name)}<td>{escape(wheel.version)}'
        f'<td class="name">{escape(edit)}{size_cell(before)}{sizes}'
        f'<td class="number" data-value="{saved}">{size_text(saved)}{share}'
        f'<td class="name">{escape(notes)}</tr>'
    )


def _gpu_table(report: MirrorReport) -> str:
    before = sum(wheel.original.size for wheel in report.wheels)
    rows = []
    for device in report.devices:
        after = sum(wheel.size_for(device) for wheel in report.wheels)
        # CSS needs a width, and a mirror may have no wheels.
        share = share_text(after, before) or "0 %"
        rows.append(
            f'<tr><td class="name">{escape(capability_text(Capability.parse(device)))}'
            f'<td class="wide"><div class="bar share"><span class="usable"'
            f' style="width:{share.replace(" ", "")}"></span></div>'
            f'{size_cell(before)}{size_cell(after)}<td class="number">{share}</tr>'
        )
    heads = ("GPU", ".", "#before", "#after", "#share")
    return render_table("all wheels together", heads, rows, style="sortable", terms=_TERMS)


def _lock_list(report: MirrorReport) -> str:
    locks = "".join(f"<li><code>{escape(lock)}</code>" for lock in report.locks)
    text = f"<ul>{locks}</ul>"
    if report.removed:
        text += f"<p>No lock needs {escape(', '.join(report.removed))}: removed from the pages.</p>"
    return text
