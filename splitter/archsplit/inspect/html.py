"""Pages for browsers: an inventory, and the growth between two.

In go the records that the terminal shows; out comes one file that asks for nothing else. The pages
of all commands have one frame (`render_page`), so that they look alike, and their tables sort and
filter alike. The tables are whole without scripts. The script in `page.js` adds the zoomable map,
sorting and the filter, from the data in the page. No library is built in: the map needs one
function, and a page has to be small enough for a chat message. The page's policy allows this one
script, by its digest.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import PurePath
from string import Template
from typing import TYPE_CHECKING, Any

from archsplit import __version__
from archsplit.devicecode.kernels import find_demangler, readable_name
from archsplit.devicecode.select import Coverage
from archsplit.devicecode.stats import template_changes
from archsplit.inspect.breakdown import (
    REST_COLOR,
    REST_LABEL,
    breakdown,
    remaining_part,
    share_text,
    summarize,
)
from archsplit.inspect.sizes import answer_text, gpu_name
from archsplit.inspect.text import coverage_text, other_files_text, product_text, unserved_text
from archsplit.system.units import change_text, count_text, size_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from archsplit.arch.target import Capability
    from archsplit.devicecode.model import File, Inventory
    from archsplit.devicecode.stats import Growth, SizeChange
    from archsplit.inspect.breakdown import BreakdownPart
    from archsplit.inspect.sizes import DeviceUsage

TERMS = {
    "container": "A set of images from which a GPU takes one. nvcc makes one for each source file.",
    "image": "Device code for one target: machine code, PTX or input for a link.",
    "machine code": "Instructions of one GPU generation (SASS, sm_90). They run on GPUs of the same"
    " generation with the same or a later minor capability.",
    "PTX": "Text that the driver compiles at the first start (compute_90), for this generation and"
    " all later ones.",
    "link code": "Input of a device link (-rdc=true, LTO). No GPU can load it as it is.",
    "unregistered": "Code outside of the fatbin sections. Only the library itself finds it.",
    "for other GPUs": "Machine code and PTX that this GPU never takes.",
    "download": "The part of the wheel's compressed bytes.",
    "capability": "NVIDIA's number of a GPU generation: an H100 is 9.0, its target sm_90.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PageOrigin:
    """Origin of a page, which its header shows.

    Attributes:
        command: the arguments of the command; () for a page of the Python API.
        date: ISO 8601; "" leaves it out, for pages that have to be reproducible.
    """

    command: tuple[str, ...] = ()
    date: str = ""

    def markup(self) -> str:
        """Return version, date and command for the header."""
        # A page is passed on: the folders of the machine that made it stay there.
        words = [PurePath(word).name if word.startswith("/") else word for word in self.command]
        command = f"<code>{escape(shlex.join(words))}</code>" if words else ""
        return " · ".join(filter(None, (f"archsplit {__version__}", escape(self.date), command)))


NO_ORIGIN = PageOrigin()

_NO_MAP: dict[str, Any] = {"measures": [], "gpus": []}

FILTER_BOX = (
    '<p class="needs-script" hidden><label>Filter <input id="filter" type="search"></label>'
    ' <span id="filter-note" role="status"></span></p>'
)


def render_page(
    title: str,
    headline: str,
    origin: PageOrigin,
    body: str,
    data: dict[str, Any] | None = None,
    *,
    terms: Mapping[str, str] = TERMS,
) -> str:
    """Return a whole page.

    Args:
        title, headline: text.
        body: markup.
        data: for the script; None for a page of tables.
        terms: words that the end of the page explains.
    """
    script = _asset("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # The policy enforces it: browsers load nothing, and run nothing but this script, even if a
    # name on the page were markup.
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    # A page of few words explains those only.
    words = f"{headline} {body}".lower()
    rows = (
        f"<dt>{term}</dt><dd>{escape(text)}</dd>"
        for term, text in terms.items()
        if term.lower() in words
    )
    return Template(_asset("page.html")).substitute(
        policy=policy,
        version=__version__,
        title=escape(title),
        headline=escape(headline),
        origin=origin.markup(),
        style=_asset("page.css"),
        body=body,
        terms="\n".join(rows),
        # The one sequence that could end the element is a closing tag.
        data=json.dumps(data or _NO_MAP, separators=(",", ":")).replace("<", "\\u003c"),
        script=script,
    )


def render_table(
    caption: str,
    heads: Iterable[str],
    rows: Iterable[str],
    *,
    style: str = "",
) -> str:
    """Return a table that scrolls by itself on a narrow screen.

    A heading that begins with ``#`` stands above numbers; ``.`` and "" are columns without one.
    """
    cells = []
    for head in heads:
        name = head.lstrip("#.")
        style_of = ' class="number"' if head.startswith("#") else ""
        style_of = ' class="wide"' if head == "." else style_of
        text = f'<abbr title="{escape(TERMS[name])}">{name}</abbr>' if name in TERMS else name
        # A screen reader skips a heading without words.
        cells.append(f'<th scope="col"{style_of}>{text}' if name else f"<td{style_of}>")
    return (
        f'<div class="scroll" role="region" aria-label="{escape(caption)}" tabindex="0">'
        f'<table class="{style}"><caption><span>{escape(caption)}</span></caption>'
        f"<thead><tr>{''.join(cells)}</tr></thead>\n<tbody>\n"
        + "\n".join(rows)
        + "\n</tbody></table></div>"
    )


def size_cell(size: int) -> str:
    """Return a cell that sorts by the bytes and shows words."""
    return f'<td class="number" data-value="{size}">{size_text(size)}'


@cache
def _asset(name: str) -> str:
    return files("archsplit.inspect").joinpath(name).read_text(encoding="utf-8")


_MAX_KERNELS = 25
"""Kernels of a target in the map: the largest; a library can have tens of thousands."""

_MAX_CHANGES = 500
"""Kernels in a table of growth; the JSON has all."""

_MAX_NAME = 160
"""Characters of a kernel's name; names of templates have thousands."""


