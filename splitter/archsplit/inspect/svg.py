"""An inventory as SVG: a treemap, and a stacked bar for each target."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from archsplit.inspect.breakdown import headline
from archsplit.inspect.colours import REST
from archsplit.inspect.tree import target_nodes, tree_of
from archsplit.inspect.treemap import Rectangle, squarified
from archsplit.system.units import size_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archsplit.devicecode.inventory import Inventory
    from archsplit.inspect.tree import Node

WIDTH = 1120
_MAP_HEIGHT = 520
_MARGIN = 14
_BAR, _BAR_STEP = 18, 26
_LABEL_WIDTH, _SIZE_WIDTH = 130, 100
_TITLE_HEIGHT = 60
_FRAME, _CAPTION = 2.0, 17.0
_LETTER = 7.0
"""The width of a letter of the labels, about, for what fits into a rectangle."""

_STYLE = """\
text { font: 12px system-ui, sans-serif; fill: #20242a; pointer-events: none }
.on { fill: #fff } .headline { font-size: 14px } .name { font-weight: 600; font-size: 15px }
rect { stroke: #fff; stroke-width: 1 } rect:hover { stroke: #20242a }"""


def inventory_picture(inventory: Inventory) -> str:
    """Both pictures in one SVG file; they weigh the download of a wheel, else the files."""
    packed = inventory.is_wheel
    bars = target_nodes(inventory, packed=packed)
    height = _TITLE_HEIGHT + _MAP_HEIGHT + 20 + _bars_height(bars)
    frame = f"{-_MARGIN} {-_MARGIN} {WIDTH + 2 * _MARGIN} {height + 2 * _MARGIN}"
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{frame}" '
            f'width="{WIDTH + 2 * _MARGIN}" height="{height + 2 * _MARGIN}">',
            f"<style>{_STYLE}</style>",
            f'<rect x="{-_MARGIN}" y="{-_MARGIN}" width="100%" height="100%" fill="#fff"/>',
            f'<text class="name" x="0" y="20">{escape(inventory.name)}</text>',
            f'<text class="headline" x="0" y="42">{escape(headline(inventory))}</text>',
            f'<g transform="translate(0 {_TITLE_HEIGHT})">',
            *_map_shapes(tree_of(inventory, packed=packed)),
            "</g>",
            f'<g transform="translate(0 {_TITLE_HEIGHT + _MAP_HEIGHT + 20})">',
            *_bar_shapes(bars),
            "</g>",
            "</svg>\n",
        )
    )


def treemap(inventory: Inventory, *, packed: bool) -> str:
    """The treemap alone, to stand in a page."""
    shapes = _map_shapes(tree_of(inventory, packed=packed))
    return "\n".join((_opening("treemap", _MAP_HEIGHT), *shapes, "</svg>"))


def stacked_bars(inventory: Inventory, *, packed: bool) -> str:
    """The bars alone, to stand in a page."""
    bars = target_nodes(inventory, packed=packed)
    return "\n".join((_opening("bars", _bars_height(bars)), *_bar_shapes(bars), "</svg>"))


def _opening(name: str, height: int) -> str:
    return (
        f'<svg class="{name}" viewBox="0 0 {WIDTH} {height}" role="img">\n<style>{_STYLE}</style>'
    )


def _bars_height(bars: tuple[Node, ...]) -> int:
    return _BAR_STEP * len(bars) + 4


def _map_shapes(root: Node) -> Iterator[str]:
    whole = Rectangle(x=0, y=0, width=WIDTH, height=_MAP_HEIGHT)
    for node, place in _placed(root, whole):
        yield _box(node, place)
        if node.parts:
            yield _label(_ending(node.label, place), place, y=place.y + 12, bright=False)
            inner = place.inset(top=_CAPTION, around=_FRAME)
            for part, part_place in _placed(node, inner):
                yield _box(part, part_place)
                yield from _labels(part, part_place)
        else:
            yield from _labels(node, place)


def _placed(node: Node, within: Rectangle) -> Iterator[tuple[Node, Rectangle]]:
    weights = [part.weight for part in node.parts]
    yield from zip(node.parts, squarified(weights, within), strict=True)


def _bar_shapes(bars: tuple[Node, ...]) -> Iterator[str]:
    longest = max((bar.weight for bar in bars), default=0)
    room = WIDTH - _LABEL_WIDTH - _SIZE_WIDTH
    for number, bar in enumerate(bars):
        top = number * _BAR_STEP
        middle = top + _BAR - 4
        yield f'<text x="0" y="{middle}">{escape(bar.label)}</text>'
        x = float(_LABEL_WIDTH)
        for part in bar.parts:
            width = part.weight * room / longest
            yield _box(part, Rectangle(x=x, y=top, width=width, height=_BAR))
            x += width
        yield f'<text x="{x + 6:.1f}" y="{middle}">{size_text(bar.weight)}</text>'


def _box(node: Node, place: Rectangle) -> str:
    return (
        f'<rect x="{place.x:.1f}" y="{place.y:.1f}" width="{place.width:.1f}" '
        f'height="{place.height:.1f}" fill="{node.colour}">'
        f"<title>{escape(node.title)}</title></rect>"
    )


def _labels(node: Node, place: Rectangle) -> Iterator[str]:
    """The name, and under it the size, where there is room."""
    bright = node.colour != REST
    if place.height >= _CAPTION:
        yield _label(node.label, place, y=place.y + 13, bright=bright)
    if place.height >= 2 * _CAPTION:
        yield _label(size_text(node.weight), place, y=place.y + 28, bright=bright)


def _label(text: str, place: Rectangle, *, y: float, bright: bool) -> str:
    if len(text) > _letters(place):
        return ""
    shade = ' class="on"' if bright else ""
    return f'<text{shade} x="{place.x + 4:.1f}" y="{y:.1f}">{escape(text)}</text>'


def _ending(path: str, place: Rectangle) -> str:
    """As much of a path as fits; its end says more than its start."""
    letters = _letters(place)
    return path if len(path) <= letters else f"…{path[len(path) - letters + 1 :]}"


def _letters(place: Rectangle) -> int:
    """How many letters fit into a rectangle, about."""
    return max(1, int((place.width - 6) / _LETTER))
