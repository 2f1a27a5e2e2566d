"""A table in device memory, as small as relocatable device code can be."""

from ._archsplit import explain, load

__all__ = ["explain", "load"]
