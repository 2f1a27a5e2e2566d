"""An inventory as SVG: a treemap, and a stacked bar for each target.

In goes an inventory; it becomes a tree of nodes with weights, the tree becomes rectangles, and the
rectangles become shapes. Rectangles have areas in proportion to weights, and are as square as
possible ("Squarified Treemaps", Bruls, Huizing, van Wijk, 2000): a row along the shorter side is
filled for as long as that makes its worst rectangle less oblong.

The package `squarify` (0.4.5) is not used: it computes the same rectangles at the same speed (15 ms
for 200 weights), but has no types, divides by zero in a rectangle without area, and would replace
only some 50 lines.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from archsplit.inspect.breakdown import REST_COLOR, REST_LABEL, breakdown, summarize, target_color
from archsplit.system.units import size_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from archsplit.devicecode.model import File, Inventory

_MAX_SEGMENTS = 12
_PICTURE_WIDTH = 1120
_MAP_HEIGHT = 520
_MARGIN = 14
_BAR, _BAR_STEP = 18, 26
_LABEL_WIDTH, _SIZE_WIDTH = 130, 100
_TITLE_HEIGHT = 60
_FRAME, _CAPTION = 2.0, 17.0

_LETTER = 7.0
"""The average width of a label's letter, to decide which labels fit."""

_STYLE = """\
text { font: 12px system-ui, sans-serif; fill: #20242a; pointer-events: none }
.on { fill: #fff } .headline { font-size: 14px } .name { font-weight: 600; font-size: 15px }
rect { stroke: #fff; stroke-width: 1 } rect:hover { stroke: #20242a }"""


def inventory_picture(inventory: Inventory) -> str:
    """Return both pictures in one SVG file; they weigh a wheel's download, else the files."""
    in_download = inventory.is_wheel
    bars = target_nodes(inventory, in_download=in_download)
    height = _TITLE_HEIGHT + _MAP_HEIGHT + 20 + _bars_height(bars)
    frame = f"{-_MARGIN} {-_MARGIN} {_PICTURE_WIDTH + 2 * _MARGIN} {height + 2 * _MARGIN}"
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{frame}" '
            f'width="{_PICTURE_WIDTH + 2 * _MARGIN}" height="{height + 2 * _MARGIN}">',
            f"<style>{_STYLE}</style>",
            f'<rect x="{-_MARGIN}" y="{-_MARGIN}" width="100%" height="100%" fill="#fff"/>',
            f'<text class="name" x="0" y="20">{escape(inventory.name)}</text>',
            f'<text class="headline" x="0" y="42">{escape(summarize(inventory))}</text>',
            f'<g transform="translate(0 {_TITLE_HEIGHT})">',
            *_map_shapes(inventory_tree(inventory, in_download=in_download)),
            "</g>",
            f'<g transform="translate(0 {_TITLE_HEIGHT + _MAP_HEIGHT + 20})">',
            *_bar_shapes(bars),
            "</g>",
            "</svg>\n",
        )
    )


def stacked_bars(inventory: Inventory, *, in_download: bool) -> str:
    """Return only the bars, for a page."""
    bars = target_nodes(inventory, in_download=in_download)
    box = f"0 0 {_PICTURE_WIDTH} {_bars_height(bars)}"
    opening = f'<svg class="bars" viewBox="{box}" role="img">\n<style>{_STYLE}</style>'
    return "\n".join((opening, *_bar_shapes(bars), "</svg>"))


def _bars_height(bars: tuple[TreeNode, ...]) -> int:
    return _BAR_STEP * len(bars) + 4


def _map_shapes(root: TreeNode) -> Iterator[str]:
    whole = Rectangle(x=0, y=0, width=_PICTURE_WIDTH, height=_MAP_HEIGHT)
    for node, rectangle in _child_rectangles(root, whole):
        yield _box(node, rectangle)
        # A file has a caption and its targets; other bytes are one rectangle.
        if node.parts:
            yield _label(
                _ending(node.label, rectangle), rectangle, y=rectangle.y + 12, bright=False
            )
            inner = rectangle.inset(top=_CAPTION, around=_FRAME)
            for part, part_rectangle in _child_rectangles(node, inner):
                yield _box(part, part_rectangle)
                yield from _labels(part, part_rectangle)
        else:
            yield from _labels(node, rectangle)


def _child_rectangles(node: TreeNode, within: Rectangle) -> Iterator[tuple[TreeNode, Rectangle]]:
    weights = [part.weight for part in node.parts]
    yield from zip(node.parts, squarify(weights, within), strict=True)


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
            yield _box(part, Rectangle(x=x, y=top, width=width, height=_BAR))
            x += width
        yield f'<text x="{x + 6:.1f}" y="{middle}">{size_text(bar.weight)}</text>'


def _box(node: TreeNode, rectangle: Rectangle) -> str:
    return (
        f'<rect x="{rectangle.x:.1f}" y="{rectangle.y:.1f}" width="{rectangle.width:.1f}" '
        f'height="{rectangle.height:.1f}" fill="{node.color}">'
        # Browsers show the title as a tooltip, also without scripts.
        f"<title>{escape(node.title)}</title></rect>"
    )


def _labels(node: TreeNode, rectangle: Rectangle) -> Iterator[str]:
    """Yield the name, and the size below it, where they fit."""
    # White text can't be read on the light gray of other bytes.
    bright = node.color != REST_COLOR
    if rectangle.height >= _CAPTION:
        yield _label(node.label, rectangle, y=rectangle.y + 13, bright=bright)
    if rectangle.height >= 2 * _CAPTION:
        yield _label(size_text(node.weight), rectangle, y=rectangle.y + 28, bright=bright)


