"""Wheels as a file beside them lists them: what a release's report and its manifest share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from pydantic import TypeAdapter, ValidationError

from archsplit.errors import InputError
from archsplit.system.fs import read_file

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__pure__ = True


class Listed(Protocol):
    """A wheel, as far as every list knows it."""

    @property
    def file(self) -> str:
        """Its name in the list's folder."""


_Wheel = TypeVar("_Wheel", bound=Listed)
_Listing = TypeVar("_Listing")


def with_earlier(
    wheels: Sequence[_Wheel], earlier: Sequence[_Wheel], folder: Path
) -> tuple[_Wheel, ...]:
    """The wheels, and those of an earlier list that are still in the folder; sorted by name."""
    kept = {wheel.file: wheel for wheel in earlier if (folder / wheel.file).exists()}
    listed = kept | {wheel.file: wheel for wheel in wheels}
    return tuple(listed[name] for name in sorted(listed))


def read_listing(path: Path, record: TypeAdapter[_Listing], *, schema: int, what: str) -> _Listing:
    """Read a list's file.

    Args:
        record: decodes its fields, less ``schema``.
        schema: the version that it has to be of.
        what: for the message, as in "a build's report".

    Raises:
        InputError: it can't be read, or is of another schema, or a field is missing or wrong.
    """
    try:
        fields = _OBJECT.validate_json(read_file(path))
        if fields.pop("schema", None) != schema:
            raise InputError(f"{path} has another schema than {schema}")
        return record.validate_python(fields)
    except ValidationError as error:
        # What is no JSON at all has no place to name.
        faults = ", ".join(
            ".".join(map(str, fault["loc"])) or fault["msg"] for fault in error.errors()
        )
        raise InputError(f"{path} is not {what}: {faults}") from None


_OBJECT = TypeAdapter(dict[str, object])
