"""Vectors on a GPU, as small as a package can be."""

import ctypes

from ._archsplit import explain, load

__all__ = ["explain", "load", "name"]


def name(capability: str) -> str:
    """What the plugin that serves a GPU of this capability calls itself."""
    function = load(capability=capability).tinyvec_name
    function.restype = ctypes.c_char_p
    text: bytes = function()
    return text.decode()
