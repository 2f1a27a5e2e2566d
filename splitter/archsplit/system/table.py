"""Tables without lines for a terminal, whole from 60 columns on.

In go columns and rows; out comes a renderable for rich. A narrow terminal gets fewer columns, never
numbers that are cut. Bars shrink; then columns of rank 2 and more are left out, the highest rank
first; then names continue on the next line; then the columns of rank 1 go.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.bar import Bar
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

_GAP = 2
_MAX_BAR, _MIN_BAR = 24, 8
_MIN_NAME = 16
"""Letters of a name on one line, before columns are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table.

    Attributes:
        heading: the words above it.
        rank: 0 for a column that stays; 1 for one that goes where names of 16 letters have no room;
            more for one that goes where whole names have none.
        is_number: True to align it on the right.
        is_bar: True if its cells are bars.
        folds: True for names that may continue on the next line.
    """

    heading: str = ""
    rank: int = 0
    is_number: bool = True
    is_bar: bool = False
    folds: bool = False


def name_column(heading: str) -> Column:
    """Return a column of names, which may continue on the next line."""
    return Column(heading=heading, is_number=False, folds=True)


def word_column(heading: str, *, rank: int = 0) -> Column:
    """Return a column of short words."""
    return Column(heading=heading, is_number=False, rank=rank)


BAR = Column(is_bar=True, rank=1)
"""A column of bars, each a `rich.bar.Bar` without a width."""

_Row = tuple["str | Text | Bar", ...]


@dataclass(frozen=True, slots=True)
class FittingTable:
    """A table that fits the terminal's width; ``columns`` and ``rows`` have the same length."""

    columns: tuple[Column, ...]
    rows: list[_Row] = field(default_factory=list)

    def add_row(self, *cells: str | Text | Bar) -> None:
        """Add a row, with a cell for each column."""
        self.rows.append(cells)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table in the width of the terminal."""
        del console
        yield self._table(options.max_width)

    def _table(self, width: int) -> Table:
        natural = [self._natural_width(place) for place in range(len(self.columns))]
        shown = [place for place, size in enumerate(natural) if size]
        least = self._least(natural)
        for least_rank, widths in ((2, natural), (1, least)):
            while _sum(shown, widths) > width:
                optional = [place for place in shown if self.columns[place].rank >= least_rank]
                if not optional:
                    break
                # Of equal ranks, the last: columns on the right explain those on the left.
                shown.remove(max(optional, key=lambda place: (self.columns[place].rank, place)))
        free = width - _sum(shown, least)
        table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim")
        for place in shown:
            column = self.columns[place]
            # From left to right, so that names come before bars: these only illustrate numbers.
            most = _MAX_BAR if column.is_bar else natural[place]
            extra = min(free, most - least[place])
            free -= extra
            table.add_column(
                column.heading,
                justify="right" if column.is_number else "left",
                width=least[place] + extra,
                no_wrap=not column.folds,
                overflow="fold" if column.folds else "ellipsis",
            )
        for row in self.rows:
            table.add_row(*(_plain(row[place]) for place in shown))
        return table

    def _natural_width(self, place: int) -> int:
        """Return the width of whole names, or of the least bar; 0 without words."""
        column = self.columns[place]
        if column.is_bar:
            return _MIN_BAR
        cells: Sequence[str] = [column.heading, *(_words(row[place]) for row in self.rows)]
        return max(map(cell_len, cells))

    def _least(self, natural: Sequence[int]) -> list[int]:
        """Return the least widths: names may continue on the next line."""
        return [
            min(width, _MIN_NAME) if column.folds else width
            for column, width in zip(self.columns, natural, strict=True)
        ]


def _sum(places: Sequence[int], widths: Sequence[int]) -> int:
    return sum(widths[place] for place in places) + _GAP * (len(places) - 1)


def _plain(cell: str | Text | Bar) -> RenderableType:
    # rich would read "[name]" in a string as markup, and leave it out.
    return Text(cell) if isinstance(cell, str) else cell


def _words(cell: str | Text | Bar) -> str:
    return "" if isinstance(cell, Bar) else str(cell)
