"""Progress of long work: a live display on a terminal, plain lines in a log, or nothing."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Protocol

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich import table as rich_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console
    from rich.progress import TaskID


class ProgressSink(Protocol):
    """A receiver of progress; several threads may call it at once."""

    def begin_stage(self, title: str, total: int) -> None:
        """Begin a stage of ``total`` steps; 0 if nobody can count them."""
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

    def begin_stage(self, title: str, total: int) -> None:
        """Begin a stage."""

    def start_step(self, label: str) -> None:
        """Show the step that runs."""

    def finish_step(self, label: str, seconds: float) -> None:
        """Count a finished step."""

    def note(self, text: str) -> None:
        """Show a line."""


class PlainLines:
    """A log with one line per step on ``console``, which is standard error."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lock = threading.Lock()
        self._title, self._done, self._total = "", 0, 0

    def begin_stage(self, title: str, total: int) -> None:
        """Begin a stage."""
        self._title, self._done, self._total = title, 0, total

    def start_step(self, label: str) -> None:
        """Show nothing: a log has a line for each finished step."""

    def finish_step(self, label: str, seconds: float) -> None:
        """Count a finished step."""
        with self._lock:
            # Steps end in several threads; the counter and its line belong together.
            self._done += 1
            self._print_line(
                f"{self._title} [{self._done}/{self._total}] {label} ({seconds:.1f} s)"
            )

    def note(self, text: str) -> None:
        """Show a line."""
        self._print_line(text)

    def _print_line(self, text: str) -> None:
        # No markup: names of files and steps may have brackets.
        self._console.print(text, markup=False, highlight=False, emoji=False, soft_wrap=True)


class LiveDisplay:
    """The running stage on a terminal; each finished stage leaves one line."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task: TaskID | None = None

    def begin_stage(self, title: str, total: int) -> None:
        """Begin a stage."""
        self.end_stage()
        # A bar without a total moves, so a reader sees that work goes on.
        self._task = self._progress.add_task(title, total=total or None, step="")

    def start_step(self, label: str) -> None:
        """Show the step that runs."""
        if self._task is not None:
            self._progress.update(self._task, step=label)

    def finish_step(self, label: str, seconds: float) -> None:
        """Count a finished step."""
        # rich has a lock of its own.
        if self._task is not None:
            self._progress.update(self._task, advance=1, step=f"{label} ({seconds:.1f} s)")
            # What follows the last step is no part of the stage's time.
            if self._progress.finished:
                self.end_stage()

    def note(self, text: str) -> None:
        """Show a line."""
        self._print(text)

    def end_stage(self) -> None:
        """Replace the bar by a line with the steps and the time."""
        if self._task is None:
            return
        (task,) = (each for each in self._progress.tasks if each.id == self._task)
        self._progress.remove_task(self._task)
        self._task = None
        count = f"{task.completed:.0f} in " if task.total else ""
        self._print(f"{task.description}: {count}{task.elapsed or 0:.1f} s", style="dim")

    def _print(self, text: str, *, style: str | None = None) -> None:
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
        yield SilentProgress() if quiet else PlainLines(console)
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
