"""Progress of long work: a live display on a terminal, plain lines in a log, or nothing."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Protocol

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console


class ProgressSink(Protocol):
    """A receiver of progress; several threads may call it at once."""

    def begin_stage(self, title: str, total: int) -> None:
        """Begin a stage of ``total`` steps; 0 if nobody can count them."""
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
    """A progress bar per stage on a terminal."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=None, visible=False)

    def begin_stage(self, title: str, total: int) -> None:
        """Begin a stage."""
        # A bar without a total moves, so a reader sees that work goes on.
        self._task = self._progress.add_task(title, total=total or None, step="")

    def finish_step(self, label: str, seconds: float) -> None:
        """Count a finished step."""
        # rich has a lock of its own.
        self._progress.update(self._task, advance=1, step=f"{label} ({seconds:.1f} s)")

    def note(self, text: str) -> None:
        """Show a line."""
        self._progress.console.print(text, markup=False, highlight=False, emoji=False)


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
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[step]}", style="dim", markup=False),
    )
    with Progress(*columns, console=console, transient=quiet) as progress:
        yield LiveDisplay(progress)
