"""Tables for terminals of every width: numbers are never cut."""

from __future__ import annotations

import io

import pytest
from rich.bar import Bar
from rich.console import Console

from archsplit.system.terminal import BAR, Column, FittingTable, name_column, word_column

NAME = "a_name_of_thirty_letters_at_all"


def lines(width: int) -> list[str]:
    table = FittingTable(
        name_column("name"),
        BAR,
        Column(heading="size"),
        Column(heading="count", rank=2),
        word_column("kind", rank=3),
        word_column(""),
    )
    table.add_row(NAME, Bar(10, 0, 5), "131.7 MB", "65", "lz4", "")
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", range(36, 130))
def test_number_is_never_wrapped_at_any_width(width: int) -> None:
    shown = lines(width)
    assert all(len(line) <= width for line in shown)
    assert "131.7 MB" in shown[1]
    assert "".join(line.split()[0] for line in shown[1:]) == NAME


@pytest.mark.parametrize(
    ("width", "headings"),
    [
        (100, ["name", "size", "count", "kind"]),
        (60, ["name", "size", "count"]),
        (50, ["name", "size"]),
        (20, ["name", "size"]),
    ],
)
def test_columns_go_by_rank(width: int, headings: list[str]) -> None:
    assert lines(width)[0].split() == headings


def test_bars_shrink_before_names_break() -> None:
    wide, narrow = lines(100)[1], lines(60)[1]
    assert (wide.count("█"), narrow.count("█")) == (12, 5)
    assert narrow.startswith(NAME)
    # Where a name has no room at all, the bar goes too.
    assert "█" not in lines(34)[1]


def test_brackets_and_colons_are_a_part_of_a_name() -> None:
    table = FittingTable(name_column("name"))
    table.add_row("lib[bold]:smile:.so")
    console = Console(file=io.StringIO(), width=60)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().split() == ["name", "lib[bold]:smile:.so"]
