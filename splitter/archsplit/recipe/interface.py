"""The interface of a recipe: the public header with all that it includes, and the symbols.

In: the tables of a recipe. Out: the hash that ties plugins to cores, and the symbols that no header
declares. Comments and strings declare nothing, so their words don't count.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

from archsplit.recipe.inputs import find_included_files
from archsplit.system.fs import read_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path, PurePosixPath

    from archsplit.recipe.model import Interface, Recipe

__pure__ = True

_WORD = re.compile(rb"[A-Za-z_][0-9A-Za-z_]*")
# A character literal is short: the apostrophes of 1'000'000 and of #error texts begin none.
_NO_CODE = re.compile(
    rb"//[^\n]*|/\*.*?(?:\*/|\Z)|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.[^'\n]{0,4}|[^'\\\n])'", re.DOTALL
)


def declared_identifiers(header: bytes) -> frozenset[bytes]:
    """Return all words of a header that could declare a function; none of its comments."""
    return frozenset(_WORD.findall(_NO_CODE.sub(b" ", header)))


def find_undeclared(
    root: Path, interface: Interface, include: Sequence[PurePosixPath]
) -> Iterator[tuple[int, str]]:
    """Yield each symbol that no header of the interface declares, with its position.

    Args:
        root: the recipe's folder.
        interface: the header, which may include others of the folder, and the symbols.
        include: the folders to search for included headers.

    Raises:
        InputError: a header can't be read.
        RecipeError: a header includes a file from outside of the recipe's folder.
    """
    files = find_included_files(root, [interface.header], include)
    known = frozenset().union(*(declared_identifiers(read_file(root / file)) for file in files))
    for index, symbol in enumerate(interface.symbols):
        if symbol.encode() not in known:
            yield index, symbol


def hash_interface(recipe: Recipe) -> bytes:
    """Return the SHA-256 of the sorted symbols, the header, and the headers that it includes.

    Raises:
        InputError: a header can't be read any more.
    """
    root, header = recipe.root, recipe.interface.header
    # The order of symbols and the line ends of a checkout change no interface.
    symbols = "".join(f"{symbol}\n" for symbol in sorted(recipe.interface.symbols))
    digest = hashlib.sha256(symbols.encode() + b"\n" + _content(root / header))
    # A type of an argument may be declared in another header.
    included = find_included_files(root, [header], recipe.source.all_include) - {header}
    for file in sorted(included):
        digest.update(f"\n{file}\n".encode() + _content(root / file))
    return digest.digest()


def _content(path: Path) -> bytes:
    return read_file(path).replace(b"\r\n", b"\n")
