"""JSON schema of the manifest, generated from its records and their docstrings.

``python -m archsplit.release.manifest_schema`` prints the schema; ``--check FILE`` compares a file
with it.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pydantic import TypeAdapter

from archsplit.release import manifest
from archsplit.release.manifest import MANIFEST_FILE, MANIFEST_SCHEMA, Manifest
from archsplit.system.schema import documented_schema, print_or_check

__pure__ = True


def manifest_schema() -> str:
    """Return the text of the schema, the same for every version of Python."""
    schema = TypeAdapter(Manifest).json_schema()
    records = {name: _described(one, name) for name, one in schema.pop("$defs").items()}
    whole = _described(schema, "Manifest")
    content = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "archsplit release manifest",
        **whole,
        "properties": {"schema": {"const": MANIFEST_SCHEMA}, **whole["properties"]},
        "required": ["schema", *whole["required"]],
        "$defs": dict(sorted(records.items())),
    }
    return json.dumps(content, indent=2) + "\n"


def print_manifest_schema(arguments: list[str]) -> int:
    """Print the schema, or compare a file with it; return the exit status."""
    schema = manifest_schema()
    return print_or_check(
        schema, arguments, subject=MANIFEST_FILE, module="archsplit.release.manifest_schema"
    )


def _described(schema: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a record's schema with the descriptions of its docstring; all fields are required."""
    properties = {key: _plain(value) for key, value in schema["properties"].items()}
    return documented_schema(getattr(manifest, name), properties, required=properties)


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key not in {"title", "default"}}


if __name__ == "__main__":  # pragma: no cover (runs in a process of its own)
    sys.exit(print_manifest_schema(sys.argv[1:]))
