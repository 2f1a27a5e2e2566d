"""An inventory as one HTML page without network access and scripts."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from archsplit.inspect.breakdown import (
    DEAD_COLOR,
    USABLE_COLOR,
    breakdown,
    remaining_part,
    share_text,
    summarize,
)
from archsplit.inspect.svg import stacked_bars, treemap
from archsplit.inspect.text import coverage_text, product_text, unserved_text
from archsplit.system.units import size_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archsplit.devicecode.model import Inventory
    from archsplit.devicecode.stats import DeviceUsage

# The policy enforces it: browsers load nothing, even if a name on the page were markup.
_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width">
<title>{name}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; color: #20242a; max-width: 1120px;
  margin: 2rem auto; padding: 0 1rem }}
h1 {{ font-size: 1.15rem; overflow-wrap: anywhere; margin-bottom: 0 }}
h2 {{ font-size: 1rem; margin-top: 2rem }}
svg {{ width: 100%; height: auto; display: block }}
table {{ border-collapse: collapse; width: 100% }}
th {{ text-align: left; font-weight: 500; color: #6b717b }}
th, td {{ padding: .15rem .8rem .15rem 0; border-bottom: 1px solid #eceef0 }}
.number {{ text-align: right; font-variant-numeric: tabular-nums }}
.share {{ background: {dead}; width: 12rem; height: .8rem }}
.share div {{ background: {usable}; height: .8rem }}
.view {{ display: none }}
#download:checked ~ .download, #files:checked ~ .files {{ display: block }}
</style>
</head>
<body>
<h1>{name}</h1>
<p>{headline}</p>
{views}
<h2>What each GPU can use</h2>
<table><thead><tr><th>GPU<th><th>can use<th>share<th>dead weight<th>containers<th>takes</tr></thead>
<tbody>
{devices}
</tbody></table>
<p>{unserved}</p>
<h2>All device code</h2>
<table><thead><tr><th>target<th>kind<th>where<th>packed<th class="number">images
<th class="number">in files<th class="number">download</tr></thead>
<tbody>
{rows}
</tbody></table>
</body>
</html>
"""
_MEASURES = (("download", "in the download"), ("files", "in the files"))


def inventory_page(inventory: Inventory, devices: tuple[DeviceUsage, ...]) -> str:
    """Return the page: a treemap, a bar for each target, and the usage by each GPU."""
    return _PAGE.format(
        name=escape(inventory.name),
        headline=escape(summarize(inventory)),
        usable=USABLE_COLOR,
        dead=DEAD_COLOR,
        views="\n".join(_views(inventory)),
        devices="\n".join(_device(device) for device in devices if device.targets),
        unserved=escape(unserved_text(devices)),
        rows="\n".join(_rows(inventory)),
    )


def _views(inventory: Inventory) -> Iterator[str]:
    """Yield the pictures: for a wheel those of the download and those of the files."""
    measures = _MEASURES if inventory.is_wheel else _MEASURES[1:]
    for number, (name, words) in enumerate(measures):
        # Radio buttons switch the views without a script.
        checked = "" if number else " checked"
        yield f'<input type="radio" name="measure" id="{name}"{checked}>'
        yield f'<label for="{name}">bytes {words}</label>'
    for name, _ in measures:
        in_download = name == "download"
        yield f'<div class="view {name}">'
        yield "<h2>The whole</h2>"
        yield treemap(inventory, in_download=in_download)
        yield "<h2>Each target</h2>"
        yield stacked_bars(inventory, in_download=in_download)
        yield "</div>"


def _device(device: DeviceUsage) -> str:
    whole = device.usable.cost + device.dead.cost
    # The text is empty for a whole of 0 bytes, and CSS needs a width.
    share = share_text(device.usable.cost, whole) or "0 %"
    return (
        f"<tr><td>{device.capability} {escape(product_text(device))}"
        f'<td><div class="share"><div style="width: {share.replace(" ", "")}"></div></div>'
        f'<td class="number">{size_text(device.usable.cost)}<td class="number">{share}'
        f'<td class="number">{size_text(device.dead.cost)}<td>{coverage_text(device)}'
        f"<td>{' '.join(map(str, device.targets))}</tr>"
    )


def _rows(inventory: Inventory) -> Iterator[str]:
    parts = breakdown(inventory.rows())
    for part in (*parts, remaining_part(inventory.size, parts)):
        download = "" if part.wheel_bytes is None else size_text(part.wheel_bytes)
        yield (
            f"<tr><td>{escape(part.label)}<td>{part.kind}<td>{part.note}"
            f'<td>{", ".join(part.compressions)}<td class="number">{part.count or ""}'
            f'<td class="number">{size_text(part.file_bytes)}<td class="number">{download}</tr>'
        )
