"""What the pictures show, as a tree with weights.

Rectangles whose areas are weights, as square as can be.

The method is "squarified treemaps" (Bruls, Huizing, van Wijk, 2000): rows are filled along the
shorter side for as long as that makes their worst rectangle less oblong.

An inventory as SVG: a treemap, and a stacked bar for each target.
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

_MOST_SEGMENTS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeNode:
    """Something with a weight in bytes, and the parts that have it together, or none."""

    label: str
    weight: int
    colour: str
    note: str = ""
    parts: tuple[TreeNode, ...] = ()

    @property
    def title(self) -> str:
        """What a person is told who points at it."""
        return ", ".join(filter(None, (self.label, self.note, size_text(self.weight))))


def inventory_tree(inventory: Inventory, *, packed: bool) -> TreeNode:
    """The whole, its files with device code, and in each the targets; the heaviest first.

    Args:
        inventory: what to show.
        packed: whether to weigh the bytes of a wheel's download, or those of the files. In the
            latter only files that can hold device code count: others aren't unpacked to be seen.
    """
    files = [_file_node(file, packed=packed) for file in inventory.files if file.rows()]
    if packed or not inventory.is_wheel:
        whole = inventory.size
    else:
        whole = sum(file.size for file in inventory.files)
    parts = _heaviest((*files, _rest(whole, files)))
    return TreeNode(label=inventory.name, weight=whole, colour=REST_COLOR, parts=parts)


def target_nodes(inventory: Inventory, *, packed: bool) -> tuple[TreeNode, ...]:
    """Every target with the places that its code is in; the targets in their own order."""
    places: dict[str, list[TreeNode]] = {row.target or row.kind: [] for row in inventory.rows()}
    for file in inventory.files:
        for row in file.rows():
            label = row.target or row.kind
            node = TreeNode(
                label=file.path,
                note=" ".join(filter(None, (row.kind, row.section, row.compression))),
                weight=(row.wheel_bytes or 0) if packed else row.file_bytes,
                colour=target_color(label),
            )
            places[label].append(node)
    return tuple(_joined(label, _heaviest(nodes)) for label, nodes in places.items())


def _file_node(file: File, *, packed: bool) -> TreeNode:
    weight = (file.wheel_bytes or 0) if packed else file.size
    parts = [
        TreeNode(
            label=part.label,
            note=" ".join(filter(None, (part.kind, part.note, f"{part.count} images"))),
            weight=(part.wheel_bytes or 0) if packed else part.file_bytes,
            colour=part.colour,
        )
        for part in breakdown(file.rows())
    ]
    nodes = _heaviest((*parts, _rest(weight, parts)))
    return TreeNode(label=file.path, weight=weight, colour=REST_COLOR, parts=nodes)


def _rest(whole: int, parts: Iterable[TreeNode]) -> TreeNode:
    left = max(0, whole - sum(part.weight for part in parts))
    return TreeNode(label=REST_LABEL, weight=left, colour=REST_COLOR)


def _joined(label: str, nodes: tuple[TreeNode, ...]) -> TreeNode:
    shown, others = nodes[:_MOST_SEGMENTS], nodes[_MOST_SEGMENTS:]
    if others:
        weight = sum(node.weight for node in others)
        note = f"{len(others)} more places"
        shown = (*shown, TreeNode(label=note, weight=weight, colour=target_color(label)))
    weight = sum(node.weight for node in shown)
    return TreeNode(label=label, weight=weight, colour=target_color(label), parts=shown)


def _heaviest(nodes: Iterable[TreeNode]) -> tuple[TreeNode, ...]:
    """Those that weigh anything, the heaviest first."""
    return tuple(sorted((node for node in nodes if node.weight > 0), key=lambda it: -it.weight))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rectangle:
    """A place on the picture."""

    x: float
    y: float
    width: float
    height: float

    @property
    def area(self) -> float:
        """Its width times its height."""
        return self.width * self.height

    def inset(self, *, top: float, around: float) -> Rectangle:
        """What is left of it within a frame; nothing rather than less than nothing."""
        return Rectangle(
            x=self.x + around,
            y=self.y + top,
            width=max(0.0, self.width - 2 * around),
            height=max(0.0, self.height - top - around),
        )


def squarify(weights: Sequence[float], within: Rectangle) -> Iterator[Rectangle]:
    """One rectangle a weight, in their order; together they fill the one given.

    Args:
        weights: positive, the largest first, or the rectangles get oblong.
        within: the place to fill.
    """
    total = sum(weights)
    areas = [weight * within.area / total for weight in weights]
    while areas:
        side = min(within.width, within.height)
        count = _row_length(areas, side)
        row, areas = areas[:count], areas[count:]
        yield from _laid(row, within)
        within = _beside(sum(row), within)


def _row_length(areas: Sequence[float], side: float) -> int:
    """How many rectangles make the next row."""
    count = 1
    while count < len(areas) and _worst(areas[: count + 1], side) <= _worst(areas[:count], side):
        count += 1
    return count


def _worst(row: Sequence[float], side: float) -> float:
    """The most oblong rectangle's longer side by its shorter one."""
    thickness = _quotient(sum(row), side)
    return max(max(_quotient(thickness**2, area), _quotient(area, thickness**2)) for area in row)


