"""Output in which no text from a file can give a command to the terminal.

Names of members, METADATA and an index's messages come from files that anyone may have written.
`printable` is the one escaper: control characters (ESC and C1 are among them), marks that turn the
direction of writing, and separators of lines become visible. `SafeStream` applies it to all that is
printed, `SafeConsole` to all that rich renders, whose own colors stay.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.segment import Segment

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import IO, TextIO

_ORDINARY = re.compile(r"[ -~\n\t]*")


def printable(text: str) -> str:
    r"""Return a text with ``\x1b`` in place of ESC, and alike; line breaks and tabs stay."""
    # Most texts are plain ASCII, which takes no loop.
    if _ORDINARY.fullmatch(text):
        return text
    return "".join(
        each
        if each in "\n\t" or each.isprintable()
        else each.encode("unicode_escape", "surrogatepass").decode()
        for each in text
    )


class SafeStream:
    """A text stream that escapes all that is written; everything else is the stream's own."""

    def __init__(self, stream: TextIO) -> None:
        # rich writes to a file of this name, with colors: see `SafeConsole`.
        self.rich_proxied_file = stream

    def write(self, text: str) -> int:
        """Write a text."""
        self.rich_proxied_file.write(printable(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write some texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> object:
        return getattr(self.rich_proxied_file, name)


class SafeConsole(Console):
    """A console that escapes all texts, and keeps the colors that it makes itself."""

    @property
    def file(self) -> IO[str]:
        """Return the real stream: a live display puts a proxy in front of a `SafeStream`."""
        # rich looks behind one of the two only, and the display's own sequences would be escaped.
        file = super().file
        return getattr(file, "rich_proxied_file", file)

    @file.setter
    def file(self, new_file: IO[str]) -> None:
        self._file = new_file

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        # Control segments move the cursor of a live display; only rich makes them.
        return super()._render_buffer(
            segment if segment.control else Segment(printable(segment.text), segment.style)
            for segment in buffer
        )


@contextlib.contextmanager
def safe_streams() -> Iterator[None]:
    """Escape all that is printed to the standard streams."""
    streams = sys.stdout, sys.stderr
    # Bars and other names than ASCII become "?" in an encoding without them, such as latin-1.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    sys.stdout, sys.stderr = map(SafeStream, streams)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams
