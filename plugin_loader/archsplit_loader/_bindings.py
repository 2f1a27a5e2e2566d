"""``plugin_loader.h`` as ctypes sees it; nothing more."""

from __future__ import annotations

import ctypes
import os
import re
from typing import TYPE_CHECKING, Any

from ._errors import PluginError
from ._folders import FOLDER
from ._reading import check_library

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LIBRARY = "libarchsplit_loader.so"
_KINDS = {1: "sm", 2: "compute"}


class TargetStruct(ctypes.Structure):
    """``archsplit_target``."""

    _fields_ = (
        ("kind", ctypes.c_uint16),
        ("major", ctypes.c_uint16),
        ("minor", ctypes.c_uint16),
        ("suffix", ctypes.c_uint16),
    )

    def __str__(self) -> str:
        suffix = chr(self.suffix) if self.suffix else ""
        # A minor number has one digit, so 120 is 12 and 0.
        return f"{_KINDS[self.kind]}_{self.major}{self.minor}{suffix}"

    @classmethod
    def parse(cls, name: str) -> TargetStruct:
        """Read ``sm_90a``."""
        kind, _, number = name.partition("_")
        # The suffix is one letter: a is for one chip, f for a family.
        digits = number.rstrip("af")
        return cls(
            kind={name: kind for kind, name in _KINDS.items()}[kind],
            major=int(digits[:-1]),
            minor=int(digits[-1]),
            suffix=ord(number[len(digits) :] or "\0"),
        )


class CoreStruct(ctypes.Structure):
    """``archsplit_core``."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("table", ctypes.c_char_p),
        ("folders", ctypes.POINTER(ctypes.c_char_p)),
        ("files", ctypes.POINTER(ctypes.c_char_p)),
        ("digests", ctypes.POINTER(ctypes.c_char_p)),
    )


class SummaryStruct(ctypes.Structure):
    """``archsplit_summary``."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("driver_state", ctypes.c_uint32),
        ("driver_reason", ctypes.c_char_p),
        ("driver_version", ctypes.c_char_p),
        ("cuda_version", ctypes.c_uint32),
        ("device_count", ctypes.c_uint32),
        ("candidate_count", ctypes.c_uint32),
        ("note_count", ctypes.c_uint32),
    )


class CandidateStruct(ctypes.Structure):
    """``archsplit_candidate``."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("verdict", ctypes.c_uint32),
        ("path", ctypes.c_char_p),
        ("reason", ctypes.c_char_p),
        ("package", ctypes.c_char_p),
        ("version", ctypes.c_char_p),
        ("targets", ctypes.POINTER(TargetStruct)),
        ("target_count", ctypes.c_uint32),
        ("cuda_version", ctypes.c_uint32),
    )


class DeviceStruct(ctypes.Structure):
    """``archsplit_device``."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("nvml_index", ctypes.c_uint32),
        ("name", ctypes.c_char_p),
        ("uuid", ctypes.c_char_p),
        ("pci_bus_id", ctypes.c_char_p),
    )


class CapabilityStruct(ctypes.Structure):
    """Beginning of ``archsplit_device``: the loader looks for no more than is asked for."""

    _fields_ = DeviceStruct._fields_[:3]


class ChoiceStruct(ctypes.Structure):
    """``archsplit_choice``."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("candidate", ctypes.c_uint32),
        ("target", TargetStruct),
    )


class ServiceStruct(ctypes.Structure):
    """``archsplit_service``."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("native", ctypes.c_uint32),
        ("older_minor", ctypes.c_uint32),
        ("ptx", ctypes.c_uint32),
        ("worse", ctypes.c_uint32),
        ("missing", ctypes.c_uint32),
        ("late", ctypes.c_uint32),
        ("unmatched", ctypes.c_uint32),
    )


class GraftedStruct(ctypes.Structure):
    """``archsplit_grafted``."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("state", ctypes.c_uint32),
        ("library", ctypes.c_char_p),
        ("container", ctypes.c_uint32),
        ("target_count", ctypes.c_uint32),
        ("targets", ctypes.POINTER(TargetStruct)),
    )


def text(content: bytes | None) -> str:
    """Text of the loader's; file names may hold any bytes."""
    return os.fsdecode(content or b"").encode("utf-8", "replace").decode("utf-8")


