"""Forms of files that can hold device code, by their first bytes."""

from __future__ import annotations

import enum
import os
import struct
from typing import TYPE_CHECKING

from archsplit.formats import device_pack
from archsplit.formats.elf import ELF_MAGIC, Machine
from archsplit.formats.fatbin import FATBIN_MAGIC
from archsplit.formats.libraries import AR_MAGIC, PE_MAGIC

if TYPE_CHECKING:
    from archsplit.formats.reader import Window

HEAD_SIZE = 20
"""Number of bytes of a file that `detect_form` needs."""

MACHINE_AT, CUDA_MACHINE = 18, struct.pack("<H", Machine.CUDA)
"""Offset of the machine in an ELF header, and its value in cubins."""


class Form(enum.Enum):
    """Forms of files that can hold device code."""

    ELF = enum.auto()
    PE = enum.auto()
    CUBIN = enum.auto()
    STATIC_LIBRARY = enum.auto()
    FATBIN = enum.auto()
    DEVICE_PACK = enum.auto()


def detect_form(head: bytes) -> Form | None:
    """Return the form of a file by its first bytes; None for other files."""
    # Host files and cubins differ only by the machine.
    if head.startswith(ELF_MAGIC):
        is_cubin = head[MACHINE_AT:HEAD_SIZE] == CUDA_MACHINE
        return Form.CUBIN if is_cubin else Form.ELF
    if head.startswith(PE_MAGIC):
        return Form.PE
    if head.startswith(AR_MAGIC):
        return Form.STATIC_LIBRARY
    if head.startswith(struct.pack("<I", FATBIN_MAGIC)):
        return Form.FATBIN
    if head.startswith(device_pack.PACK_MAGIC):
        return Form.DEVICE_PACK
    return None


def window_form(window: Window) -> Form | None:
    """Return the form of a mapped file by its first bytes; None for other files."""
    return detect_form(window.data[:HEAD_SIZE].tobytes())


def file_form(path: str) -> Form | None:
    """Return the form of a file by its first bytes.

    Raises:
        OSError: the file can't be read.
    """
    # Neither `Path` nor a file object: an environment has a hundred thousand files, and most are
    # read no further.
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return detect_form(os.read(descriptor, HEAD_SIZE))
    finally:
        os.close(descriptor)
