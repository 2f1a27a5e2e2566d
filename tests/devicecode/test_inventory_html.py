"""The table of an inventory in a notebook."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from typing import TYPE_CHECKING

from archsplit.devicecode import model
from archsplit.devicecode.model import File, Inventory
from archsplit.inspect.inspect import InspectRequest, read_inventory

if TYPE_CHECKING:
    import pytest

    from compiled_samples import Samples


class Cells(HTMLParser):
    """The tags and the texts of a table's cells, by the parser of the standard library."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.rows: list[list[str]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert attrs == []
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in {"td", "th"}:
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data


def test_a_notebook_shows_files_targets_and_bytes(samples: Samples) -> None:
    inventory = read_inventory(InspectRequest(subject=str(samples / "pkg-1.0-py3-none-any.whl")))
    cells = Cells(inventory._repr_html_())
    assert cells.rows[0] == ["file", "target", "kind", "images", "download"]
    assert cells.rows[-1][0] == "total"
    shown = {(path, target, kind) for path, target, kind, _, _ in cells.rows[1:-1]}
    assert shown == {
        (file.path, row.target, row.kind) for file in inventory.files for row in file.rows()
    }
    assert sum(int(count) for _, _, _, count, _ in cells.rows[1:-1]) == sum(
        row.count for row in inventory.rows()
    )


def test_names_and_problems_do_not_become_markup() -> None:
    bad = File(path="<script>a.so", size=1, wheel_bytes=None, units=(), problem="<b>&damaged</b>")
    inventory = Inventory(path="<i>x", sha256=None, size=1, is_wheel=False, files=(bad,))
    cells = Cells(inventory._repr_html_())
    assert cells.tags <= {"table", "caption", "thead", "tbody", "tr", "th", "td"}
    assert cells.rows[1][:3] == ["<script>a.so", "", "<b>&damaged</b>"]
    assert "<caption>&lt;i&gt;x</caption>" in inventory._repr_html_()


def test_a_long_table_is_cut(samples: Samples, monkeypatch: pytest.MonkeyPatch) -> None:
    inventory = read_inventory(InspectRequest(subject=str(samples / "libkernels.so")))
    whole = Cells(inventory._repr_html_()).rows
    monkeypatch.setattr(model, "_MAX_HTML_ROWS", 1)
    cut = Cells(replace(inventory)._repr_html_()).rows
    assert cut[1] == whole[1]
    assert cut[2][0] == f"… and {len(whole) - 3} more rows"
    assert len(cut) == 4
