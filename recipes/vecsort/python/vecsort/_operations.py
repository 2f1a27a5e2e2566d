"""The functions that users call: they check arguments, borrow arrays and call the library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeVar

from ._borrowing import Borrowing
from ._library import library_for

if TYPE_CHECKING:
    from ._device_array import DeviceArray

_Array = TypeVar("_Array")
_Other = TypeVar("_Other")

_REDUCTIONS = {"sum": 0, "min": 1, "max": 2}


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
    with Borrowing(stream) as borrowing:
        source = borrowing.array(keys, "keys")
        target = _target(borrowing, source, out, "out")
        arguments = (source.dtype, int(descending), source.pointer, target.pointer, source.size)
        _run(borrowing, "vecsort_sort", *arguments, items=source.size)
    return keys if out is None else out


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
        values: as many items, of any type of 1, 2, 4, 8 or 16 bytes.
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
        target = _target(borrowing, source, keys_out, "keys_out")
        payload_target = _target(borrowing, payload, values_out, "values_out")
        pointers = (source.pointer, target.pointer, payload.pointer, payload_target.pointer)
        arguments = (source.dtype, int(descending), *pointers, payload.value_size, source.size)
        _run(borrowing, "vecsort_sort_pairs", *arguments, items=source.size)
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
        _run(borrowing, "vecsort_argsort", *arguments, items=source.size)
    return out


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
    with Borrowing(stream) as borrowing:
        source = borrowing.array(items, "items")
        target = _target(borrowing, source, out, "out")
        arguments = (source.dtype, int(exclusive), source.pointer, target.pointer, source.size)
        _run(borrowing, "vecsort_scan", *arguments, items=source.size)
    return items if out is None else out


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
        _run(borrowing, "vecsort_reduce", *arguments, items=1)
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
        _run(borrowing, "vecsort_topk", *arguments, items=k)


def _target(borrowing: Borrowing, source: DeviceArray, out: object, name: str) -> DeviceArray:
    """Where the result of something that can be done in place goes."""
    target = source if out is None else borrowing.array(out, name)
    return target.as_output(size=source.size, type_name=source.type_name)


def _optional(
    borrowing: Borrowing, out: object, name: str, size: int, type_name: str
) -> int | None:
    if out is None:
        return None
    return borrowing.array(out, name).as_output(size=size, type_name=type_name).pointer


def _run(borrowing: Borrowing, function: str, *arguments: object, items: int) -> None:
    """Call the library of the arrays' device, unless there are no items to do anything for."""
    device = borrowing.device()
    if device is None or items == 0:
        return
    library = library_for(device)
    with library.current(device):
        for other in sorted(borrowing.streams()):
            library.call("vecsort_stream_wait", borrowing.stream, other)
        library.call(function, *arguments, borrowing.stream)
