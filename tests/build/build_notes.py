"""Notes of a build, for tests."""

from __future__ import annotations

from archsplit.system.terminal import SilentProgress


class BuildNotes(SilentProgress):
    """Receives what a build tells its user."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        self.lines.append(text)