def inventory_page(
    inventory: Inventory,
    devices: tuple[DeviceUsage, ...],
    origin: PageOrigin = NO_ORIGIN,
    *,
    gpu: Capability | None = None,
) -> str:
    """Return the page of ``archsplit inspect --html``: map, targets, GPUs and all device code.

    Args:
        gpu: the GPU that the page opens on; None for the one with the most machine code.
    """
    # As on a terminal: only where such files are a part worth a word.
    other_files = f"<p>{escape(text)}</p>" if (text := other_files_text(inventory)) else ""
    if not inventory.rows():
        return render_page(inventory.name, summarize(inventory), origin, other_files, terms={})
    served = [one for one in devices if one.used]
    first = max(
        served,
        key=lambda one: (one.capability == gpu, one.containers[Coverage.NATIVE]),
        default=None,
    )
    gpus = [_gpu_data(inventory, one) for one in served]
    headline = answer_text(first) if first else summarize(inventory)
    body = "\n".join(
        (
            f"<p>{escape(summarize(inventory))}</p>" if first is not None else "",
            _map(inventory, served),
            _folded("What each GPU uses", _device_table(served)),
            f"<p>{escape(unserved_text(devices))}</p>",
            other_files,
            _folded("Each target", _target_table(inventory)),
            _folded("All device code", FILTER_BOX + _code_table(inventory)),
        )
    )
    data = {
        "measures": [name for name, _ in _measures(inventory)],
        "gpus": gpus,
        "gpu": "" if first is None else str(first.capability),
        "root": _root_data(inventory),
    }
    return render_page(inventory.name, headline, origin, body, data)


def _folded(title: str, content: str) -> str:
    return f"<details><summary><h2>{escape(title)}</h2></summary>\n{content}\n</details>"


