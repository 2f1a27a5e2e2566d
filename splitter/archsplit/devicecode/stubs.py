"""Containers in which there is nothing to run.

nvcc's device link writes one into every library, also where no object has anything to link: cubins
of notes and bookkeeping for each machine-code target, and no PTX. A GPU that takes PTX everywhere
else finds nothing in it, and misses nothing: no host code can name a kernel or variable of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from archsplit.arch.target import CodeKind
from archsplit.devicecode.decompress import decompress
from archsplit.errors import BinaryFormatError
from archsplit.formats.cubin import Cubin
from archsplit.formats.elf_sections import SectionType
from archsplit.formats.reader import Window
from archsplit.formats.symbols import section_symbols

if TYPE_CHECKING:
    from archsplit.devicecode.rewrite import FilteredContainer
    from archsplit.formats.entry import FatbinEntry

_MOST = 8192
"""Bytes of the longest image that is looked at; those of CUDA 11.8 to 13.0 have 600 to 1600."""

_SECTION_SYMBOL = 3  # STT_SECTION
_CODE_AND_DATA = (".text", ".nv.global", ".nv.constant", ".nv.shared")


def is_stub(one: FilteredContainer) -> bool:
    """Whether all of a container is machine code without code: no function, no variable."""
    return all(_holds_nothing(one, entry) for entry in one.entries)


def _holds_nothing(one: FilteredContainer, entry: FatbinEntry) -> bool:
    is_sass = entry.target is not None and entry.target.kind is CodeKind.SASS
    if not is_sass or max(entry.payload_size, entry.uncompressed_size) > _MOST:
        return False
    try:
        content = decompress(entry, one.container.payload(entry))
        elf = Cubin(Window(content, source="an image")).elf
        return not any(map(_is_content, (part.name for part in elf.sections()))) and not any(
            symbol.name and symbol.type != _SECTION_SYMBOL
            for part in elf.sections()
            if part.type == SectionType.SYMBOLS
            for symbol in section_symbols(elf, part)
        )
    except BinaryFormatError:
        # What can't be read may be anything.
        return False


def _is_content(section: str) -> bool:
    return section.startswith(_CODE_AND_DATA)
