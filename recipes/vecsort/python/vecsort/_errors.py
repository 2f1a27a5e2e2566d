"""What a call into the library can raise beside TypeError and ValueError."""

from __future__ import annotations


class VecsortError(RuntimeError):
    """The library refused or failed.

    Attributes:
        status: the ``VECSORT_ERROR_…`` number of the C header.
    """

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status