def growth_page(
    old: Inventory, new: Inventory, growth: Growth, origin: PageOrigin = NO_ORIGIN
) -> str:
    """Return the page of ``archsplit diff --html``: targets and kernels, before and after."""
    unit = "download" if growth.in_download else "in files"
    change = new.size - old.size
    headline = f"{size_text(old.size)} before, {size_text(new.size)} after ({change_text(change)})"
    body = ["<h2>Targets</h2>", _change_table(growth.targets, unit, named=False)]
    templates = template_changes(growth.kernels)
    if templates:
        body += [
            "<h2>Kernels that changed, by template</h2>",
            FILTER_BOX,
            _change_table(templates[:_MAX_CHANGES], "machine code", named=True),
        ]
    if len(templates) > _MAX_CHANGES:
        body.append(f"<p>and {len(templates) - _MAX_CHANGES} more; --json has them all</p>")
    title = f"{old.name} → {new.name}"
    return render_page(title, headline, origin, "\n".join(body))


def _measures(inventory: Inventory) -> tuple[tuple[str, str], ...]:
    """Return the measures of a subject: only a wheel has a download."""
    measures = (("download", "bytes of the download"), ("files", "bytes in the files"))
    return measures if inventory.is_wheel else measures[1:]


def _map(inventory: Inventory, devices: Iterable[DeviceUsage]) -> str:
    """Return the frame of the map with its controls; the script draws the tiles."""
    buttons = "".join(
        f'<button type="button" data-gpu="{device.capability}" aria-pressed="false"'
        f' title="{device.capability} {escape(product_text(device))}">'
        f"{escape(gpu_name(device.capability))}</button>"
        for device in devices
    )
    gpus = f"""<div id="gpus" class="gpus" role="group" aria-label="my GPU">{buttons}
<button type="button" data-gpu="" aria-pressed="false">all targets</button></div>"""
    items = "".join(f'<option value="{key}">{text}</option>' for key, text in _measures(inventory))
    measure = f'<label>Bytes: <select id="measure">{items}</select></label>'
    return f"""<noscript><p>The map needs JavaScript; the tables have its numbers.</p></noscript>
<div class="needs-script" hidden>
<pre id="gpu-note" tabindex="0" aria-live="polite"></pre>
<div class="controls">
{gpus}
{measure if inventory.is_wheel else ""}
</div>
<nav id="crumbs" class="crumbs" aria-label="place in the map"></nav>
<div id="map" class="map" role="group" aria-label="map of the bytes: files, targets, kernels"
 aria-describedby="map-help"></div>
<p id="map-note" class="note" role="status"></p>
<p id="map-help" class="origin">Click a box to see its parts. Keys: arrows go from box to box, Enter
shows the parts, Escape goes back. A target of the legend marks its boxes.</p>
{_legend(inventory)}
</div>"""


def _legend(inventory: Inventory) -> str:
    """Return the colors and textures that the map uses."""
    parts = breakdown(inventory.rows())
    swatches = dict.fromkeys(
        (part.name, part.label, part.color, _TEXTURES[part.form]) for part in parts
    )
    swatches[REST_LABEL, REST_LABEL, REST_COLOR, "rest"] = None
    # A button for each, so that the mouse, the keyboard and a screen reader mark its boxes alike.
    items = (
        f'<li><button type="button" aria-pressed="false" data-target="{escape(label)}"'
        f' data-texture="{texture}"><span class="swatch {texture}"'
        f' style="background-color:{color}"></span>{escape(name)}</button>'
        for name, label, color, texture in swatches
    )
    return f'<ul class="legend" aria-label="legend">{"".join(items)}</ul>'


_TEXTURES = {"": "", "PTX": "ptx", "link code": "link", "unregistered": "outside"}
"""Class of the texture of each form of code: plain for machine code."""


