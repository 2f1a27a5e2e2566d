"""What is wrong with something that was read, on one line; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError

__pure__ = True


def schema_faults(error: ValidationError) -> str:
    """Each fault with its place: ``wheels.1.size: Input should be a valid integer``."""
    faults = ((".".join(map(str, fault["loc"])), fault["msg"]) for fault in error.errors())
    return "; ".join(f"{where}: {what}" if where else what for where, what in faults)
