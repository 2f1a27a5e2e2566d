"""Visibility of the interface's symbols, checked in each host object before the link.

The sources are compiled with ``-fvisibility=hidden``: only marked functions can be exported. A
missing mark would be an error only after the link of all targets. So the object of each source is
read right after its host compile, and one such object is made before all others.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from archsplit.errors import StepError
from archsplit.formats.elf import Elf, SectionType
from archsplit.formats.elf_dynamic import section_symbols
from archsplit.formats.reader import open_file
from archsplit.recipe.interface import declared_identifiers
from archsplit.system.fs import read_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path, PurePosixPath

    from archsplit.recipe.model import Recipe

_LOCAL, _HIDDEN = 0, {1, 2}  # STB_LOCAL; STV_INTERNAL and STV_HIDDEN
_MANGLED = re.compile(r"_Z(\d+)(\w+)")

VISIBILITY_HINT = (
    'declare each with __attribute__((visibility("default"))); or write host-flags ='
    ' ["-fvisibility=default"] in [compile], or for these sources in a [[source.group]]: in'
    " any case, the library exports the [interface] symbols only"
)
LINKAGE_HINT = 'declare each with extern "C": C++ gives it another, mangled name in the library'


def check_visibility(path: Path, source: PurePosixPath, symbols: Sequence[str]) -> None:
    """Check that the object of a source defines the interface's symbols with default visibility.

    Args:
        path: the object; it may define some of the symbols, or none.
        source: for the message.
        symbols: the functions of the interface.

    Raises:
        StepError: a symbol is hidden, or has the name of a C++ function.
        BinaryFormatError: the object is damaged.
    """
    wanted, hidden, mangled = set(symbols), [], []
    for name, is_hidden in _defined(path):
        if name in wanted and is_hidden:
            hidden.append(name)
        # A mangled name shows that extern "C" is missing.
        elif (plain := _plain_name(name)) in wanted:
            mangled.append(plain)
    if hidden:
        raise StepError(
            f"{source}: {', '.join(sorted(hidden))} can't be exported: the visibility is hidden",
            hint=VISIBILITY_HINT,
        )
    if mangled:
        raise StepError(
            f"{source}: {', '.join(sorted(set(mangled)))} can't be exported: a function of C++",
            hint=LINKAGE_HINT,
        )


def find_probe_source(recipe: Recipe) -> PurePosixPath | None:
    """Return the source with the most symbols of the interface; of several, the smallest.

    Raises:
        InputError: a source can't be read.
    """
    symbols = frozenset(symbol.encode() for symbol in recipe.interface.symbols)
    ranked = []
    for source in recipe.source.files:
        text = read_file(recipe.root / source)
        # A source without any of the symbols can't show that the mark is missing.
        if found := symbols & declared_identifiers(text):
            ranked.append((-len(found), len(text), source))
    return min(ranked)[2] if ranked else None


def _defined(path: Path) -> Iterator[tuple[str, bool]]:
    """Yield each symbol that an object defines for others, and True if hidden."""
    elf = Elf(open_file(path))
    for section in elf.sections():
        if section.type == SectionType.SYMBOLS:
            for symbol in section_symbols(elf, section):
                # Section 0 is an undefined symbol: another object defines it.
                if symbol.section != 0 and symbol.binding != _LOCAL:
                    yield symbol.name, symbol.other & 3 in _HIDDEN


def _plain_name(name: str) -> str:
    """Return the name of a mangled function outside of namespaces; "" for other symbols."""
    match = _MANGLED.match(name)
    return match[2][: int(match[1])] if match else ""