def _label(text: str, rectangle: Rectangle, *, y: float, bright: bool) -> str:
    if len(text) > _letters(rectangle):
        return ""
    shade = ' class="on"' if bright else ""
    return f'<text{shade} x="{rectangle.x + 4:.1f}" y="{y:.1f}">{escape(text)}</text>'


def _ending(path: str, rectangle: Rectangle) -> str:
    """Return the end of a path that fits, which tells more than its start."""
    letters = _letters(rectangle)
    return path if len(path) <= letters else f"…{path[len(path) - letters + 1 :]}"


def _letters(rectangle: Rectangle) -> int:
    """Return the number of letters that fit into a rectangle."""
    return max(1, int((rectangle.width - 6) / _LETTER))


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


def inventory_tree(inventory: Inventory, *, in_download: bool) -> TreeNode:
    """Return the whole, its files with device code, and their targets; the heaviest first.

    Args:
        inventory: to show.
        in_download: True to weigh the bytes of a wheel's download, False for the files' bytes. For
            the latter only files that can hold device code count: others aren't decompressed.
    """
    files = [_file_node(file, in_download=in_download) for file in inventory.files if file.rows()]
    # Files that can't hold device code were not decompressed: their size is unknown.
    if in_download or not inventory.is_wheel:
        whole = inventory.size
    else:
        whole = sum(file.size for file in inventory.files)
    parts = _heaviest((*files, _rest(whole, files)))
    return TreeNode(label=inventory.name, weight=whole, color=REST_COLOR, parts=parts)


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


def _file_node(file: File, *, in_download: bool) -> TreeNode:
    weight = (file.wheel_bytes or 0) if in_download else file.size
    parts = [
        TreeNode(
            label=part.name,
            note=" ".join(filter(None, (part.kind, part.note, f"{part.count} images"))),
            weight=(part.wheel_bytes or 0) if in_download else part.file_bytes,
            color=part.color,
        )
        for part in breakdown(file.rows())
    ]
    nodes = _heaviest((*parts, _rest(weight, parts)))
    return TreeNode(label=file.path, weight=weight, color=REST_COLOR, parts=nodes)


def _rest(whole: int, parts: Iterable[TreeNode]) -> TreeNode:
    left = max(0, whole - sum(part.weight for part in parts))
    return TreeNode(label=REST_LABEL, weight=left, color=REST_COLOR)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Rectangle:
    """A rectangle of the picture."""

    x: float
    y: float
    width: float
    height: float

    @property
    def area(self) -> float:
        """Width times height."""
        return self.width * self.height

    def inset(self, *, top: float, around: float) -> Rectangle:
        """Return the rectangle within a frame; its sides are never negative."""
        return Rectangle(
            x=self.x + around,
            y=self.y + top,
            width=max(0.0, self.width - 2 * around),
            height=max(0.0, self.height - top - around),
        )


def squarify(weights: Sequence[float], within: Rectangle) -> Iterator[Rectangle]:
    """Yield one rectangle for each weight, in their order; together they fill the given one.

    Args:
        weights: positive, the largest first, or the rectangles get oblong.
        within: the rectangle to fill.
    """
    total = sum(weights)
    # Weights become areas once, so that rows can be compared with the space that is left.
    areas = [weight * within.area / total for weight in weights]
    while areas:
        side = min(within.width, within.height)
        count = _row_length(areas, side)
        row, areas = areas[:count], areas[count:]
        yield from _row_rectangles(row, within)
        within = _remaining_rectangle(sum(row), within)


def _row_length(areas: Sequence[float], side: float) -> int:
    """Return the number of rectangles in the next row."""
    count = 1
    # Equal ratios go on, so that equal weights form a grid.
    while count < len(areas) and _worst(areas[: count + 1], side) <= _worst(areas[:count], side):
        count += 1
    return count


def _worst(row: Sequence[float], side: float) -> float:
    """Return the ratio of the most oblong rectangle's sides."""
    thickness = _quotient(sum(row), side)
    return max(max(_quotient(thickness**2, area), _quotient(area, thickness**2)) for area in row)


def _row_rectangles(row: Sequence[float], within: Rectangle) -> Iterator[Rectangle]:
    """Yield the rectangles of a row along the shorter side."""
    upright = within.width >= within.height
    side = min(within.width, within.height)
    # Rounding of tiny areas may go beyond both sides.
    thickness = min(_quotient(sum(row), side), max(within.width, within.height))
    offset = 0.0
    for area in row:
        length = min(_quotient(area, thickness), max(0.0, side - offset))
        if upright:
            yield Rectangle(x=within.x, y=within.y + offset, width=thickness, height=length)
        else:
            yield Rectangle(x=within.x + offset, y=within.y, width=length, height=thickness)
        offset += length


def _remaining_rectangle(area: float, within: Rectangle) -> Rectangle:
    """Return the rectangle beside a row of this area."""
    used = _quotient(area, min(within.width, within.height))
    if within.width >= within.height:
        # Rounding may use up more than the width.
        x, width = within.x + used, max(0.0, within.width - used)
        return Rectangle(x=x, y=within.y, width=width, height=within.height)
    y, height = within.y + used, max(0.0, within.height - used)
    return Rectangle(x=within.x, y=y, width=within.width, height=height)


def _quotient(part: float, whole: float) -> float:
    """Divide; return 0 for a side of 0, where nothing can be seen."""
    return part / whole if whole > 0 else 0.0
