"""JSON schemas of recipes and manifests, made from their records and docstrings.

``python tools/schemas.py`` writes ``recipes/recipe.schema.json`` and ``docs/manifest.schema.json``;
``--check`` compares them.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter
from written_files import ROOT, write_or_check

from archsplit.recipe.model import LISTED_TABLES, RECIPE_TABLES
from archsplit.recipe.policy import POLICY_TABLE, Policy, PolicyName
from archsplit.recipe.prebuilt import PREBUILT_TABLES
from archsplit.release import manifest
from archsplit.release.manifest import MANIFEST_SCHEMA, Manifest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_DRAFT = "https://json-schema.org/draft/2020-12/schema"
# An entry of a docstring's "Attributes:", with its continuation lines.
_ATTRIBUTE = re.compile(r"^    (\w+): (.+(?:\n        .+)*)", re.MULTILINE)


def documented_schema(
    record: type, properties: Mapping[str, Mapping[str, Any]], *, required: Iterable[str]
) -> dict[str, Any]:
    """Return the schema of a record, with the descriptions of its docstring.

    Raises:
        KeyError: the docstring describes no attribute of a property's name.
    """
    text = inspect.getdoc(record) or ""
    meaning = {name: " ".join(rest.split()) for name, rest in _ATTRIBUTE.findall(text)}
    return {
        "description": text.partition("\n")[0],
        "type": "object",
        "properties": {
            key: {"description": meaning[key.replace("-", "_")], **value}
            for key, value in properties.items()
        },
        "required": list(required),
        # A misspelled key must not pass.
        "additionalProperties": False,
    }


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
        "$schema": _DRAFT,
        "title": "archsplit recipe",
        "type": "object",
        "properties": properties,
        "required": ["source"],
        "if": {"properties": {"source": {"required": ["files"]}}},
        "then": {"required": with_sources},
        "additionalProperties": False,
    }
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


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


def manifest_schema() -> str:
    """Return the text of the schema, the same for every version of Python."""
    schema = TypeAdapter(Manifest).json_schema()
    records = {name: _manifest_record(one, name) for name, one in schema.pop("$defs").items()}
    whole = _manifest_record(schema, "Manifest")
    content = {
        "$schema": _DRAFT,
        "title": "archsplit release manifest",
        **whole,
        "properties": {"schema": {"const": MANIFEST_SCHEMA}, **whole["properties"]},
        "required": ["schema", *whole["required"]],
        "$defs": dict(sorted(records.items())),
    }
    return json.dumps(content, indent=2) + "\n"


def _manifest_record(schema: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a record's schema with the descriptions of its docstring; all fields are required."""
    properties = {
        key: {word: text for word, text in value.items() if word not in {"title", "default"}}
        for key, value in schema["properties"].items()
    }
    return documented_schema(getattr(manifest, name), properties, required=properties)


def main(arguments: list[str]) -> int:
    """Write the schemas, or name those that differ."""
    schemas = {
        ROOT / "recipes" / "recipe.schema.json": recipe_schema(),
        ROOT / "docs" / "manifest.schema.json": manifest_schema(),
    }
    return write_or_check(schemas, arguments, source="the records", tool="schemas.py")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
