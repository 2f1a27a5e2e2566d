"""Faults of a recipe: each with its key, line and hint, all of them in one error."""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, cast

from archsplit.errors import RecipeError
from archsplit.recipe.model import LISTED_TABLES, RECIPE_TABLES
from archsplit.recipe.policy import POLICY_TABLE, Policy
from archsplit.recipe.values import InvalidValue

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

    from archsplit.recipe.toml_document import KeyPath, RecipeDocument

__pure__ = True

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
        # pydantic marks the key of a mapping, which is no part of the path in the file.
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
    near = difflib.get_close_matches(str(key), known, n=1)
    # The key may be valid in another table.
    elsewhere = [f"{table}.{key}" for table in tables if key in _keys_of((table,), tables)]
    if near:
        hint = f"did you mean {near[0]}?"
    elif elsewhere:
        hint = f"did you mean {elsewhere[0]}?"
    else:
        hint = f"known here: {', '.join(known)}"
    return RecipeFault(path=path, message="is not a key that archsplit knows", hint=hint)


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
    # The input of a missing or too short value is empty, so only other messages show it.
    if detail["type"] == "literal_error":
        return f"must be {detail['ctx']['expected']}, not {detail['input']!r}"
    message = _MESSAGES.get(detail["type"], detail["msg"])
    return (
        message
        if detail["type"] in {"missing", "too_short"}
        else f"{message}, not {detail['input']!r}"
    )


def _keys_of(path: KeyPath, tables: Mapping[str, type]) -> list[str]:
    if not path:
        return [*tables, POLICY_TABLE]
    if path[0] == POLICY_TABLE:
        table: type = Policy
    else:
        # Below a table there are only lists of tables: the name of the list is second.
        table = tables[str(path[0])] if len(path) == 1 else LISTED_TABLES[str(path[1])]
    return [field.name.replace("_", "-") for field in fields(table)]
