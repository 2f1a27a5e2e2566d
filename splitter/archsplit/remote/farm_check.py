"""The checks of a farm or a cluster that come before a build.

In: checks, each with a name. Out: a row with its time for each that was done. The first failure
ends them: those behind it need what it has not found. Its row is there, too.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__pure__ = True

_NAME_WIDTH = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class FarmCheck:
    """A check of one part of a farm.

    Attributes:
        name: of the checked part.
        run: returns the facts that were found, in words; raises the error of a failure.
    """

    name: str
    run: Callable[[], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRow:
    """The result of one check.

    Attributes:
        works: False for a failure.
        text: the facts; "" for a failure.
    """

    name: str
    works: bool
    seconds: float
    text: str

    def as_line(self) -> str:
        """Return the row of a table for people."""
        state = "ok" if self.works else "failed"
        return f"{self.name:<{_NAME_WIDTH}}{state:<8}{self.seconds:6.2f} s  {self.text}".rstrip()


def run_checks(checks: Iterable[FarmCheck], on_row: Callable[[CheckRow], None]) -> None:
    """Run checks up to the first failure, whose error is raised after its row.

    Args:
        checks: in the order in which a build needs them.
        on_row: called with each row.
    """
    for check in checks:
        began, text, works = time.monotonic(), "", False
        try:
            text = check.run()
            works = True
        # The row of a failed check is printed before its error.
        finally:
            seconds = time.monotonic() - began
            on_row(CheckRow(name=check.name, works=works, seconds=seconds, text=text))
