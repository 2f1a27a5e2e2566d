"""A recipe's file: its content, the line of each key, and the faults that were found in it.

In: a path; out: a `RecipeDocument`. The standard TOML parser keeps no positions, so the lines of
keys are searched in the text, which the parser has accepted. A `RecipeFault` has its key and hint,
and gets the line here; all faults go into one error.
"""

from __future__ import annotations

import difflib
import json
import re
import shlex
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, cast

from archsplit.errors import InputError, RecipeError
from archsplit.recipe.model import LISTED_TABLES, RECIPE_TABLES
from archsplit.recipe.policy import POLICY_TABLE, Policy
from archsplit.recipe.values import InvalidValue
from archsplit.system.fs import input_errors, read_file
from archsplit.system.toml import loads

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

__pure__ = True

KeyPath = tuple[str | int, ...]
"""Names of keys and indices of list entries: ``("project", "authors", 0, "name")``."""

_LONG_STRING = re.compile(r'"""(?:\\.|.)*?"""|\'\'\'.*?\'\'\'', re.DOTALL)
_KEY = r"""(?:[\w.\s-]|"[^"]*"|'[^']*')+"""
_HEADER = re.compile(rf"\s*\[(\[?)({_KEY})\]+\s*(?:#.*)?")
_NAME = re.compile(r"""[\w-]+|"[^"]*"|'[^']*'""")

RECIPE_FILE = "recipe.toml"

_PLACE = re.compile(r" \(at line (\d+), column (\d+)\)$")


_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_MESSAGES = {
    "missing": "is missing",
    "string_type": "must be text",
    "bool_type": "must be true or false",
    "tuple_type": "must be a list",
    "mapping_type": "must be a table",
    "dict_type": "must be a table",
    "dataclass_type": "must be a table",
    "dataclass_exact_type": "must be a table",
}


def locate_keys(text: str) -> dict[KeyPath, int]:
    """Return the lines of the tables and keys of a valid TOML text.

    Lines count from 1. Only keys that begin a line are found: what follows on the line of a key,
    or in the lines of its list, has no line of its own.
    """
    found: dict[KeyPath, int] = {}
    table: KeyPath = ()
    # Only the ends of lines in it count.
    text = _LONG_STRING.sub(lambda string: "\n" * string[0].count("\n"), text)
    for number, line in enumerate(text.split("\n"), start=1):
        path: KeyPath = ()
        before, equals, _ = line.partition("=")
        if header := _HEADER.fullmatch(line):
            path = table = _key_path(header[2])
            if header[1]:
                entries = (path for path in found if path[:-1] == table)
                path = table = (*table, sum(isinstance(path[-1], int) for path in entries))
        elif equals and re.fullmatch(_KEY, before):
            path = (*table, *_key_path(before))
        for length in range(1, len(path) + 1):
            # The first place wins: a table may be continued by later headers.
            found.setdefault(path[:length], number)
    return found


