"""The result of an inspection: an inventory, and its worth for GPUs, in all its forms."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from archsplit.inspect.breakdown import breakdown, summarize
from archsplit.inspect.html import inventory_page
from archsplit.inspect.json import inventory_json
from archsplit.inspect.svg import stacked_bars
from archsplit.system.units import size_text

if TYPE_CHECKING:
    from archsplit.devicecode.model import Inventory
    from archsplit.devicecode.stats import DeviceUsage


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """Device code, and what GPUs can use of it.

    Attributes:
        devices: one for each capability that the inventory was judged for.
    """

    inventory: Inventory
    devices: tuple[DeviceUsage, ...]

    def as_json(self) -> str:
        """Return the document that ``archsplit inspect --json`` prints."""
        return inventory_json(self.inventory, self.devices)

    def as_html(self) -> str:
        """Return the page that ``archsplit inspect --html`` writes."""
        return inventory_page(self.inventory, self.devices)

    def _repr_html_(self) -> str:
        """Return a picture and a table for Jupyter."""
        # Labels and names come from other people's wheels: all are escaped.
        cells = [
            (part.label, part.kind, str(part.count), size_text(part.weight))
            for part in breakdown(self.inventory.rows())
        ]
        rows = "".join(
            f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in cells
        )
        title = f"<b>{escape(self.inventory.name)}</b>: {escape(summarize(self.inventory))}"
        if not cells:
            return f"<p>{title}</p>"
        picture = stacked_bars(self.inventory, in_download=self.inventory.is_wheel)
        head = "<tr><th>target</th><th>kind</th><th>images</th><th>size</th></tr>"
        return f"<p>{title}</p>{picture}<table>{head}{rows}</table>"
