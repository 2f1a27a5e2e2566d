"""What the pictures show, as a tree with weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from archsplit.inspect.breakdown import REST_LABEL, breakdown
from archsplit.inspect.colours import REST, colour_of
from archsplit.system.units import size_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from archsplit.devicecode.inventory import File, Inventory

_MOST_SEGMENTS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Something with a weight in bytes, and the parts that have it together, or none."""

    label: str
    weight: int
    colour: str
    note: str = ""
    parts: tuple[Node, ...] = ()

    @property
    def title(self) -> str:
        """What a person is told who points at it."""
        return ", ".join(filter(None, (self.label, self.note, size_text(self.weight))))


def tree_of(inventory: Inventory, *, packed: bool) -> Node:
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
    return Node(label=inventory.name, weight=whole, colour=REST, parts=parts)


def target_nodes(inventory: Inventory, *, packed: bool) -> tuple[Node, ...]:
    """Every target with the places that its code is in; the targets in their own order."""
    places: dict[str, list[Node]] = {row.target or row.kind: [] for row in inventory.rows()}
    for file in inventory.files:
        for row in file.rows():
            label = row.target or row.kind
            node = Node(
                label=file.path,
                note=" ".join(filter(None, (row.kind, row.section, row.compression))),
                weight=(row.wheel_bytes or 0) if packed else row.file_bytes,
                colour=colour_of(label),
            )
            places[label].append(node)
    return tuple(_joined(label, _heaviest(nodes)) for label, nodes in places.items())


def _file_node(file: File, *, packed: bool) -> Node:
    weight = (file.wheel_bytes or 0) if packed else file.size
    parts = [
        Node(
            label=part.label,
            note=" ".join(filter(None, (part.kind, part.note, f"{part.count} images"))),
            weight=(part.wheel_bytes or 0) if packed else part.file_bytes,
            colour=part.colour,
        )
        for part in breakdown(file.rows())
    ]
    nodes = _heaviest((*parts, _rest(weight, parts)))
    return Node(label=file.path, weight=weight, colour=REST, parts=nodes)


def _rest(whole: int, parts: Iterable[Node]) -> Node:
    left = max(0, whole - sum(part.weight for part in parts))
    return Node(label=REST_LABEL, weight=left, colour=REST)


def _joined(label: str, nodes: tuple[Node, ...]) -> Node:
    shown, others = nodes[:_MOST_SEGMENTS], nodes[_MOST_SEGMENTS:]
    if others:
        weight = sum(node.weight for node in others)
        note = f"{len(others)} more places"
        shown = (*shown, Node(label=note, weight=weight, colour=colour_of(label)))
    weight = sum(node.weight for node in shown)
    return Node(label=label, weight=weight, colour=colour_of(label), parts=shown)


def _heaviest(nodes: Iterable[Node]) -> tuple[Node, ...]:
    """Those that weigh anything, the heaviest first."""
    return tuple(sorted((node for node in nodes if node.weight > 0), key=lambda it: -it.weight))
