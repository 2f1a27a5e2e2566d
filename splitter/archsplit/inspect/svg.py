"""Stacked bars of the targets as SVG, and the nodes that they show."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from archsplit.inspect.breakdown import target_color
from archsplit.system.units import size_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from archsplit.devicecode.model import Inventory

_MAX_SEGMENTS = 12
_PICTURE_WIDTH = 1120
_BAR, _BAR_STEP = 18, 26
_LABEL_WIDTH, _SIZE_WIDTH = 130, 100

_STYLE = """\
text { font: 12px system-ui, sans-serif; fill: #20242a; pointer-events: none }
rect { stroke: #fff; stroke-width: 1 } rect:hover { stroke: #20242a }"""


def stacked_bars(inventory: Inventory, *, in_download: bool) -> str:
    """Return only the bars, for a page."""
    bars = target_nodes(inventory, in_download=in_download)
    box = f"0 0 {_PICTURE_WIDTH} {_bars_height(bars)}"
    opening = f'<svg class="bars" viewBox="{box}" role="img">\n<style>{_STYLE}</style>'
    return "\n".join((opening, *_bar_shapes(bars), "</svg>"))


def _bars_height(bars: tuple[TreeNode, ...]) -> int:
    return _BAR_STEP * len(bars) + 4


def _bar_shapes(bars: tuple[TreeNode, ...]) -> Iterator[str]:
    # All bars have one scale: the longest fills the width.
    longest = max((bar.weight for bar in bars), default=0)
    longest_width = _PICTURE_WIDTH - _LABEL_WIDTH - _SIZE_WIDTH
    for number, bar in enumerate(bars):
        top = number * _BAR_STEP
        middle = top + _BAR - 4
        yield f'<text x="0" y="{middle}">{escape(bar.label)}</text>'
        x = float(_LABEL_WIDTH)
        for part in bar.parts:
            width = part.weight * longest_width / longest
            yield _box(part, x=x, y=top, width=width)
            x += width
        yield f'<text x="{x + 6:.1f}" y="{middle}">{size_text(bar.weight)}</text>'


def _box(node: TreeNode, *, x: float, y: float, width: float) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{_BAR:.1f}"'
        f' fill="{node.color}">'
        # Browsers show the title as a tooltip, also without scripts.
        f"<title>{escape(node.title)}</title></rect>"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeNode:
    """A label with a weight in bytes; inner nodes divide it among their parts."""

    label: str
    weight: int
    color: str
    note: str = ""
    parts: tuple[TreeNode, ...] = ()

    @property
    def title(self) -> str:
        """Text of the tooltip."""
        return ", ".join(filter(None, (self.label, self.note, size_text(self.weight))))


def target_nodes(inventory: Inventory, *, in_download: bool) -> tuple[TreeNode, ...]:
    """Return every target with the places of its code; the targets in their own order."""
    places: dict[str, list[TreeNode]] = {row.target or row.kind: [] for row in inventory.rows()}
    for file in inventory.files:
        for row in file.rows():
            label = row.target or row.kind
            node = TreeNode(
                label=file.path,
                note=" ".join(filter(None, (row.kind, row.section, row.compression))),
                weight=(row.wheel_bytes or 0) if in_download else row.file_bytes,
                color=target_color(label),
            )
            places[label].append(node)
    return tuple(_target_node(label, _heaviest(nodes)) for label, nodes in places.items())


def _target_node(label: str, nodes: tuple[TreeNode, ...]) -> TreeNode:
    # Segments of less than a pixel could not be pointed at.
    shown, others = nodes[:_MAX_SEGMENTS], nodes[_MAX_SEGMENTS:]
    if others:
        weight = sum(node.weight for node in others)
        note = f"{len(others)} more places"
        shown = (*shown, TreeNode(label=note, weight=weight, color=target_color(label)))
    weight = sum(node.weight for node in shown)
    return TreeNode(label=label, weight=weight, color=target_color(label), parts=shown)


def _heaviest(nodes: Iterable[TreeNode]) -> tuple[TreeNode, ...]:
    """Sort the nodes with a weight, the heaviest first."""
    return tuple(sorted((node for node in nodes if node.weight > 0), key=lambda node: -node.weight))
