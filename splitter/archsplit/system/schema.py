"""JSON schemas: generated from records and their docstrings, and compared with their files.

Also the checks of records, built when they are first needed, and the text of their errors.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archsplit.system.fs import read_file

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping
    from typing import TypeVar

    from pydantic import TypeAdapter, ValidationError

    _Checked = TypeVar("_Checked")

__pure__ = True

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


def print_or_check(schema: str, arguments: list[str], *, subject: str, module: str) -> int:
    """Print a schema, or compare a file with it; return the exit status.

    Args:
        schema: the text of the schema.
        arguments: the command line.
        subject: the kind of file that the schema describes, for the help.
        module: the module that prints the schema with ``python -m``.
    """
    parser = argparse.ArgumentParser(description=f"the JSON schema of {subject}")
    parser.add_argument("--check", type=Path, metavar="FILE", help="compare instead of printing")
    file: Path | None = parser.parse_args(arguments).check
    if file is None:
        sys.stdout.write(schema)
        return 0
    # CI compares the file in the manual with the record.
    if read_file(file).decode() == schema:
        return 0
    sys.stderr.write(f"{file} differs from the generated schema\n")
    sys.stderr.write(f"hint: python -m {module} > {file}\n")
    return 1


def type_adapter(kind: type[_Checked]) -> TypeAdapter[_Checked]:
    """Return pydantic's checks of a type, built at the first call.

    Built at import, they would cost each command 0.1 s, whether it reads such a file or not.
    """
    return _build_adapter(kind)  # type: ignore[arg-type] # types can be hashed


@cache
def _build_adapter(kind: Hashable) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter  # noqa: PLC0415 (see `type_adapter`)

    return TypeAdapter(kind)  # type: ignore[arg-type] # any type is one


def schema_faults(error: ValidationError) -> str:
    """Return all faults with their paths: ``wheels.1.size: Input should be a valid integer``."""
    faults = ((".".join(map(str, fault["loc"])), fault["msg"]) for fault in error.errors())
    return "; ".join(f"{path}: {text}" if path else text for path, text in faults)
