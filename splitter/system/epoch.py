"""The one clock that may enter an output: ``SOURCE_DATE_EPOCH``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from splitter.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

ZIP_EPOCH = 315532800
"""1980-01-01 00:00:00 UTC in seconds: the earliest time a zip member can carry (APPNOTE 4.4.6)."""


def source_date_epoch(environment: Mapping[str, str]) -> int:
    """Seconds since 1970 that stand for "now" in everything that is written.

    Without ``SOURCE_DATE_EPOCH`` it is `ZIP_EPOCH`, never the wall clock, so that two builds agree.
    Source of the variable: https://reproducible-builds.org/specs/source-date-epoch/

    Raises:
        UsageError: the variable is not a non-negative whole number.
    """
    text = environment.get("SOURCE_DATE_EPOCH", "")
    if not text:
        return ZIP_EPOCH
    if not (text.isascii() and text.isdigit()):
        raise UsageError(
            f"SOURCE_DATE_EPOCH is {text!r}, not a number of seconds",
            hint="set it as in SOURCE_DATE_EPOCH=$(git log -1 --format=%ct), or unset it",
        )
    return max(int(text), ZIP_EPOCH)
