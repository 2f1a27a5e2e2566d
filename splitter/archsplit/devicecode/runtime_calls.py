"""What PTX that the driver will link calls in CUDA's device runtime."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from archsplit.arch.target import CodeKind
from archsplit.devicecode.decompress import decompress
from archsplit.formats.elf import Elf
from archsplit.formats.fatbin import RELOCATABLE, containers_of
from archsplit.formats.mapped import open_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_EXTERNAL = re.compile(rb"\.extern\s+\.func\s*(?:\([^)]*\)\s*)?((?:__)?cuda\w+)")


def device_runtime_calls(path: Path) -> frozenset[str]:
    """The device runtime's functions that a library's relocatable PTX calls, as launches do.

    Raises:
        InputError: the file can't be read.
        BinaryFormatError: it is no ELF file, or a damaged one.
    """
    elf = Elf(open_file(path))
    return frozenset(
        name.decode() for text in _relocatable_ptx(elf) for name in _EXTERNAL.findall(text)
    )


def _relocatable_ptx(elf: Elf) -> Iterator[bytes]:
    for section, container in containers_of(elf):
        if section.name == RELOCATABLE:
            for entry in container.entries():
                if entry.target is not None and entry.target.kind is CodeKind.PTX:
                    yield decompress(entry, container.payload(entry))
