"""Sorts: of keys, of pairs, of indices, and of as much as one wants to see."""

from __future__ import annotations

from typing import TypeVar

from ._borrowing import Borrowing
from ._calling import run, run_in_place

_Array = TypeVar("_Array")
_Other = TypeVar("_Other")


def sort(
    keys: _Array, *, out: _Array | None = None, descending: bool = False, stream: object = None
) -> _Array:
    """Sort keys, in place unless ``out`` is given.

    Args:
        keys: what to sort.
        out: where the sorted keys go: as many, of the same type.
        descending: the greatest first.
        stream: where the work is enqueued.

    Returns:
        The array that has the result.

    Raises:
        TypeError: an argument has the wrong type, or items of a type that can't be sorted.
        ValueError: an array is in the wrong place, not contiguous, read-only or of another size.
        VecsortError: the library failed.
        RuntimeError: no installed plugin serves the device; the message says what to install.
    """
    return run_in_place("vecsort_sort", int(descending), keys, "keys", out=out, stream=stream)


def sort_pairs(
    keys: _Array,
    values: _Other,
    *,
    keys_out: _Array | None = None,
    values_out: _Other | None = None,
    descending: bool = False,
    stream: object = None,
) -> tuple[_Array, _Other]:
    """Sort keys, and values with them; stable, and in place unless outputs are given.

    Args:
        keys: what to sort by.
        values: as many numbers, of any type of 1, 2, 4, 8 or 16 bytes.
        keys_out: where the sorted keys go.
        values_out: where their values go.
        descending: the greatest first.
        stream: where the work is enqueued.

    Returns:
        The arrays that have the result.

    Raises:
        TypeError: as `sort`.
        ValueError: as `sort`.
        VecsortError: as `sort`.
        RuntimeError: as `sort`.
    """
    with Borrowing(stream) as borrowing:
        source = borrowing.array(keys, "keys")
        payload = borrowing.array(values, "values")
        if payload.size != source.size:
            raise ValueError(f"values has {payload.size} items; expected {source.size}, as keys")
        target = borrowing.target(source, keys_out, "keys_out")
        payload_target = borrowing.target(payload, values_out, "values_out")
        pointers = (source.pointer, target.pointer, payload.pointer, payload_target.pointer)
        arguments = (source.dtype, int(descending), *pointers, payload.value_size, source.size)
        run(borrowing, "vecsort_sort_pairs", *arguments, items=source.size)
    return (keys if keys_out is None else keys_out, values if values_out is None else values_out)


def argsort(
    keys: object, *, out: _Array, descending: bool = False, stream: object = None
) -> _Array:
    """Find the indices that would sort keys; stable.

    Args:
        keys: what to sort by; they stay as they are.
        out: where the indices go: as many ``int32``.
        descending: the greatest first.
        stream: where the work is enqueued.

    Returns:
        ``out``.

    Raises:
        TypeError: as `sort`.
        ValueError: as `sort`.
        VecsortError: as `sort`.
        RuntimeError: as `sort`.
    """
    with Borrowing(stream) as borrowing:
        source = borrowing.array(keys, "keys")
        target = borrowing.array(out, "out").as_output(size=source.size, type_name="int32")
        arguments = (source.dtype, int(descending), source.pointer, target.pointer, source.size)
        run(borrowing, "vecsort_argsort", *arguments, items=source.size)
    return out


def topk(
    items: object,
    k: int,
    *,
    values_out: object = None,
    indices_out: object = None,
    largest: bool = True,
    stream: object = None,
) -> None:
    """The k greatest (or least) items, sorted, and their indices; ties by index.

    Args:
        items: what to choose from.
        k: how many; at most as many as there are items.
        values_out: where the chosen items go: k of the same type.
        indices_out: where their indices go: k ``int32``.
        largest: the greatest, greatest first (so NaNs come before all); else the least.
        stream: where the work is enqueued.

    Raises:
        TypeError: as `sort`; or neither output is given.
        ValueError: as `sort`; or k is out of range.
        VecsortError: as `sort`.
        RuntimeError: as `sort`.
    """
    if values_out is None and indices_out is None:
        raise TypeError("topk needs values_out, indices_out or both")
    with Borrowing(stream) as borrowing:
        source = borrowing.array(items, "items")
        if not 0 <= k <= source.size:
            raise ValueError(f"k is {k}; expected 0 to {source.size}, the number of items")
        values = _optional(borrowing, values_out, "values_out", k, source.type_name)
        indices = _optional(borrowing, indices_out, "indices_out", k, "int32")
        arguments = (source.dtype, int(largest), source.pointer, source.size, k, values, indices)
        run(borrowing, "vecsort_topk", *arguments, items=k)


def _optional(
    borrowing: Borrowing, out: object, name: str, size: int, type_name: str
) -> int | None:
    if out is None:
        return None
    return borrowing.array(out, name).as_output(size=size, type_name=type_name).pointer
