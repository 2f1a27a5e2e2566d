"""Table of the GPUs that users have, which a project supplies as CSV.

In goes the text; out comes a `GpuTable` with the share of each capability. GPUs of unknown
capability keep their rows, so that a report can name them.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from archsplit.arch.gpu_list import parse_capabilities, product_capability
from archsplit.errors import InputError, TargetError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from archsplit.arch.target import Capability

__pure__ = True

_HINT = (
    "the first line names the columns: share, and gpu or capability or both; see"
    " https://archsplit.readthedocs.io/en/latest/reference/inspect.html#choose-targets"
)
_MAX_SHOWN = 5
_GPU_COLUMNS = ("gpu", "capability")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownGpu:
    """A row whose GPU has no known capability; the share is of the whole table."""

    gpu: str
    share: float
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTable:
    """GPUs to serve.

    Attributes:
        shares: of the known GPUs, ascending by capability; together 1.
        gpus: the names behind each capability, most users first.
        unknown_gpus: rows without a known capability, which are in no share.
    """

    shares: Mapping[Capability, float]
    gpus: Mapping[Capability, tuple[str, ...]] = field(default_factory=dict)
    unknown_gpus: tuple[UnknownGpu, ...] = ()

    @property
    def unknown_share(self) -> float:
        """Part of the whole table without a known capability."""
        return sum(gpu.share for gpu in self.unknown_gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    line: int
    gpu: str
    capability: Capability | None
    share: float


def read_gpu_table(text: str, *, where: str) -> GpuTable:
    """Read the table; a line that begins with ``#`` is a comment.

    Shares may be parts of 1, per cent or numbers of users: only their ratio counts.

    Args:
        text: the file's content.
        where: the file, for messages.

    Raises:
        InputError: a column is missing, or a row can't be read; lists every fault.
    """
    faults, rows = [], []
    for number, cells in _cells(text, where):
        try:
            rows.append(_row(number, cells))
        except ValueError as error:  # noqa: PERF203 - each line has a fault of its own
            faults.append(f"{number}: {error}")
    # All faults at once: a table is often made by a script.
    if faults:
        raise InputError("\n".join(f"{where}:{fault}" for fault in faults), hint=_HINT)
    total = sum(row.share for row in rows)
    listed = [row for row in rows if row.capability is not None]
    listed_share = sum(row.share for row in listed)
    if not listed_share:
        raise InputError(f"{where} has no users of a known GPU{_unknown_names(rows)}", hint=_HINT)
    without_capability = (row for row in rows if row.capability is None)
    return GpuTable(
        shares=_shares(listed, listed_share),
        gpus=_names(listed),
        unknown_gpus=tuple(
            UnknownGpu(gpu=row.gpu, share=row.share / total, line=row.line)
            for row in without_capability
        ),
    )


def equal_shares(capabilities: Sequence[Capability]) -> GpuTable:
    """Return a table in which each GPU has the same share."""
    return GpuTable(shares={one: 1 / len(capabilities) for one in sorted(capabilities)})


def _unknown_names(rows: list[_Row]) -> str:
    """Return the first GPUs of unknown capability, for a message."""
    names = [row.gpu for row in rows if row.capability is None]
    more = f" and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else ""
    return f", only of {', '.join(names[:_MAX_SHOWN])}{more}" if names else ""


def _cells(text: str, where: str) -> Iterator[tuple[int, Mapping[str, str]]]:
    """Yield the number of each line, and its cells by column."""
    # Spreadsheets write a byte order mark.
    lines = text.removeprefix("\ufeff").splitlines()
    kept = [(number, line) for number, line in enumerate(lines, 1) if _is_content(line)]
    header = next(csv.reader([kept[0][1]])) if kept else []
    names = [name.strip().casefold() for name in header]
    if "share" not in names or not set(_GPU_COLUMNS) & set(names):
        found = f"{kept[0][0] if kept else 1}: the columns are {', '.join(names) or 'none'}"
        raise InputError(f"{where}:{found}", hint=_HINT)
    # Numbers count the file's lines, comments included.
    reader = csv.reader(line for _, line in kept[1:])
    for (number, _), cells in zip(kept[1:], reader, strict=False):
        yield number, dict(zip(names, map(str.strip, cells), strict=False))


def _is_content(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith("#")


def _row(number: int, cells: Mapping[str, str]) -> _Row:
    gpu, capability = (cells.get(name, "") for name in _GPU_COLUMNS)
    if not (gpu or capability):
        raise ValueError("the row names no GPU")
    # The capability is exact; a product's name may be ambiguous.
    parsed = _capability(capability) if capability else product_capability(gpu)
    return _Row(line=number, gpu=gpu, capability=parsed, share=_share(cells.get("share", "")))


def _capability(text: str) -> Capability:
    try:
        (capability,) = parse_capabilities(text, detect=tuple)
    except (TargetError, ValueError):
        raise ValueError(f"{text!r} is not a compute capability") from None
    return capability


def _share(text: str) -> float:
    try:
        # Python would read 1_000 as a number; a table's reader would not expect it.
        share = float(text.removesuffix("%").replace("_", "x"))
    except ValueError:
        share = math.nan
    if not (math.isfinite(share) and share >= 0):
        raise ValueError(f"the share {text!r} is not a number of 0 or more")
    return share


def _shares(rows: list[_Row], total: float) -> dict[Capability, float]:
    sums: dict[Capability, float] = {}
    for row in rows:
        if row.capability is not None and row.share:
            sums[row.capability] = sums.get(row.capability, 0.0) + row.share
    return {capability: sums[capability] / total for capability in sorted(sums)}


def _names(rows: list[_Row]) -> dict[Capability, tuple[str, ...]]:
    names: dict[Capability, dict[str, None]] = {}
    for row in sorted(rows, key=lambda row: -row.share):
        if row.capability is not None and row.gpu:
            names.setdefault(row.capability, {})[row.gpu] = None
    return {capability: tuple(found) for capability, found in names.items()}
