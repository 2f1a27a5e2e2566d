"""Output on a terminal: the progress of long work, and tables without lines.

Progress is a live display, plain lines in a log, or nothing. Tables are whole from 60 columns on: a
narrow terminal gets fewer columns, never numbers that are cut. Bars shrink; then columns of rank 2
and more are left out, the highest rank first; then names continue on the next line; then the
columns of rank 1 go.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from rich import table as rich_table
from rich.cells import cell_len
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.bar import Bar
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.progress import TaskID


class ProgressSink(Protocol):
    """A receiver of progress; several threads may call it at once."""

    def begin_stage(self, title: str, total: int, done: str) -> None:
        """Begin a stage of ``total`` steps; 0 if their number is unknown.

        Args:
            title: shown while the stage runs.
            done: said of its end, with a verb in the past; ``{}`` for the number of steps.
        """
        ...

    def start_step(self, label: str) -> None:
        """Show the step that runs, if steps are slow and run one at a time."""
        ...

    def finish_step(self, label: str, seconds: float) -> None:
        """Count a finished step, which took ``seconds`` of wall time."""
        ...

    def note(self, text: str) -> None:
        """Show a line that belongs to no step."""
        ...


class SilentProgress:
    """A receiver that shows nothing: for ``--quiet`` and tests."""

    def begin_stage(self, title: str, total: int, done: str) -> None:
        """Begin a stage."""

    def start_step(self, label: str) -> None:
        """Show the step that runs."""

    def finish_step(self, label: str, seconds: float) -> None:
        """Count a finished step."""

    def note(self, text: str) -> None:
        """Show a line."""


class PlainLines(SilentProgress):
    """A log on ``console``: a line for each step, or for each stage whose steps are unknown."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lock = threading.Lock()
        self._sentence, self._done, self._total, self._began = "", 0, 0, 0.0

    def begin_stage(self, title: str, total: int, done: str) -> None:
        """Begin a stage, and end the one before."""
        del title
        self.end_stage()
        self._sentence, self._done, self._total, self._began = done, 0, total, time.monotonic()

    def end_stage(self) -> None:
        """Print the line of a stage without steps."""
        if self._sentence and not self._total:
            self.note(f"{self._sentence.format(0)} in {time.monotonic() - self._began:.1f} s")
        self._sentence = ""

    def finish_step(self, label: str, seconds: float) -> None:
        """Count a finished step."""
        with self._lock:
            # Steps end in several threads; the counter and its line belong together.
            self._done += 1
            verb = self._sentence.partition(" {}")[0]
            self.note(f"{verb} {label} ({self._done} of {self._total}, {seconds:.1f} s)")

    def note(self, text: str) -> None:
        """Show a line."""
        # No markup: names of files and steps may have brackets.
        self._console.print(text, markup=False, highlight=False, emoji=False, soft_wrap=True)


