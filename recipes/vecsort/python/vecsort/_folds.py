"""Folds: running sums, and one result of all items."""

from __future__ import annotations

from typing import Literal, TypeVar

from ._borrowing import Borrowing
from ._calling import run, run_in_place

_Array = TypeVar("_Array")

_REDUCTIONS = {"sum": 0, "min": 1, "max": 2}


def scan(
    items: _Array, *, out: _Array | None = None, exclusive: bool = False, stream: object = None
) -> _Array:
    """Running sums in the type of the items, in place unless ``out`` is given.

    Args:
        items: what to sum.
        out: where the sums go: as many, of the same type.
        exclusive: leave each item out of its own sum, so that the first sum is 0.
        stream: where the work is enqueued.

    Returns:
        The array that has the result.

    Raises:
        TypeError: as `sort`.
        ValueError: as `sort`.
        VecsortError: as `sort`.
        RuntimeError: as `sort`.
    """
    return run_in_place("vecsort_scan", int(exclusive), items, "items", out=out, stream=stream)


def reduce(
    items: object,
    operation: Literal["sum", "min", "max"],
    *,
    out: _Array,
    stream: object = None,
) -> _Array:
    """Sum, least or greatest of the items, in their type; NaN if one of them is.

    Args:
        items: what to reduce; ``min`` and ``max`` need at least one.
        operation: what to make of them.
        out: where the result goes: one item of the same type, of one dimension or of none.
        stream: where the work is enqueued.

    Returns:
        ``out``.

    Raises:
        TypeError: as `sort`.
        ValueError: as `sort`; or there is no such operation, or there are no items for it.
        VecsortError: as `sort`.
        RuntimeError: as `sort`.
    """
    number = _REDUCTIONS.get(operation)
    if number is None:
        raise ValueError(f"operation is {operation!r}; expected {', '.join(_REDUCTIONS)}")
    with Borrowing(stream) as borrowing:
        source = borrowing.array(items, "items")
        target = borrowing.array(out, "out").as_output(size=1, type_name=source.type_name)
        if source.size == 0 and operation != "sum":
            raise ValueError(f"items is empty, which has no {operation}")
        arguments = (source.dtype, number, source.pointer, target.pointer, source.size)
        run(borrowing, "vecsort_reduce", *arguments, items=1)
    return out
