"""The JSON schema of ``recipe.toml``, made from the tables and their docstrings.

``python -m archsplit.recipe.schema`` prints the schema; ``--check FILE`` compares a file with it.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pydantic import TypeAdapter

from archsplit.recipe.model import LISTED_TABLES, RECIPE_TABLES
from archsplit.recipe.policy import POLICY_TABLE, Policy, PolicyName
from archsplit.recipe.prebuilt import PREBUILT_TABLES
from archsplit.system.schema import documented_schema, print_or_check

__pure__ = True


def recipe_schema() -> str:
    """Return the schema as text, the same for every version of Python."""
    properties = {name: _table(table) for name, table in RECIPE_TABLES.items()}
    properties[POLICY_TABLE] = _policies()
    with_sources = [name for name, table in properties.items() if table["required"]]
    for name, table in PREBUILT_TABLES.items():
        properties[name] = (
            _merged(properties[name], _table(table)) if name in properties else _table(table)
        )
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "archsplit recipe",
        "type": "object",
        "properties": properties,
        "required": ["source"],
        "if": {"properties": {"source": {"required": ["files"]}}},
        "then": {"required": with_sources},
        "additionalProperties": False,
    }
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def print_recipe_schema(arguments: list[str]) -> int:
    """Print the schema, or compare a file with it; return the exit status."""
    schema = recipe_schema()
    return print_or_check(
        schema, arguments, subject="recipe.toml", module="archsplit.recipe.schema"
    )


def _table(table: type) -> dict[str, Any]:
    schema = TypeAdapter(table).json_schema()
    definitions = schema.pop("$defs", {})
    for key, listed in LISTED_TABLES.items():
        if listed.__name__ in definitions:
            items = _described(definitions[listed.__name__], listed)
            schema["properties"][key]["items"] = items
    return _described(schema, table)


def _merged(table: dict[str, Any], prebuilt: dict[str, Any]) -> dict[str, Any]:
    """Return a table of both kinds of recipes, with the keys and values of both."""
    keys = {**prebuilt["properties"], **table["properties"]}
    # A key of both kinds of recipes accepts the values of both.
    for key, other in prebuilt["properties"].items():
        more = [value for value in other.get("enum", []) if value not in keys[key]["enum"]]
        if more:
            description = f"{keys[key]['description']} {other['description']}"
            keys[key] = {**keys[key], "description": description, "enum": other["enum"]}
    ordered = dict.fromkeys((*table["properties"], *prebuilt["properties"]))
    both = [key for key in table["required"] if key in prebuilt["required"]]
    texts = (table["description"], prebuilt["description"])
    return {
        **table,
        "description": " ".join(dict.fromkeys(texts)),
        "properties": {key: keys[key] for key in ordered},
        "required": both,
    }


def _policies() -> dict[str, Any]:
    """Return the schema of tables with any name and the same keys."""
    return {
        "description": "Builds that make less of the recipe, by their names.",
        "type": "object",
        "propertyNames": TypeAdapter(PolicyName).json_schema(),
        "additionalProperties": _table(Policy),
        "required": [],
    }


def _described(schema: dict[str, Any], table: type) -> dict[str, Any]:
    properties = {key: _plain(value) for key, value in schema["properties"].items()}
    return documented_schema(table, properties, required=schema.get("required", ()))


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    """Remove generated titles, and defaults that only mark a missing key."""
    # TOML has no null.
    kinds = [kind for kind in schema.get("anyOf", []) if kind != {"type": "null"}]
    kept = {key: value for key, value in schema.items() if key not in {"title", "anyOf"}}
    # An editor would offer the empty default as a value.
    if not kept.get("default", True):
        del kept["default"]
    return {**kept, **(kinds[0] if kinds else {})}


if __name__ == "__main__":  # pragma: no cover (runs in a process of its own)
    sys.exit(print_recipe_schema(sys.argv[1:]))
