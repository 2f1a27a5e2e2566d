"""Read ``__cuda_array_interface__``, versions 0 to 3.

The rules are in https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html.
The interface doesn't name the device, so the driver is asked where the memory is.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from ._device_array import DeviceArray

if TYPE_CHECKING:
    from collections.abc import Mapping

_TYPE_KINDS = {"f": "float", "i": "int", "u": "uint", "c": "complex", "b": "bool"}
_POINTER_DEVICE_ORDINAL = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL


def described(interface: Mapping[str, Any], name: str) -> DeviceArray:
    """What an interface says about its array.

    Raises:
        TypeError: items are masked or not in the machine's byte order.
        ValueError: it is not contiguous, has more than one dimension, or is not device memory.
    """
    if interface.get("mask") is not None:
        raise TypeError(f"{name} is masked; expected plain items")
    shape = tuple(interface["shape"])
    type_name, item_size = _item_type(interface["typestr"], name)
    _require_contiguous(interface.get("strides"), shape, item_size, name)
    pointer, read_only = interface["data"]
    return DeviceArray(
        name=name,
        pointer=pointer or 0,
        shape=shape,
        type_name=type_name,
        item_size=item_size,
        device=_device_of(pointer, name) if pointer and 0 not in shape else None,
        writable=not read_only,
        stream=interface.get("stream"),
    )


def _item_type(typestr: str, name: str) -> tuple[str, int]:
    byte_order, kind, size = typestr[:1], typestr[1:2], typestr[2:]
    if byte_order not in ("<", "|"):
        raise TypeError(f"{name} has items of type {typestr}; expected little-endian ones")
    if kind not in _TYPE_KINDS or not size.isdecimal():
        raise TypeError(f"{name} has items of type {typestr}; expected numbers")
    return f"{_TYPE_KINDS[kind]}{8 * int(size)}", int(size)


def _require_contiguous(
    strides: tuple[int, ...] | None, shape: tuple[int, ...], item_size: int, name: str
) -> None:
    if strides is not None and len(shape) == 1 and shape[0] > 1 and strides[0] != item_size:
        raise ValueError(f"{name} is not contiguous: its stride is {strides[0]} bytes")


def _device_of(pointer: int, name: str) -> int:
    """Ask the driver, which is there and has been started, because somebody allocated memory."""
    ordinal = ctypes.c_int(-1)
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise ValueError(f"{name} can't be device memory: no CUDA driver ({error})") from error
    result = driver.cuPointerGetAttribute(
        ctypes.byref(ordinal), _POINTER_DEVICE_ORDINAL, ctypes.c_uint64(pointer)
    )
    if result != 0 or ordinal.value < 0:
        raise ValueError(f"{name} is not CUDA memory (the driver says {result} about {pointer:#x})")
    return ordinal.value
