"""An operation on a GPU, with the libraries that it is for, and the digest of its result."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A named operation; ``libraries`` has short names such as ``cublasLt``."""

    name: str
    libraries: tuple[str, ...]
    run: Callable[[], Any]


def digest_arrays(arrays: list[Any]) -> str:
    """Return the SHA-256 of the bytes, types and shapes of NumPy arrays."""
    hashed = hashlib.sha256()
    for array in arrays:
        hashed.update(f"{array.dtype} {array.shape}".encode())
        hashed.update(array.tobytes())
    return hashed.hexdigest()


def flatten(value: Any) -> list[Any]:  # noqa: ANN401 (an array, or several)
    """Return the arrays in nested tuples and lists."""
    if isinstance(value, (tuple, list)):
        return [array for part in value for array in flatten(part)]
    return [value]
