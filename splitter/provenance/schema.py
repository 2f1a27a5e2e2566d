"""The JSON schema of the manifest, made from its records and their docstrings.

``python -m splitter.provenance.schema`` prints it; with ``--check FILE`` it says whether the file
still has the same content.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import sys
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from splitter.provenance import manifest
from splitter.provenance.manifest import SCHEMA, Manifest
from splitter.system.files import read_file

_ATTRIBUTE = re.compile(r"^    (\w+): (.+(?:\n        .+)*)", re.MULTILINE)


def manifest_schema() -> str:
    """The schema as text, the same for every version of Python."""
    schema = TypeAdapter(Manifest).json_schema()
    records = {name: _described(one, name) for name, one in schema.pop("$defs").items()}
    whole = _described(schema, "Manifest")
    content = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "archsplit release manifest",
        **whole,
        "properties": {"schema": {"const": SCHEMA}, **whole["properties"]},
        "required": ["schema", *whole["required"]],
        "$defs": dict(sorted(records.items())),
    }
    return json.dumps(content, indent=2) + "\n"


def main(arguments: list[str]) -> int:
    """Print the schema, or check a file against it; returns the exit status."""
    parser = argparse.ArgumentParser(description="the JSON schema of archsplit-manifest.json")
    parser.add_argument("--check", type=Path, metavar="FILE", help="compare instead of printing")
    file: Path | None = parser.parse_args(arguments).check
    if file is None:
        sys.stdout.write(manifest_schema())
        return 0
    if read_file(file).decode() == manifest_schema():
        return 0
    sys.stderr.write(f"{file} is not what the code says\n")
    sys.stderr.write(f"hint: python -m splitter.provenance.schema > {file}\n")
    return 1


def _described(schema: dict[str, Any], name: str) -> dict[str, Any]:
    """Take the descriptions from the record's docstring; every field is always written."""
    text = inspect.getdoc(getattr(manifest, name)) or ""
    meaning = {key: " ".join(rest.split()) for key, rest in _ATTRIBUTE.findall(text)}
    properties = {
        key: {"description": meaning[key], **_plain(value)}
        for key, value in schema["properties"].items()
    }
    return {
        "description": text.partition("\n")[0],
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key not in {"title", "default"}}


if __name__ == "__main__":  # pragma: no cover (runs in a process of its own)
    sys.exit(main(sys.argv[1:]))
