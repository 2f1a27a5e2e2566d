"""The kinds of paths in a recipe, each held against the recipe's folder while it is read.

pydantic hands the folder through as the validation's context. A path stays what the recipe says; a
pattern stays a pattern, and `archsplit.recipe.load` replaces it by the files that it matches.
"""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath
from typing import Annotated

from pydantic import AfterValidator, PlainValidator, ValidationInfo

from archsplit.errors import InputError
from archsplit.nvcc.shell import unusable
from archsplit.recipe.globs import matching_files
from archsplit.recipe.interface import interface_words
from archsplit.recipe.values import InvalidValue, SymbolName
from archsplit.system.fs import read_file

__pure__ = True


def _relative(value: object) -> PurePosixPath:
    value = str(value) if isinstance(value, PurePosixPath) else value  # a default of ours
    if not isinstance(value, str):
        raise InvalidValue(f"must be text, not {value!r}")
    if not value or not value.isprintable() or "\\" in value:
        raise InvalidValue(f"{value!r} is not a path", hint="write it with '/' between its parts")
    path = PurePosixPath(value)
    if path.is_absolute() or ".." in path.parts:
        raise InvalidValue(
            f"{value!r} leads out of the recipe's folder",
            hint="write it relative to the recipe's folder, and put the file there",
        )
    return path


def _include_folder(value: object, info: ValidationInfo) -> PurePosixPath:
    return _for_nvcc(_folder(value, info), "rename the folder")


def _folder(value: object, info: ValidationInfo) -> PurePosixPath:
    path = _relative(value)
    # Path.is_dir raises for a folder that can't be looked into, but not from Python 3.14 on.
    if not os.path.isdir(_root(info) / path):  # noqa: PTH112
        raise InvalidValue(
            f"the folder {path} is not there", hint=f"it is looked for in {_root(info)}"
        )
    return path


def _file(value: object, info: ValidationInfo) -> PurePosixPath:
    path = _relative(value)
    _read(path, info)
    return path


def _text_file(value: object, info: ValidationInfo) -> PurePosixPath:
    path = _relative(value)
    try:
        _read(path, info).decode()
    except UnicodeDecodeError as error:
        raise InvalidValue(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from None
    return path


def _pattern(value: object, info: ValidationInfo) -> PurePosixPath:
    return _matched(value, _root(info))


def _source_pattern(value: object, info: ValidationInfo) -> PurePosixPath:
    pattern = _matched(value, _root(info))
    for file in matching_files(_root(info), pattern):
        _for_nvcc(file, "rename the file")
    return pattern


def _for_nvcc(path: PurePosixPath, hint: str) -> PurePosixPath:
    text = str(path)
    # "-…" would be an option of nvcc's, and "@…" a file of options to the host's compiler.
    odd = unusable(text) or next((first for first in "-@" if text.startswith(first)), None)
    if odd:
        raise InvalidValue(f"nvcc can't have the {odd} in {text!r}", hint=hint)
    return path


def _python_pattern(value: object, info: ValidationInfo) -> PurePosixPath:
    # The root is missing here when it was refused itself.
    return (
        _matched(value, _root(info) / info.data["root"])
        if "root" in info.data
        else file_pattern(value)
    )


def file_pattern(value: object) -> PurePosixPath:
    """A pattern that no folder was looked into for yet, or `InvalidValue`."""
    path = _relative(value)
    if not path.parts:
        raise InvalidValue(
            f"{value!r} is a folder, not a pattern of files", hint="write it as in *.cu"
        )
    if any("**" in part and part != "**" for part in path.parts):
        raise InvalidValue(
            f"in {value!r}, '**' is only a part of a name", hint="write it as in **/*.cu"
        )
    return path


def _matched(value: object, root: Path) -> PurePosixPath:
    pattern = file_pattern(value)
    try:
        files = matching_files(root, pattern)
    except OSError as error:
        raise InvalidValue(f"can't list {error.filename}: {error.strerror}") from None
    if not files:
        raise InvalidValue(f"no file matches {pattern}", hint=f"it is looked for in {root}")
    odd = [str(file) for file in files if not str(file).isprintable()]
    if odd:
        raise InvalidValue(f"the file name {odd[0]!r} can't be printed", hint="rename the file")
    return pattern


def _declared(symbol: str, info: ValidationInfo) -> str:
    header = info.data.get("header")
    if header is not None and symbol.encode() not in interface_words(_read(header, info)):
        raise InvalidValue(
            f"{symbol} does not occur in {header}", hint="declare it there, or leave it out"
        )
    return symbol


def _read(path: PurePosixPath, info: ValidationInfo) -> bytes:
    try:
        return read_file(_root(info) / path)
    except InputError as error:
        raise InvalidValue(error.args[0]) from None


def _root(info: ValidationInfo) -> Path:
    assert isinstance(info.context, Path), "recipes are read with their folder as the context"
    return info.context


Folder = Annotated[PurePosixPath, PlainValidator(_folder, json_schema_input_type=str)]
FilePath = Annotated[PurePosixPath, PlainValidator(_file, json_schema_input_type=str)]
TextFile = Annotated[PurePosixPath, PlainValidator(_text_file, json_schema_input_type=str)]
IncludeFolder = Annotated[
    PurePosixPath, PlainValidator(_include_folder, json_schema_input_type=str)
]
Pattern = Annotated[PurePosixPath, PlainValidator(_pattern, json_schema_input_type=str)]
SourcePattern = Annotated[
    PurePosixPath, PlainValidator(_source_pattern, json_schema_input_type=str)
]
PythonPattern = Annotated[
    PurePosixPath, PlainValidator(_python_pattern, json_schema_input_type=str)
]
"""A pattern relative to the field ``root`` of its table."""
DeclaredSymbol = Annotated[SymbolName, AfterValidator(_declared)]
"""A symbol that occurs in the field ``header`` of its table."""
