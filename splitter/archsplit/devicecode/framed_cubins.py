"""Cubins inside zstd frames, as cuBLASLt has them in its data: nothing but the head is unpacked.

A module of its own, because the search reads them and imports nothing of the editors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from archsplit.devicecode.compression import decompress_head
from archsplit.errors import BinaryFormatError
from archsplit.formats.cubin import read_capability
from archsplit.formats.reader import Window
from archsplit.formats.zstd_frame import frame_size

if TYPE_CHECKING:
    from archsplit.arch.target import Capability

_ELF_HEADER = 64


def framed_cubin(window: Window) -> tuple[Capability, int] | None:
    """Return the capability and the size of the framed cubin that begins a window.

    Other data gives None: a frame of something else, or bytes that look like a frame.
    """
    try:
        size = frame_size(window)
        head = decompress_head(window.part(0, size, "zstd frame"), _ELF_HEADER)
        return read_capability(Window(head, source="the head of a cubin")), size
    except BinaryFormatError:
        return None
