"""The report of a mirror as a page for browsers.

In go the records that the terminal shows; out comes one file that asks for nothing else. It has the
frame of all pages, and three tables: a row for each wheel, for each GPU, and for each lock.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from archsplit.arch.compat import capability_text
from archsplit.arch.target import Capability
from archsplit.inspect.breakdown import share_text
from archsplit.inspect.page import (
    FILTER_BOX,
    NO_ORIGIN,
    PageOrigin,
    render_page,
    render_table,
    size_cell,
)
from archsplit.mirror.text import largest_download, license_warning, sized_devices
from archsplit.system.units import size_text

if TYPE_CHECKING:
    from archsplit.mirror.mirror import MirrorReport
    from archsplit.mirror.model import MirroredWheel

_TERMS = {
    "edit": "slim removes the code that none of the GPUs can run. split makes a core wheel and one"
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
