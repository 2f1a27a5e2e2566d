"""Facts of a shared library that a release is checked by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from archsplit.formats.descriptor import read_descriptor
from archsplit.formats.elf import Elf
from archsplit.formats.elf_dynamic import Dynamic
from archsplit.formats.fatbin import EXECUTABLE, RELOCATABLE, host_containers
from archsplit.formats.reader import open_file

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.arch.target import Target
    from archsplit.formats.descriptor import Descriptor


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """A shared library.

    Attributes:
        descriptor: the plugin's descriptor; None for a library that is no plugin.
        containers: the targets of each fatbin container.
        exports: the names of the symbols that it defines for others.
        relocatable: the targets of each container that a device link takes.
    """

    descriptor: Descriptor | None
    containers: tuple[frozenset[Target], ...]
    exports: frozenset[str]
    relocatable: tuple[frozenset[Target], ...] = ()

    @property
    def targets(self) -> frozenset[Target]:
        """All targets that the library has code for."""
        return frozenset().union(*self.containers, *self.relocatable)


def read_library(path: Path) -> Library:
    """Read a library without decompressing device code.

    Raises:
        InputError: the file can't be read.
        BinaryFormatError: it is no ELF file, or a damaged one.
    """
    elf = Elf(open_file(path))
    # Containers of the two sections are judged by different rules.
    targets_by_section: dict[str, list[frozenset[Target]]] = {EXECUTABLE: [], RELOCATABLE: []}
    for section, container in host_containers(elf):
        targets = (entry.target for entry in container.entries())
        targets_by_section[section.name].append(
            frozenset(target for target in targets if target is not None)
        )
    return Library(
        descriptor=read_descriptor(elf),
        containers=tuple(targets_by_section[EXECUTABLE]),
        relocatable=tuple(targets_by_section[RELOCATABLE]),
        exports=frozenset(symbol.name for symbol in Dynamic(elf).exported_symbols()),
    )
