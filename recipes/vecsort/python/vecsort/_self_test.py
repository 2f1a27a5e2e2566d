"""Run the library's own check on a device; needs no array library."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from ._library import library_for


class _Report(ctypes.Structure):
    """vecsort_self_test_report of the C header."""

    _fields_ = (
        ("struct_size", ctypes.c_uint32),
        ("device", ctypes.c_int32),
        ("capability_major", ctypes.c_int32),
        ("capability_minor", ctypes.c_int32),
        ("device_name", ctypes.c_char * 256),
        ("n", ctypes.c_int64),
        ("out_of_order", ctypes.c_int64),
        ("same_items", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("milliseconds", ctypes.c_double),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTest:
    """A self-test that went well.

    Attributes:
        device_name: as the driver calls it.
        capability: such as ``9.0``.
        items: how many ``float32`` were sorted.
        milliseconds: what the fastest of three sorts took on the device's clock.
    """

    device_name: str
    capability: str
    items: int
    milliseconds: float


def self_test(items: int = 10_000_000, *, device: int = 0) -> SelfTest:
    """Sort pseudo-random numbers on a device, check the result there, and wait for it.

    Raises:
        VecsortError: the device gave a wrong result, or the library failed.
        RuntimeError: no installed plugin serves the device; the message says what to install.
    """
    library = library_for(device)
    report = _Report(struct_size=ctypes.sizeof(_Report))
    with library.current(device):
        library.call("vecsort_self_test", items, ctypes.byref(report))
    return SelfTest(
        device_name=report.device_name.decode(errors="replace"),
        capability=f"{report.capability_major}.{report.capability_minor}",
        items=report.n,
        milliseconds=report.milliseconds,
    )
