"""Read a recipe's file, and remember where in it everything is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from archsplit.errors import RecipeError
from archsplit.recipe.toml_document import locate
from archsplit.system.fs import input_errors, read_file
from archsplit.system.toml import loads

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from archsplit.recipe.toml_document import KeyPath

__pure__ = True

RECIPE_FILE = "recipe.toml"

_PLACE = re.compile(r" \(at line (\d+), column (\d+)\)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A recipe as it was read.

    Attributes:
        file: the recipe itself.
        content: what it says.
        lines: where each key, table and list entry is, counted from 1.
    """

    file: Path
    content: Mapping[str, object]
    lines: Mapping[KeyPath, int]

    @property
    def root(self) -> Path:
        """The recipe's folder, absolute."""
        return self.file.parent.resolve()


def read_document(path: Path) -> Document:
    """Read a recipe, which its folder may stand for.

    Raises:
        InputError: the file can't be read.
        RecipeError: it is not UTF-8, or not TOML; the message has the line.
    """
    with input_errors(path):
        file = path / RECIPE_FILE if path.is_dir() else path
    text = _decode(read_file(file), file)
    try:
        return Document(file=file, content=loads(text), lines=locate(text))
    except RecursionError:
        raise RecipeError(f"{file}: lists or tables are nested too deep") from None
    except ValueError as error:
        message = str(error)
        place = _PLACE.search(message)
        where = f"{file}:{place[1]}:{place[2]}" if place else str(file)
        raise RecipeError(
            f"{where}: not TOML: {_PLACE.sub('', message)}",
            hint="see https://toml.io for the syntax",
        ) from None


def _decode(content: bytes, file: Path) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise RecipeError(
            f"{file}:{line}: not UTF-8: {error.reason} at byte {error.start}",
            hint="save the file as UTF-8, as TOML asks for",
        ) from None
