"""JSON schemas that are made from records and their docstrings, and held against their files.

What is wrong with something that was read, on one line; pure.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archsplit.system.fs import read_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pydantic import ValidationError

__pure__ = True

_ATTRIBUTE = re.compile(r"^    (\w+): (.+(?:\n        .+)*)", re.MULTILINE)


def documented_schema(
    record: type, properties: Mapping[str, Mapping[str, Any]], *, required: Iterable[str]
) -> dict[str, Any]:
    """The schema of a record: its properties, with what its docstring says of them."""
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
        "additionalProperties": False,
    }


def print_or_check(schema: str, arguments: list[str], *, of: str, module: str) -> int:
    """Print a schema, or check a file against it; returns the exit status.

    Args:
        of: the file that it describes.
        module: what ``python -m`` prints it with.
    """
    parser = argparse.ArgumentParser(description=f"the JSON schema of {of}")
    parser.add_argument("--check", type=Path, metavar="FILE", help="compare instead of printing")
    file: Path | None = parser.parse_args(arguments).check
    if file is None:
        sys.stdout.write(schema)
        return 0
    if read_file(file).decode() == schema:
        return 0
    sys.stderr.write(f"{file} is not what the code says\n")
    sys.stderr.write(f"hint: python -m {module} > {file}\n")
    return 1


def schema_faults(error: ValidationError) -> str:
    """Each fault with its place: ``wheels.1.size: Input should be a valid integer``."""
    faults = ((".".join(map(str, fault["loc"])), fault["msg"]) for fault in error.errors())
    return "; ".join(f"{where}: {what}" if where else what for where, what in faults)
