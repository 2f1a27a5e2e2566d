"""Retry policy for operations on an index, with the waits that an index requests.

Time is an argument, so that tests don't wait.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, TypeVar

from archsplit.errors import IndexUnreachableError, TryLaterError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__pure__ = True

_Result = TypeVar("_Result")

_SECONDS = re.compile(r"\s*(\d+)\s*")
_EXHAUSTED = re.compile(r"\br=0\b[^,]*?\bt=(\d+)")

_BUSY = {408, 425, 429}
"""Timeout, too early, too many requests: RFC 9110, RFC 8470 and RFC 6585."""
_SERVER_FAULT = 500


class Clock:
    """Clock of the machine."""

    def now(self) -> datetime:
        """Return the current time, with its zone."""
        return datetime.now(timezone.utc)

    def monotonic(self) -> float:
        """Return seconds since an arbitrary moment; never goes back."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait for some seconds."""
        time.sleep(seconds)


class RetryableError(Exception):
    """A failure that may be temporary.

    Attributes:
        wait: seconds that the server requested before the next attempt, or None.
    """

    def __init__(self, reason: str, *, wait: float | None = None) -> None:
        super().__init__(reason)
        self.wait = wait


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Time for which an operation may go on failing.

    Attributes:
        seconds: from the start of the first attempt to the start of the last one.
        first: seconds between the first attempt and the second; doubled each time.
        longest: upper limit of the doubled wait; a wait that the server requests may be longer.
    """

    seconds: float
    clock: Clock
    note: Callable[[str], None]
    first: float = 1.0
    longest: float = 60.0

    def keep_trying(self, what: str, attempt: Callable[[], _Result]) -> _Result:
        """Repeat an operation until it succeeds.

        Args:
            what: for messages: ``reading https://…``.
            attempt: raises `RetryableError` where another attempt makes sense.

        Raises:
            IndexUnreachableError: the last attempt failed too.
            TryLaterError: the server requested a longer wait than `seconds`.
        """
        began, pause = self.clock.monotonic(), self.first
        while True:
            try:
                return attempt()
            except RetryableError as failure:  # noqa: PERF203 - the point of the loop
                wait = pause if failure.wait is None else failure.wait
                left = began + self.seconds - self.clock.monotonic()
                # No last attempt at the end of the time: a wait that the server requests is never
                # shortened.
                if wait > left:
                    raise self._timeout_error(what, failure, left) from None
                self.note(f"{what}: {failure}; retrying in {wait:.0f} s")
                self.clock.sleep(wait)
                # The pause grows also after a wait of the server's: a second request may lack the
                # header.
                pause = min(2 * pause, self.longest)

    def _timeout_error(
        self, what: str, failure: RetryableError, left: float
    ) -> IndexUnreachableError | TryLaterError:
        # Exit code 23 in place of 20: the caller can run again at a known time.
        if failure.wait is not None and failure.wait > self.seconds:
            when = utc_text(self.clock.now() + timedelta(seconds=failure.wait))
            return TryLaterError(
                f"{what}: {failure}",
                hint=f"the index accepts no request before {when}; run the same command again then",
            )
        return IndexUnreachableError(
            f"{what}: {failure}; gave up after {self.seconds - left:.0f} s",
            hint="run the same command again: it continues where this one stopped",
        )


def utc_text(time_: datetime) -> str:
    """Return a time in UTC with seconds, rounded up: ``2026-11-21T10:00:00Z``."""
    utc = time_.astimezone(timezone.utc) + timedelta(microseconds=999_999)
    return utc.strftime("%Y-%m-%dT%H:%M:%SZ")


def is_retryable(status: int) -> bool:
    """Return True for an HTTP status that a later attempt may not get."""
    return status in _BUSY or status >= _SERVER_FAULT


def retry_after_seconds(headers: Mapping[str, str], now: datetime) -> float | None:
    """Return the seconds before the next attempt that the headers request, or None.

    ``Retry-After`` is a number of seconds or a date (RFC 9110, 10.2.3). PyPI also sends
    ``RateLimit``: ``"project.create.user";r=0;t=55569`` has 0 requests left for 55,569 seconds.
    """
    by_name = {name.lower(): text for name, text in headers.items()}
    waits = [float(text) for text in _EXHAUSTED.findall(by_name.get("ratelimit", ""))]
    after = by_name.get("retry-after", "")
    if match := _SECONDS.fullmatch(after):
        waits.append(float(match[1]))
    # A date is the second form that RFC 9110 allows.
    elif after and (time := _date(after)) is not None:
        waits.append(max(0.0, (time - now).total_seconds()))
    return max(waits, default=None)


def _date(text: str) -> datetime | None:
    try:
        time = parsedate_to_datetime(text)
    except ValueError:
        return None
    # parsedate_to_datetime returns no zone for "-0000", which means UTC.
    return time if time.tzinfo else time.replace(tzinfo=timezone.utc)