def _laid(row: Sequence[float], within: Rectangle) -> Iterator[Rectangle]:
    """A row along the shorter side."""
    upright = within.width >= within.height
    thickness = _quotient(sum(row), min(within.width, within.height))
    ahead = 0.0
    for area in row:
        length = _quotient(area, thickness)
        if upright:
            yield Rectangle(x=within.x, y=within.y + ahead, width=thickness, height=length)
        else:
            yield Rectangle(x=within.x + ahead, y=within.y, width=length, height=thickness)
        ahead += length


def _beside(area: float, within: Rectangle) -> Rectangle:
    """What a row of this area leaves."""
    used = _quotient(area, min(within.width, within.height))
    if within.width >= within.height:
        x, width = within.x + used, max(0.0, within.width - used)
        return Rectangle(x=x, y=within.y, width=width, height=within.height)
    y, height = within.y + used, max(0.0, within.height - used)
    return Rectangle(x=within.x, y=y, width=within.width, height=height)


def _quotient(part: float, whole: float) -> float:
    """0 where a place has no area left: what lies there can't be seen anyway."""
    return part / whole if whole > 0 else 0.0


PICTURE_WIDTH = 1120
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
    frame = f"{-_MARGIN} {-_MARGIN} {PICTURE_WIDTH + 2 * _MARGIN} {height + 2 * _MARGIN}"
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{frame}" '
            f'width="{PICTURE_WIDTH + 2 * _MARGIN}" height="{height + 2 * _MARGIN}">',
            f"<style>{_STYLE}</style>",
            f'<rect x="{-_MARGIN}" y="{-_MARGIN}" width="100%" height="100%" fill="#fff"/>',
            f'<text class="name" x="0" y="20">{escape(inventory.name)}</text>',
            f'<text class="headline" x="0" y="42">{escape(summarize(inventory))}</text>',
            f'<g transform="translate(0 {_TITLE_HEIGHT})">',
            *_map_shapes(inventory_tree(inventory, packed=packed)),
            "</g>",
            f'<g transform="translate(0 {_TITLE_HEIGHT + _MAP_HEIGHT + 20})">',
            *_bar_shapes(bars),
            "</g>",
            "</svg>\n",
        )
    )


def treemap(inventory: Inventory, *, packed: bool) -> str:
    """The treemap alone, to stand in a page."""
    shapes = _map_shapes(inventory_tree(inventory, packed=packed))
    return "\n".join((_opening("treemap", _MAP_HEIGHT), *shapes, "</svg>"))


def stacked_bars(inventory: Inventory, *, packed: bool) -> str:
    """The bars alone, to stand in a page."""
    bars = target_nodes(inventory, packed=packed)
    return "\n".join((_opening("bars", _bars_height(bars)), *_bar_shapes(bars), "</svg>"))


def _opening(name: str, height: int) -> str:
    box = f"0 0 {PICTURE_WIDTH} {height}"
    return f'<svg class="{name}" viewBox="{box}" role="img">\n<style>{_STYLE}</style>'


def _bars_height(bars: tuple[TreeNode, ...]) -> int:
    return _BAR_STEP * len(bars) + 4


def _map_shapes(root: TreeNode) -> Iterator[str]:
    whole = Rectangle(x=0, y=0, width=PICTURE_WIDTH, height=_MAP_HEIGHT)
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


def _placed(node: TreeNode, within: Rectangle) -> Iterator[tuple[TreeNode, Rectangle]]:
    weights = [part.weight for part in node.parts]
    yield from zip(node.parts, squarify(weights, within), strict=True)


def _bar_shapes(bars: tuple[TreeNode, ...]) -> Iterator[str]:
    longest = max((bar.weight for bar in bars), default=0)
    room = PICTURE_WIDTH - _LABEL_WIDTH - _SIZE_WIDTH
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


def _box(node: TreeNode, place: Rectangle) -> str:
    return (
        f'<rect x="{place.x:.1f}" y="{place.y:.1f}" width="{place.width:.1f}" '
        f'height="{place.height:.1f}" fill="{node.colour}">'
        f"<title>{escape(node.title)}</title></rect>"
    )


def _labels(node: TreeNode, place: Rectangle) -> Iterator[str]:
    """The name, and under it the size, where there is room."""
    bright = node.colour != REST_COLOR
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
