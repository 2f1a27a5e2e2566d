"""LightGBM's library: the plugin that serves the GPU, opened when it is first called.

This file stands in for LightGBM's own ``libpath.py``. Importing the package opens nothing, so that
it works on every machine; the first call says what is missing where no plugin serves the GPU.
"""
# ruff: noqa: INP001 (it is installed into LightGBM's package)
# ruff: noqa: ANN401 (LightGBM calls with whatever ctypes takes)

from __future__ import annotations

import ctypes
from typing import Any

from ._archsplit import load  # type: ignore[import-not-found]  # made by the build

__all__: list[str] = []


class _Function:
    """A function of the library, which is opened for its first call."""

    restype: Any = ctypes.c_int

    def __init__(self, library: _Library, name: str) -> None:
        self._library = library
        self._name = name

    def __call__(self, *arguments: Any) -> Any:
        if self._name.endswith("Free") and not self._library.is_opened:
            # An object whose making failed is still deleted.
            return 0
        function = getattr(self._library.opened(), self._name)
        function.restype = self.restype
        return function(*arguments)


class _Library:
    """What the rest of the package calls, as if it were a `ctypes.CDLL`."""

    def __init__(self) -> None:
        self._opened: ctypes.CDLL | None = None
        self._log: Any = None

    def __getattr__(self, name: str) -> _Function:
        if not name.startswith("LGBM_"):
            raise AttributeError(name)
        function = _Function(self, name)
        setattr(self, name, function)
        return function

    def LGBM_RegisterLogCallback(self, callback: Any) -> int:  # noqa: N802 (LightGBM's name)
        """Remember where messages go, which LightGBM says while it is imported."""
        self._log = callback
        if self._opened is None:
            return 0
        status: int = self._opened.LGBM_RegisterLogCallback(callback)
        return status

    @property
    def is_opened(self) -> bool:
        """Whether a function was called already."""
        return self._opened is not None

    def opened(self) -> ctypes.CDLL:
        """The library itself.

        Raises:
            DeviceError: no GPU was found, or no driver.
            PluginNotFoundError: no installed plugin serves it; the message says what to install.
        """
        if self._opened is None:
            library = load()
            if self._log is not None:
                library.LGBM_RegisterLogCallback(self._log)
            self._opened = library
        return self._opened


_LIB = _Library()
