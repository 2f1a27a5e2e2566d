"""Checks of records, built when they are first needed, and the text of their errors."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Hashable
    from typing import TypeVar

    from pydantic import TypeAdapter, ValidationError

    _Checked = TypeVar("_Checked")

__pure__ = True


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