def _key_path(text: str) -> KeyPath:
    return tuple(name.strip("\"'") for name in _NAME.findall(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeDocument:
    """Content of a recipe's file.

    Attributes:
        file: path of the recipe.
        content: the decoded TOML.
        lines: see `locate_keys`.
    """

    file: Path
    content: Mapping[str, object]
    lines: Mapping[KeyPath, int]

    @property
    def root(self) -> Path:
        """Recipe's folder, absolute."""
        return self.file.parent.resolve()


def read_document(path: Path) -> RecipeDocument:
    """Read a recipe, given as a file or as its folder.

    Raises:
        InputError: the file can't be read.
        RecipeError: the file is not UTF-8 or not TOML; the message has the line.
    """
    with input_errors(path):
        file = path / RECIPE_FILE if path.is_dir() else path
        if file != path and not file.exists():
            hint = f"archsplit init {shlex.quote(str(path))} writes one"
            raise InputError(f"{path} has no {RECIPE_FILE}", hint=hint)
    text = _decode(read_file(file), file)
    try:
        return RecipeDocument(file=file, content=loads(text), lines=locate_keys(text))
    # The library recurses, and a recipe is input from others.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeFault:
    """A fault of a recipe.

    Attributes:
        path: the key; () for the file as a whole.
        message: the fault, to be read after the key.
        hint: what to do about it, or None.
    """

    path: KeyPath
    message: str
    hint: str | None = None


def translate_faults(
    error: ValidationError, table: str, tables: Mapping[str, type] = RECIPE_TABLES
) -> Iterator[RecipeFault]:
    """Return pydantic's findings in one table as faults of the recipe.

    Args:
        error: pydantic's findings.
        table: the table's name.
        tables: all tables of this kind of recipe.
    """
    for detail in error.errors():
        # pydantic marks the key of a mapping, which the path in the file doesn't have.
        path = (table, *(part for part in detail["loc"] if part != "[key]"))
        # pydantic only reports that the key is unknown; a similar key is the useful hint.
        if detail["type"] == "unexpected_keyword_argument":
            yield unknown_key_fault(path, tables)
            continue
        reason = detail.get("ctx", {}).get("error")
        # Our own types have a hint; pydantic's have not.
        if isinstance(reason, InvalidValue):
            yield RecipeFault(path=(*path, *reason.at), message=str(reason), hint=reason.hint)
        else:
            yield RecipeFault(path=path, message=_describe(detail))


def unknown_key_fault(path: KeyPath, tables: Mapping[str, type] = RECIPE_TABLES) -> RecipeFault:
    """Return the fault of an unknown key; the hint has the most similar valid key."""
    *outer, key = path
    known = _keys_of(cast("KeyPath", tuple(outer)), tables)
    # The key may be valid in another table.
    elsewhere = [f"{table}.{key}" for table in tables if key in _keys_of((table,), tables)]
    near = [*difflib.get_close_matches(str(key), known, n=1), *elsewhere]
    hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}"
    kind = "" if tables is RECIPE_TABLES else " in a recipe for a prebuilt file"
    return RecipeFault(path=path, message=f"unknown key{kind}", hint=hint)


def raise_faults(faults: Iterable[RecipeFault], document: RecipeDocument) -> None:
    """Raise one error with all faults in the file's order, if any.

    Raises:
        RecipeError: there are faults.
    """
    file, lines = document.file, document.lines
    # By line and not by table: people correct a file from top to bottom.
    placed = sorted((_line(fault.path, lines), _fault_text(fault)) for fault in faults)
    if placed:
        count = "1 fault" if len(placed) == 1 else f"{len(placed)} faults"
        texts = [f"{file}:{line}: {text}" for line, text in placed]
        raise RecipeError("\n".join([f"{file} has {count}", *texts]))


def dotted_key(path: KeyPath) -> str:
    """Return a key's name in TOML's form: ``project.authors[0].name``."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{_key(part)}" for part in path)
    return "".join(parts).removeprefix(".")


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else json.dumps(name)


def _line(path: KeyPath, lines: Mapping[KeyPath, int]) -> int:
    """Return the line of a key, or of the innermost table around a missing key."""
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path, 1)


def _fault_text(fault: RecipeFault) -> str:
    text = f"{dotted_key(fault.path)}: {fault.message}" if fault.path else fault.message
    return f"{text}\n    hint: {fault.hint}" if fault.hint else text


def _describe(detail: ErrorDetails) -> str:
    message = _MESSAGES.get(detail["type"], detail["msg"])
    if detail["type"] == "literal_error":
        message = f"must be {detail['ctx']['expected']}"
    # The input of a missing or too short value is empty.
    is_empty = detail["type"] in {"missing", "too_short"}
    return message if is_empty else f"{message}, not {detail['input']!r}"


def _keys_of(path: KeyPath, tables: Mapping[str, type]) -> list[str]:
    if not path:
        return [*tables, POLICY_TABLE]
    if path[0] == POLICY_TABLE:
        table: type = Policy
    else:
        # Below a table there are only lists of tables: the name of the list is second.
        table = tables[str(path[0])] if len(path) == 1 else LISTED_TABLES[str(path[1])]
    return [field.name.replace("_", "-") for field in fields(table)]
