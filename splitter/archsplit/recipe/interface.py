"""The contract between a core and its plugins: the public header and the exported symbols."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

from archsplit.system.fs import read_file

if TYPE_CHECKING:
    from archsplit.recipe.model import Recipe

__pure__ = True

_WORD = re.compile(rb"[A-Za-z_][0-9A-Za-z_]*")


def interface_hash(recipe: Recipe) -> bytes:
    """SHA-256 of the symbols, sorted, and the header's content; line ends and order don't matter.

    Raises:
        InputError: the header can't be read any more.
    """
    header = read_file(recipe.root / recipe.interface.header)
    symbols = "".join(f"{symbol}\n" for symbol in sorted(recipe.interface.symbols))
    return hashlib.sha256(symbols.encode() + b"\n" + header.replace(b"\r\n", b"\n")).digest()


def interface_words(header: bytes) -> frozenset[bytes]:
    """Every word of a header that could be the name of a function, also those in comments."""
    return frozenset(_WORD.findall(header))