def _gpu_data(inventory: Inventory, device: DeviceUsage) -> dict[str, Any]:
    name = shlex.quote(PurePath(inventory.path).name)
    text = f"# slim leaves {size_text(device.slimmed)} of {size_text(device.whole)}\n"
    text += f"archsplit slim {name} --device {device.capability}"
    if inventory.is_wheel and device.core is not None and device.pack is not None:
        sizes = f"core {size_text(device.core)} + pack {size_text(device.pack)}, estimated"
        text += f"\n# {sizes}\narchsplit split {name} --out split"
    return {
        "id": str(device.capability),
        "targets": [str(target) for target in device.targets],
        "outside": list(map(str, device.outside)),
        "answer": answer_text(device),
        "text": text,
    }


def _root_data(inventory: Inventory) -> dict[str, Any]:
    parts = [_file_data(file) for file in inventory.files if file.rows()]
    in_files = sum(file.size for file in inventory.files)
    # Files that can't hold device code were not decompressed: their size is unknown.
    whole = {
        "download": inventory.size,
        "files": in_files if inventory.is_wheel else inventory.size,
    }
    parts.append(_rest_data(whole, parts))
    return _node(inventory.name, whole, parts=parts)


def _rest_data(whole: dict[str, int], parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the box of all other bytes."""
    rest = {
        name: max(0, size - sum(part["bytes"][name] for part in parts))
        for name, size in whole.items()
    }
    return _node(REST_LABEL, rest, color=REST_COLOR, texture="rest")


def _file_data(file: File) -> dict[str, Any]:
    whole = {"download": file.wheel_bytes or 0, "files": file.size}
    parts = [
        _node(
            part.label,
            {"download": part.wheel_bytes or 0, "files": part.file_bytes},
            color=part.color,
            note=" ".join(filter(None, (part.kind, part.note, count_text(part.count, "image")))),
            texture=_TEXTURES[part.form],
            target=part.label,
            # Machine code and link code of one target are two boxes, and need two names.
            name=part.name,
            live=not part.note,
            parts=list(_kernel_data(file, part)),
        )
        for part in breakdown(file.rows())
    ]
    parts.append(_rest_data(whole, parts))
    return _node(file.path, whole, parts=parts, name=file.path.rpartition("/")[2])


def _kernel_data(file: File, part: BreakdownPart) -> Iterator[dict[str, Any]]:
    """Yield the largest kernels of a target, and the others as one; their bytes are unpacked."""
    if part.kind != "SASS" or part.note:
        return
    kernels = sorted(
        (kernel for kernel in file.kernels if kernel.target == part.label),
        key=lambda kernel: (-kernel.code_bytes, kernel.name),
    )
    named = [
        (_short_name(kernel.name), kernel.code_bytes, kernel.count)
        for kernel in kernels[:_MAX_KERNELS]
    ]
    others = sum(kernel.code_bytes for kernel in kernels[_MAX_KERNELS:])
    if others:
        named.append((count_text(len(kernels) - _MAX_KERNELS, "more kernel"), others, 1))
    for name, size, copies in named:
        # The machine code is unpacked, so it is the same number in every measure.
        sizes = {"download": size, "files": size}
        note = "machine code, unpacked" + (f", {copies} copies" if copies > 1 else "")
        yield _node(name, sizes, color=part.color, note=note, target=part.label, live=True)


def _node(label: str, sizes: dict[str, int], **more: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return a box of the map; what is empty is left out, which halves the data."""
    content = {"label": label, "bytes": sizes, "color": "", **more}
    return {"parts": [], **{key: value for key, value in content.items() if value}}


def _short_name(name: str) -> str:
    text = readable_name(name, find_demangler())
    return text if len(text) <= _MAX_NAME else f"{text[: _MAX_NAME - 1]}…"


def _target_table(inventory: Inventory) -> str:
    """Return a bar for each target and form of code; all bars have one scale."""
    parts = sorted(breakdown(inventory.rows()), key=lambda one: -one.weight)
    longest = max((part.weight for part in parts), default=0) or 1
    rows = (
        f'<tr><td class="name">{escape(part.name)}<td style="width:80%"><div class="bar"><span'
        f' style="width:{100 * part.weight / longest:.2f}%;background:{part.color}"></span></div>'
        f"{size_cell(part.weight)}</tr>"
        for part in parts
    )
    return render_table("targets", ("target", "", "#size"), rows)


def _device_table(devices: Iterable[DeviceUsage]) -> str:
    rows = []
    for device in devices:
        share = share_text(device.used, device.device_code)
        rows.append(
            f'<tr><td class="name">{device.capability} {escape(product_text(device))}'
            f'<td class="wide"><div class="bar share"><span class="usable"'
            f' style="width:{share.replace(" ", "")}"></span></div>'
            f"{size_cell(device.used)}{size_cell(device.unused)}"
            f'<td class="number">{share}<td>{coverage_text(device)}'
            f'<td class="mono">{" ".join(map(str, device.targets))}</tr>'
        )
    heads = ("GPU", ".", "#uses", "#for other GPUs", "#share", "container", "takes")
    return render_table("by compute capability", heads, rows, style="sortable")


def _code_table(inventory: Inventory) -> str:
    """Return a row for each file and target, and one for all other bytes."""
    found = [(file.path, part) for file in inventory.files for part in breakdown(file.rows())]
    found.sort(key=lambda one: -one[1].weight)
    rows = [_code_row(path, part) for path, part in found]
    parts = breakdown(inventory.rows())
    rest = remaining_part(inventory.size, parts)
    # Members that can't hold device code were not unpacked: only their download is known.
    cells = ("<td>" if inventory.is_wheel else "") + size_cell(rest.weight)
    rows.append(f'<tr><td class="name"><td>{REST_LABEL}<td><td><td>{cells}</tr>')
    heads: tuple[str, ...] = ("file", "target", "kind", "packed", "#image", "#in files")
    if inventory.is_wheel:
        heads = (*heads, "#download")
    return render_table("one row for each file and target", heads, rows, style="sortable filtered")


def _code_row(path: str, part: BreakdownPart) -> str:
    live = "" if part.note else ' data-live="1"'
    row = f' data-target="{escape(part.label)}"{live}' if part.count else ""
    kind = " ".join(filter(None, (part.kind, part.note)))
    download = "" if part.wheel_bytes is None else size_cell(part.wheel_bytes)
    return (
        f'<tr{row}><td class="name">{escape(path)}<td>{escape(part.label)}<td>{escape(kind)}'
        f'<td>{", ".join(part.compressions)}<td class="number">{part.count or ""}'
        f"{size_cell(part.file_bytes)}{download}</tr>"
    )


def _change_table(changes: Sequence[SizeChange], unit: str, *, named: bool) -> str:
    most = max((abs(change.growth) for change in changes), default=0) or 1
    rows = []
    for change in changes:
        name = f'<td class="mono">{escape(_short_name(change.name or ""))}' if named else ""
        color = "var(--grown)" if change.growth > 0 else "var(--usable)"
        grown = ' class="number grown"' if change.growth > 0 else ' class="number"'
        rows.append(
            f"<tr><td>{escape(change.target)}{name}{size_cell(change.old)}{size_cell(change.new)}"
            f'<td{grown} data-value="{change.growth}">{change_text(change.growth)}'
            f'<td class="wide"><div class="bar"><span style="width:'
            f'{100 * abs(change.growth) / most:.1f}%;background:{color}"></span></div></tr>'
        )
    kernel = ("kernel",) if named else ()
    heads = ("target", *kernel, f"#{unit}, before", "#after", "#growth", ".")
    style = "sortable filtered" if named else "sortable"
    caption = f"{'kernels' if named else 'targets'}: red grew, green shrank"
    return render_table(caption, heads, rows, style=style)
