"""Longest chain of steps of a compile, from what archsplit wrote about it."""

from __future__ import annotations

import csv
import re
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_NODE = re.compile(r'^\s*(n\d+) \[label="(.*?)\\n', re.MULTILINE)
_EDGE = re.compile(r"^\s*(n\d+) -> (n\d+)", re.MULTILINE)


def critical_path(tables: Path, graphs: Path) -> float:
    """Return the seconds of the longest chain of steps of all compiles in a folder.

    Args:
        tables: the folder of the run, with a table for each compile.
        graphs: the folder of a run of the same compiles, with a graph for each.
    """
    chains = [_longest(path, graphs / f"{path.stem}.dot") for path in tables.glob("*.csv")]
    return max(chains, default=0.0)


def _longest(table: Path, graph: Path) -> float:
    with table.open(newline="") as file:
        seconds = {row["step"]: _alone(row) for row in csv.DictReader(file)}
    text = graph.read_text()
    names = dict(_NODE.findall(text))
    earlier: dict[str, list[str]] = {node: [] for node in names}
    for before, after in _EDGE.findall(text):
        earlier[after].append(before)

    @cache
    def until(node: str) -> float:
        return seconds[names[node]] + max(map(until, earlier[node]), default=0.0)

    return max(map(until, names), default=0.0)


def _alone(row: dict[str, str]) -> float:
    """Return the seconds of a step on a core of its own, without the time of others."""
    return min(float(row["seconds"]), float(row["cpu seconds"]))
