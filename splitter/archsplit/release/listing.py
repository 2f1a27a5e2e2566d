"""Lists of wheels in reports and manifests.

Both files are JSON with a schema number and one row per wheel. If the plugins of a build are built
one after the other into one folder, their lists are joined.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from archsplit.errors import InputError
from archsplit.system.fs import read_file
from archsplit.system.schema import schema_faults, type_adapter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

__pure__ = True

_Listing = TypeVar("_Listing")


class Listed(Protocol):
    """A row of a list of wheels."""

    @property
    def file(self) -> str:
        """The file name of the wheel, in the folder of the list."""


_Wheel = TypeVar("_Wheel", bound=Listed)


def merge_listings(
    wheels: Sequence[_Wheel], earlier: Sequence[_Wheel], folder: Path
) -> tuple[_Wheel, ...]:
    """Return the wheels and those of an earlier list that still exist, sorted by name."""
    # A wheel that was deleted on purpose must not come back as a missing file.
    kept = {wheel.file: wheel for wheel in earlier if (folder / wheel.file).exists()}
    listed = kept | {wheel.file: wheel for wheel in wheels}
    return tuple(listed[name] for name in sorted(listed))


def read_listing(
    path: Path, decoders: Mapping[int, Callable[[dict[str, object]], _Listing]], *, what: str
) -> _Listing:
    """Read the file of a list.

    Args:
        decoders: by schema number, the newest first. Each takes the fields without ``schema``; the
            one of an older schema returns the record of the newest.
        what: the kind of list for messages, as in "a release's report".

    Raises:
        InputError: the file can't be read, has another schema, or a field is missing or wrong.
    """
    from pydantic import ValidationError  # noqa: PLC0415 (0.1 s for whoever reads none)

    try:
        fields = type_adapter(dict[str, object]).validate_json(read_file(path))
        schema = fields.pop("schema", None)
        decode = next((each for number, each in decoders.items() if number == schema), None)
        # A newer schema may have moved a field, so nothing is guessed.
        if decode is None:
            expected = " or ".join(map(str, decoders))
            raise InputError(f"{path} has schema {schema}, expected {expected}")
        return decode(fields)
    except ValidationError as error:
        raise InputError(f"{path} is not {what}: {schema_faults(error)}") from None