class LiveDisplay:
    """The running stage on a terminal; each finished stage leaves one line."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task: TaskID | None = None

    def begin_stage(self, title: str, total: int, done: str) -> None:
        """Begin a stage."""
        self.end_stage()
        # A bar without a total moves, so a reader sees that work goes on.
        self._task = self._progress.add_task(title, total=total or None, step="", done=done)

    def start_step(self, label: str) -> None:
        """Show the step that runs."""
        if self._task is not None:
            self._progress.update(self._task, step=label)

    def finish_step(self, label: str, seconds: float) -> None:
        """Count a finished step."""
        # rich has a lock of its own.
        if self._task is not None:
            self._progress.update(self._task, advance=1, step=f"{label} ({seconds:.1f} s)")
            # Time after the last step doesn't count for the stage.
            if self._progress.finished:
                self.end_stage()

    def end_stage(self) -> None:
        """Replace the bar by a line with the steps and the time."""
        if self._task is None:
            return
        (task,) = (each for each in self._progress.tasks if each.id == self._task)
        self._progress.remove_task(self._task)
        self._task = None
        done = task.fields["done"].format(f"{task.completed:.0f}")
        done = done.removesuffix("s") if task.completed == 1 else done
        self.note(f"{done} in {task.elapsed or 0:.1f} s", style="dim")

    def note(self, text: str, *, style: str | None = None) -> None:
        """Show a line."""
        # No markup: names of files and steps may have brackets.
        self._progress.console.print(text, markup=False, highlight=False, emoji=False, style=style)


@contextlib.contextmanager
def progress_display(console: Console, *, quiet: bool = False) -> Iterator[ProgressSink]:
    """Show progress on ``console``: live on a terminal, plain lines elsewhere.

    Args:
        quiet: leave nothing behind: no lines elsewhere, and no display after its end.
    """
    # A log would be full of escape sequences, and of the same line a hundred times.
    if not console.is_terminal:
        lines = PlainLines(console)
        yield SilentProgress() if quiet else lines
        # Not after a failure: the line would say that the stage is done.
        lines.end_stage()
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=16),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        # The names of files are longer than a terminal is wide: they must not push out the bar.
        TextColumn(
            "{task.fields[step]}",
            style="dim",
            markup=False,
            table_column=rich_table.Column(ratio=1, no_wrap=True, overflow="ellipsis"),
        ),
    )
    with Progress(*columns, console=console, transient=True, expand=True) as progress:
        display = LiveDisplay(progress)
        yield display
        # After a failure the bar only goes: a line would say that the stage is done.
        if not quiet:
            display.end_stage()


class ActivityBar:
    """A bar for work whose parts are counted in bytes; it moves until the first part is done."""

    def __init__(self, console: Console, text: str) -> None:
        # A line that wraps would be left on the screen by each turn of the spinner.
        name = rich_table.Column(ratio=1, no_wrap=True, overflow="ellipsis")
        title = TextColumn("{task.description}", markup=False, table_column=name)
        columns = (SpinnerColumn(), BarColumn(bar_width=16), title)
        self._progress = Progress(*columns, console=console, transient=True, expand=True)
        self._task = self._progress.add_task(text, total=None)
        self.start, self.stop = self._progress.start, self._progress.stop

    def advance(self, size: int, whole: int) -> None:
        """Count the bytes of a finished part, of the bytes of all."""
        # Another whole begins another series of parts.
        if self._progress.tasks[0].total != whole:
            self._progress.reset(self._task, total=whole)
        self._progress.advance(self._task, size)


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


class FittingTable:
    """A table that fits the terminal's width; each row has a cell for each column."""

    def __init__(self, *columns: Column) -> None:
        self.columns = columns
        self.rows: list[_Row] = []

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
        least = self._least_widths(natural)
        for least_rank, widths in ((2, natural), (1, least)):
            while _total_width(shown, widths) > width:
                optional = [place for place in shown if self.columns[place].rank >= least_rank]
                if not optional:
                    break
                # Of equal ranks, the last: columns on the right explain those on the left.
                shown.remove(max(optional, key=lambda place: (self.columns[place].rank, place)))
        free = width - _total_width(shown, least)
        table = Table(
            box=None,
            pad_edge=False,
            padding=(0, _GAP, 0, 0),
            header_style="dim",
            # Without any heading rich would still print an empty line.
            show_header=any(self.columns[place].heading for place in shown),
        )
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
            # rich would read "[name]" in a string as markup, and leave it out.
            cells = (row[place] for place in shown)
            table.add_row(*(Text(one) if isinstance(one, str) else one for one in cells))
        return table

    def _natural_width(self, place: int) -> int:
        """Return the width of whole names, or of the least bar; 0 without words."""
        column = self.columns[place]
        # Only such a column has cells without words.
        if column.is_bar:
            return _MIN_BAR
        cells: Sequence[str] = [column.heading, *(str(row[place]) for row in self.rows)]
        return max(map(cell_len, cells))

    def _least_widths(self, natural: Sequence[int]) -> list[int]:
        """Return the least widths: names may continue on the next line."""
        return [
            min(width, _MIN_NAME) if column.folds else width
            for column, width in zip(self.columns, natural, strict=True)
        ]


def _total_width(places: Sequence[int], widths: Sequence[int]) -> int:
    return sum(widths[place] for place in places) + _GAP * (len(places) - 1)
