"""The C library of one device: its functions with their types, and its errors as exceptions."""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

from ._errors import VecsortError

if TYPE_CHECKING:
    from collections.abc import Iterator

ABI_VERSION = 1

_number, _count, _pointer = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p
_SIGNATURES: dict[str, tuple[type[ctypes._SimpleCData[int] | ctypes.c_void_p], ...]] = {
    "vecsort_set_device": (_number, _pointer),
    "vecsort_stream_wait": (_pointer, _pointer),
    "vecsort_sort": (_number, _number, _pointer, _pointer, _count, _pointer),
    "vecsort_sort_pairs": (
        *(_number, _number, _pointer, _pointer, _pointer, _pointer),
        *(ctypes.c_size_t, _count, _pointer),
    ),
    "vecsort_argsort": (_number, _number, _pointer, _pointer, _count, _pointer),
    "vecsort_scan": (_number, _number, _pointer, _pointer, _count, _pointer),
    "vecsort_reduce": (_number, _number, _pointer, _pointer, _count, _pointer),
    "vecsort_topk": (_number, _number, _pointer, _count, _count, _pointer, _pointer, _pointer),
    "vecsort_self_test": (_count, _pointer),
}


class Library:
    """The functions of a loaded plugin; each raises VecsortError where C returns a status."""

    def __init__(self, loaded: ctypes.CDLL) -> None:
        self._loaded = loaded
        for name, arguments in _SIGNATURES.items():
            function = getattr(loaded, name)
            function.argtypes = arguments
            function.restype = _number
        for name in ("vecsort_last_error", "vecsort_error_string"):
            getattr(loaded, name).restype = ctypes.c_char_p
        version = loaded.vecsort_abi_version()
        if version != ABI_VERSION:
            raise VecsortError(
                f"the library's ABI version is {version}; expected {ABI_VERSION}", status=-1
            )

    def call(self, name: str, *arguments: object) -> None:
        """Call a function by its C name.

        Raises:
            VecsortError: it returned a status other than VECSORT_OK.
        """
        status: int = getattr(self._loaded, name)(*arguments)
        if status != 0:
            summary = self._loaded.vecsort_error_string(status).decode()
            detail = self._loaded.vecsort_last_error().decode(errors="replace")
            raise VecsortError(f"{name}: {summary}: {detail}", status=status)

    @contextmanager
    def current(self, device: int) -> Iterator[None]:
        """Make a device current for this thread, and the previous one again afterwards."""
        previous = ctypes.c_int32()
        self.call("vecsort_set_device", device, ctypes.byref(previous))
        try:
            yield
        finally:
            if previous.value != device:
                self.call("vecsort_set_device", previous.value, None)


@cache
def library_for(device: int) -> Library:
    """The library that serves a device, opened when it is first asked for.

    Raises:
        RuntimeError: no plugin serves it; the message says what to install.
    """
    # archsplit adds this package to the core, and importing vecsort must not touch it.
    from ._archsplit import load  # type: ignore[import-not-found]  # noqa: PLC0415

    return Library(load(device=device))
