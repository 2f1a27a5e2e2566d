"""From borrowed arrays to a call of the library that serves their device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._library import library_for

if TYPE_CHECKING:
    from ._borrowing import Borrowing


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
