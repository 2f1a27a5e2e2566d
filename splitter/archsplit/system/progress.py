"""Tell a person what is going on: a live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Protocol

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console


class ProgressSink(Protocol):
    """Where a stage reports; may be called from several threads at once."""

    def begin_stage(self, title: str, total: int) -> None:
        """A stage of ``total`` steps starts."""
        ...

    def finish_step(self, label: str, seconds: float) -> None:
        """One step is done, after so many wall seconds."""
        ...

    def note(self, text: str) -> None:
        """Something that a person wants to know, but that is no step."""
        ...


class SilentProgress:
    """Says nothing: for tests, and for ``--quiet``."""

    def begin_stage(self, title: str, total: int) -> None:
        """See `ProgressSink.begin_stage`."""

    def finish_step(self, label: str, seconds: float) -> None:
        """See `ProgressSink.finish_step`."""

    def note(self, text: str) -> None:
        """See `ProgressSink.note`."""


class PlainLines:
    """One line a step on ``console`` (standard error), for logs."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lock = threading.Lock()
        self._title, self._done, self._total = "", 0, 0

    def begin_stage(self, title: str, total: int) -> None:
        """See `ProgressSink.begin_stage`."""
        self._title, self._done, self._total = title, 0, total

    def finish_step(self, label: str, seconds: float) -> None:
        """See `ProgressSink.finish_step`."""
        with self._lock:
            self._done += 1
            self._line(f"{self._title} [{self._done}/{self._total}] {label} ({seconds:.1f} s)")

    def note(self, text: str) -> None:
        """See `ProgressSink.note`."""
        self._line(text)

    def _line(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, emoji=False, soft_wrap=True)


class LiveDisplay:
    """A bar per stage on a terminal."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=None, visible=False)

    def begin_stage(self, title: str, total: int) -> None:
        """See `ProgressSink.begin_stage`."""
        self._task = self._progress.add_task(title, total=total, step="")

    def finish_step(self, label: str, seconds: float) -> None:
        """See `ProgressSink.finish_step`."""
        self._progress.update(self._task, advance=1, step=f"{label} ({seconds:.1f} s)")

    def note(self, text: str) -> None:
        """See `ProgressSink.note`."""
        self._progress.console.print(text, markup=False, highlight=False, emoji=False)


@contextlib.contextmanager
def progress_display(console: Console) -> Iterator[ProgressSink]:
    """Choose the display for ``console``: live on a terminal, plain lines elsewhere."""
    if not console.is_terminal:
        yield PlainLines(console)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[step]}", style="dim", markup=False),
    )
    with Progress(*columns, console=console) as progress:
        yield LiveDisplay(progress)
