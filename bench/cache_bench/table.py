"""Table of measurements beside their goals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cache_bench.tools import Took


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A compilation by a tool."""

    case: str
    tool: str
    took: Took
    verdict: str = ""

    def text(self) -> str:
        """Return a line for a person who watches the benchmark."""
        return (
            f"{self.tool:<10} {self.case:<50} {self.took.wall:7.2f} s {self.took.cpu:7.2f} s CPU"
            + (f"  {self.verdict}" if self.verdict else "")
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """Something that was promised."""

    what: str
    met: bool
    found: str


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the lines of a Markdown table with all cases, and a column for each tool."""
    names = list(dict.fromkeys(row.tool for row in rows))
    yield "| case | " + " | ".join(f"{name}: wall, CPU s" for name in names) + " |"
    yield "|---|" + "---:|" * len(names)
    for case in dict.fromkeys(row.case for row in rows):
        cells = {row.tool: _cell(row) for row in rows if row.case == case}
        yield f"| {case} | " + " | ".join(cells.get(name, "") for name in names) + " |"


def _cell(row: Row) -> str:
    # sccache's server compiles, and what that takes isn't seen.
    cpu = "?" if row.tool == "sccache" else f"{row.took.cpu:.2f}"
    told = f" {row.verdict}" if row.verdict else ""
    return f"{row.took.wall:.2f}, {cpu}{told}"