# Without types, ctypes would take results for 32-bit ints, and check no argument.
_HANDLE, _NUMBER, _OUT = ctypes.c_void_p, ctypes.c_uint32, ctypes.POINTER(ctypes.c_void_p)
_FUNCTIONS: tuple[tuple[Any, ...], ...] = (
    ("loader_create", ctypes.c_int, ctypes.POINTER(CoreStruct), _OUT),
    ("loader_destroy", None, _HANDLE),
    ("loader_summary", ctypes.c_int, _HANDLE, ctypes.POINTER(SummaryStruct)),
    ("loader_candidate", ctypes.c_int, _HANDLE, _NUMBER, ctypes.POINTER(CandidateStruct)),
    ("loader_device", ctypes.c_int, _HANDLE, _NUMBER, ctypes.POINTER(DeviceStruct)),
    ("loader_note", ctypes.c_char_p, _HANDLE, _NUMBER),
    ("loader_choose", ctypes.c_int, _HANDLE, _NUMBER, _NUMBER, ctypes.POINTER(ChoiceStruct)),
    ("loader_open", ctypes.c_int, _HANDLE, _NUMBER, _OUT),
    ("loader_open_for_capability", ctypes.c_int, _HANDLE, _NUMBER, _NUMBER, _OUT),
    ("loader_service", ctypes.c_int, _HANDLE, _NUMBER, _NUMBER, ctypes.POINTER(ServiceStruct)),
    (
        "process_service",
        ctypes.c_int,
        _HANDLE,
        ctypes.c_char_p,
        _NUMBER,
        _NUMBER,
        ctypes.POINTER(ServiceStruct),
    ),
    (
        "process_container",
        ctypes.c_int,
        ctypes.c_char_p,
        _NUMBER,
        ctypes.POINTER(GraftedStruct),
    ),
    ("last_error", ctypes.c_char_p),
    ("best_target", ctypes.c_int32, _NUMBER, _NUMBER, ctypes.POINTER(TargetStruct), _NUMBER),
    ("known_capability", ctypes.c_char_p, _NUMBER, *[ctypes.POINTER(_NUMBER)] * 2),
    ("verdict_name", ctypes.c_char_p, _NUMBER),
)
"""Without their prefix: name, result, arguments."""


def open_library(folder: str = FOLDER) -> ctypes.CDLL:
    """Return the loader's library, with the types of its functions.

    Raises:
        PluginError: it is missing or can't be opened.
    """
    path = os.path.join(folder, LIBRARY)  # noqa: PTH118 (pathlib is slow)
    try:
        # ld.so maps a truncated library without an error, and the process dies later.
        check_library(path)
        library = ctypes.CDLL(path)
        for name, result, *arguments in _FUNCTIONS:
            function = getattr(library, f"archsplit_{name}")  # [] would make another object
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise PluginError(f"can't open the loader: {error}; install the core again") from error
    return library


def best_target(library: ctypes.CDLL, capability: str, names: Sequence[str]) -> str | None:
    """Return the best of some targets for a capability; None if no target runs."""
    rows = (TargetStruct * len(names))(*map(TargetStruct.parse, names))
    index = library.archsplit_best_target(*numbers(capability), rows, len(names))
    # The C function has no status: a negative index is its "none".
    return None if index < 0 else names[index]


def known_capabilities(library: ctypes.CDLL) -> Iterator[tuple[str, str]]:
    """Return the published capabilities, ascending, each with examples of GPUs."""
    major, minor = ctypes.c_uint32(), ctypes.c_uint32()
    index = 0
    while (gpus := library.archsplit_known_capability(index, major, minor)) is not None:
        yield f"{major.value}.{minor.value}", text(gpus)
        index += 1


def numbers(capability: object) -> tuple[int, int]:
    """Read ``9.0``.

    Raises:
        PluginError: it is anything else.
    """
    # A float is refused too: 12.0 and 12.00 would be equal, and 9.10 would become 9.1.
    match = isinstance(capability, str) and re.fullmatch("([1-9][0-9]{0,2})[.]([0-9])", capability)
    if not match:
        raise PluginError(f"{capability!r} is not a compute capability; write it like '9.0'")
    return int(match[1]), int(match[2])
