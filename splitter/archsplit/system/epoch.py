"""The one clock that may enter an output: ``SOURCE_DATE_EPOCH``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from archsplit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

ZIP_EPOCH = 315532800
"""1980-01-01 00:00:00 UTC in seconds: the earliest time a zip member can carry (APPNOTE 4.4.6)."""

_YEAR_10000 = 253402300800


def source_date_epoch(environment: Mapping[str, str]) -> int:
    """Seconds since 1970 that stand for "now" in everything that is written.

    Without ``SOURCE_DATE_EPOCH`` it is `ZIP_EPOCH`, never the wall clock, so that two builds agree.
    Source of the variable: https://reproducible-builds.org/specs/source-date-epoch/

    Raises:
        UsageError: the variable is not a whole number of seconds before the year 10000; one that is
            has mostly been written in milliseconds.
    """
    text = environment.get("SOURCE_DATE_EPOCH", "")
    if not text:
        return ZIP_EPOCH
    if not (text.isascii() and text.isdigit()):
        raise UsageError(
            f"SOURCE_DATE_EPOCH is {text!r}, not a number of seconds",
            hint="set it as in SOURCE_DATE_EPOCH=$(git log -1 --format=%ct), or unset it",
        )
    seconds = int(text) if len(text) <= len(str(_YEAR_10000)) else _YEAR_10000
    if seconds >= _YEAR_10000:
        raise UsageError(
            f"SOURCE_DATE_EPOCH is {text}, after the year 9999", hint="it counts seconds"
        )
    return max(seconds, ZIP_EPOCH)


def has_epoch(environment: Mapping[str, str]) -> bool:
    """Whether ``SOURCE_DATE_EPOCH`` says what time it is."""
    return bool(environment.get("SOURCE_DATE_EPOCH"))


def build_day(environment: Mapping[str, str]) -> str:
    """The day of a build in UTC, as 20261121: that of ``SOURCE_DATE_EPOCH``, else today.

    It is for versions that have a date, which nobody wants to be of 1980.

    Raises:
        UsageError: as for `source_date_epoch`.
    """
    seconds = source_date_epoch(environment) if has_epoch(environment) else time.time()
    return time.strftime("%Y%m%d", time.gmtime(seconds))
