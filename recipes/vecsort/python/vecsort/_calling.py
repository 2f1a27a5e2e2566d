"""From borrowed arrays to a call of the library that serves their device."""

from __future__ import annotations

from typing import TypeVar

from ._borrowing import Borrowing
from ._library import library_for

_Array = TypeVar("_Array")


def run(borrowing: Borrowing, function: str, *arguments: object, items: int) -> None:
    """Call the library of the arrays' device, unless there are no items to do anything for."""
    device = borrowing.device()
    if device is None or items == 0:
        return
    library = library_for(device)
    with library.current(device):
        for other in sorted(borrowing.streams()):
            library.call("vecsort_stream_wait", borrowing.stream, other)
        library.call(function, *arguments, borrowing.stream)


def run_in_place(
    function: str, option: int, items: _Array, name: str, *, out: _Array | None, stream: object
) -> _Array:
    """Call a function that makes as many items of its items, in place unless ``out`` is given.

    Returns:
        The array that has the result.
    """
    with Borrowing(stream) as borrowing:
        source = borrowing.array(items, name)
        target = borrowing.target(source, out, "out")
        arguments = (source.dtype, option, source.pointer, target.pointer, source.size)
        run(borrowing, function, *arguments, items=source.size)
    return items if out is None else out
