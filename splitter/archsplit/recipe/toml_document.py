"""A recipe's file: its content, and the line of each key and list entry.

In: a path; out: a `RecipeDocument`. The standard TOML parser keeps no positions. The scanner here
adds them: its input is a text that the parser has accepted, so it only steps over values.
"""

from __future__ import annotations

import bisect
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from archsplit.errors import RecipeError
from archsplit.system.fs import input_errors, read_file
from archsplit.system.toml import loads

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__pure__ = True

KeyPath = tuple[str | int, ...]
"""Names of keys and indices of list entries: ``("project", "authors", 0, "name")``."""

_BLANK = re.compile(r"(?:[ \t\n]|#[^\n]*)*")
_BARE = re.compile(r"[^\s=.\]\"']+")
_STRING = re.compile(
    r'"""(?s:\\.|[^\\])*?"{3,5}(?!")'
    r"|'''(?s:.)*?'{3,5}(?!')"
    r'|"(?:\\.|[^"\\\n])*"'
    r"|'[^'\n]*'"
)
_SCALAR = re.compile(r"[^,\]}#\n]+")

RECIPE_FILE = "recipe.toml"

_PLACE = re.compile(r" \(at line (\d+), column (\d+)\)$")


def locate_keys(text: str) -> dict[KeyPath, int]:
    """Return the line of each key, table and list entry of a valid TOML text.

    Lines count from 1.
    """
    # TOML has one kind of line end, which editors write in two ways.
    return _Scanner(text.replace("\r\n", "\n")).run()


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._line_ends = [match.start() for match in re.finditer("\n", text)]
        self._lines: dict[KeyPath, int] = {}
        self._last_entry: dict[KeyPath, int] = {}

    def run(self) -> dict[KeyPath, int]:
        table: KeyPath = ()
        self._skip(_BLANK)
        while self._at < len(self._text):
            if self._peek("["):
                table = self._header()
            else:
                self._pair(table)
            self._skip(_BLANK)
        return self._lines

    def _header(self) -> KeyPath:
        start, is_entry = self._at, self._peek("[[")
        self._at += 2 if is_entry else 1
        path: KeyPath = ()
        *outer, last = self._keys()
        for key in outer:
            path = (*path, key)
            self._note(path, start)
            # A header below a list of tables continues the last entry of the list.
            path = self._into_entry(path)
        path = (*path, last)
        self._note(path, start)
        if is_entry:
            self._last_entry[path] = self._last_entry.get(path, -1) + 1
        path = self._into_entry(path)
        self._note(path, start)
        self._at += 2 if is_entry else 1
        return path

    def _into_entry(self, path: KeyPath) -> KeyPath:
        return (*path, self._last_entry[path]) if path in self._last_entry else path

    def _pair(self, table: KeyPath) -> None:
        start, path = self._at, table
        for key in self._keys():
            path = (*path, key)
            self._note(path, start)
        self._at += 1
        self._value(path)

    def _keys(self) -> list[str]:
        keys = [self._key()]
        while self._peek("."):
            self._at += 1
            keys.append(self._key())
        return keys

    def _key(self) -> str:
        self._skip(_BLANK)
        start, quoted = self._at, self._skip(_STRING)
        # Only the library knows all escapes in a quoted key, so it decodes the token.
        if not quoted:
            self._skip(_BARE)
        token = self._text[start : self._at]
        self._skip(_BLANK)
        return str(loads(f"key = {token}")["key"]) if quoted else token

    def _value(self, path: KeyPath) -> None:
        self._skip(_BLANK)
        if self._peek("["):
            self._list(path)
        elif self._peek("{"):
            self._inline_table(path)
        elif not self._skip(_STRING):
            self._skip(_SCALAR)
        self._skip(_BLANK)

    def _list(self, path: KeyPath) -> None:
        index = 0
        while self._next_entry("]"):
            self._note((*path, index), self._at)
            self._value((*path, index))
            index += 1

    def _inline_table(self, path: KeyPath) -> None:
        while self._next_entry("}"):
            self._pair(path)

    def _next_entry(self, end: str) -> bool:
        """Step over the opening bracket or a comma; at the end, over the closing bracket."""
        # TOML allows a comma before the closing bracket.
        if not self._peek(end):
            self._at += 1
            self._skip(_BLANK)
        if self._peek(end):
            self._at += 1
            return False
        return True

    def _peek(self, text: str) -> bool:
        return self._text.startswith(text, self._at)

    def _skip(self, pattern: re.Pattern[str]) -> bool:
        match = pattern.match(self._text, self._at)
        # "Nothing skipped" is no error: the parser has accepted the text.
        if match is None:
            return False
        self._at = match.end()
        return True

    def _note(self, path: KeyPath, at: int) -> None:
        # The first place wins: a table may be continued by later headers.
        self._lines.setdefault(path, bisect.bisect_left(self._line_ends, at) + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeDocument:
    """The content of a recipe's file.

    Attributes:
        file: path of the recipe.
        content: the decoded TOML.
        lines: line of each key, table and list entry, from 1.
    """

    file: Path
    content: Mapping[str, object]
    lines: Mapping[KeyPath, int]

    @property
    def root(self) -> Path:
        """The recipe's folder, absolute."""
        return self.file.parent.resolve()


def read_document(path: Path) -> RecipeDocument:
    """Read a recipe, given as a file or as its folder.

    Raises:
        InputError: the file can't be read.
        RecipeError: the file is not UTF-8 or not TOML; the message has the line.
    """
    with input_errors(path):
        file = path / RECIPE_FILE if path.is_dir() else path
    text = _decode(read_file(file), file)
    try:
        return RecipeDocument(file=file, content=loads(text), lines=locate_keys(text))
    # Both the library and the scanner recurse, and a recipe is input from others.
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
            hint="save the file as UTF-8, as TOML requires",
        ) from None
