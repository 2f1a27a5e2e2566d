"""Read DLPack capsules, both kinds, with nothing but ctypes.

The layouts and the rules about names and deleters are from dlpack.h 1.1 and DLPack's
"Python Specification": https://dmlc.github.io/dlpack/latest/python_spec.html
"""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar

from ._device_array import DeviceArray

if TYPE_CHECKING:
    from collections.abc import Iterator

CUDA, CUDA_MANAGED = 2, 13  # kDLCUDA, kDLCUDAManaged
_DEVICE_TYPES = {1: "the CPU's memory", 3: "pinned host memory", 10: "a ROCm device's memory"}
_TYPE_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}
_READ_ONLY, _IS_COPIED = 1, 2  # bits of DLManagedTensorVersioned.flags


class _Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("id", ctypes.c_int32))


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    """DLManagedTensor: what "dltensor" capsules hold."""

    NAMES: ClassVar = (b"dltensor", b"used_dltensor")
    _fields_ = (
        ("tensor", _Tensor),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


class _ManagedVersioned(ctypes.Structure):
    """DLManagedTensorVersioned: what "dltensor_versioned" capsules hold."""

    NAMES: ClassVar = (b"dltensor_versioned", b"used_dltensor_versioned")
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


# Deleters are called with the GIL held: some take it themselves, some count on it.
_deleter = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_set_name = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_SetName", ctypes.pythonapi)
)


@contextmanager
def imported(exporter: object, name: str, stream: int) -> Iterator[DeviceArray]:
    """Hold an exporter's memory for work on ``stream``, which waits for the exporter's own.

    Raises:
        TypeError: what the exporter returns is not a DLPack capsule.
        ValueError: its memory is not a CUDA device's, or not contiguous in one dimension.
        BufferError: its DLPack version is of another major than 1.
    """
    capsule = _export(exporter, name, stream)
    managed = _consume(capsule, name)
    try:
        yield _describe(managed, name)
    finally:
        if managed.deleter:
            _deleter(managed.deleter)(ctypes.addressof(managed))


def _export(exporter: object, name: str, stream: int) -> object:
    device_type, _ordinal = exporter.__dlpack_device__()  # type: ignore[attr-defined]
    _require_cuda(int(device_type), name)
    try:
        return exporter.__dlpack__(stream=stream, max_version=(1, 1))  # type: ignore[attr-defined]
    except TypeError:  # from before DLPack 1.0, when there was no max_version
        return exporter.__dlpack__(stream=stream)  # type: ignore[attr-defined]


def _consume(capsule: object, name: str) -> _Managed | _ManagedVersioned:
    """Take over what a capsule holds; its deleter is ours to call from here on."""
    for kind in (_ManagedVersioned, _Managed):
        unused, used = kind.NAMES
        if _is_valid(capsule, unused):
            managed = kind.from_address(_get_pointer(capsule, unused))
            _set_name(capsule, used)  # the capsule keeps the pointer; NAMES keeps the bytes alive
            return managed
    raise TypeError(
        f"{name}: __dlpack__ returned {capsule!r}, which is not an unused DLPack capsule"
    )


def _describe(managed: _Managed | _ManagedVersioned, name: str) -> DeviceArray:
    flags = 0
    if isinstance(managed, _ManagedVersioned):
        if managed.major != 1:
            raise BufferError(
                f"{name} was exported as DLPack {managed.major}.{managed.minor}; expected 1.x"
            )
        flags = managed.flags
    tensor = managed.tensor
    _require_cuda(tensor.device.type, name)
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    _require_contiguous(tensor, shape, name)
    bits = tensor.dtype.bits * tensor.dtype.lanes
    kind = _TYPE_KINDS.get(tensor.dtype.code, f"type code {tensor.dtype.code}, bits ")
    return DeviceArray(
        name=name,
        pointer=(tensor.data or 0) + tensor.byte_offset,
        shape=shape,
        type_name=f"{kind}{tensor.dtype.bits}" + _lanes_suffix(tensor.dtype.lanes),
        item_size=(bits + 7) // 8,
        device=tensor.device.id,
        writable=not flags & (_READ_ONLY | _IS_COPIED),
    )


def _lanes_suffix(lanes: int) -> str:
    return "" if lanes == 1 else f"x{lanes}"


def _require_cuda(device_type: int, name: str) -> None:
    if device_type not in (CUDA, CUDA_MANAGED):
        where = _DEVICE_TYPES.get(device_type, f"memory of DLPack device type {device_type}")
        raise ValueError(f"{name} is in {where}; expected a CUDA device's")


def _require_contiguous(tensor: _Tensor, shape: tuple[int, ...], name: str) -> None:
    if len(shape) == 1 and shape[0] > 1 and tensor.strides and tensor.strides[0] != 1:
        raise ValueError(f"{name} is not contiguous: its stride is {tensor.strides[0]} items")
