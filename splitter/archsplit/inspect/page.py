"""The frame of a page for browsers: header, policy, styles, script, terms and tables.

In go a title, a headline and markup; out comes one document that asks for nothing else. All pages
of all commands have this frame, so that they look alike, and their tables sort and filter alike.
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
from string import Template
from typing import TYPE_CHECKING, Any

from archsplit import __version__
from archsplit.system.units import size_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

TERMS = {
    "container": "A set of images from which a GPU takes one. nvcc makes one for each source file.",
    "image": "Device code for one target: machine code, PTX or input for a link.",
    "machine code": "Instructions of one GPU generation (SASS, sm_90). They run on GPUs of the same"
    " generation with the same or a later minor capability.",
    "PTX": "Text that the driver compiles at the first start (compute_90), for this generation and"
    " all later ones.",
    "link code": "Input of a device link (-rdc=true, LTO). No GPU can load it as it is.",
    "unregistered": "Code outside of the fatbin sections. Only the library itself finds it.",
    "dead weight": "Machine code and PTX that a GPU never takes.",
    "download": "The part of the wheel's compressed bytes.",
    "capability": "NVIDIA's number of a GPU generation: an H100 is 9.0, its target sm_90.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PageOrigin:
    """The origin of a page, which its header shows.

    Attributes:
        command: the arguments of the command; () for a page of the Python API.
        date: ISO 8601; "" leaves it out, for pages that have to be reproducible.
    """

    command: tuple[str, ...] = ()
    date: str = ""

    def markup(self) -> str:
        """Return version, date and command for the header."""
        command = f"<code>{escape(shlex.join(self.command))}</code>" if self.command else ""
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
    rows = (f"<dt>{escape(term)}</dt><dd>{escape(text)}</dd>" for term, text in terms.items())
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
    terms: Mapping[str, str] = TERMS,
) -> str:
    """Return a table that scrolls by itself on a narrow screen.

    A heading that begins with ``#`` stands above numbers; ``.`` and "" are columns without one.
    """
    cells = []
    for head in heads:
        name = head.lstrip("#.")
        style_of = ' class="number"' if head.startswith("#") else ""
        style_of = ' class="wide"' if head == "." else style_of
        text = f'<abbr title="{escape(terms[name])}">{name}</abbr>' if name in terms else name
        # A heading without words is no heading for a screen reader.
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
