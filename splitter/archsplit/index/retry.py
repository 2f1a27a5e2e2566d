"""Retry policy for operations on an index, with the waits that an index requests.

Time is an argument, so that tests don't wait.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Protocol, TypeVar

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


class Clock(Protocol):
    """A clock."""

    def now(self) -> datetime:
        """The time, with its zone."""
        ...

    def monotonic(self) -> float:
        """Seconds since some moment, which nobody sets back."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait for some seconds."""
        ...


class SystemClock:
    """The clock of the machine."""

    def now(self) -> datetime:
        """See `Clock.now`."""
        return datetime.now(timezone.utc)

    def monotonic(self) -> float:
        """See `Clock.monotonic`."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """See `Clock.sleep`."""
        time.sleep(seconds)


class RetryableError(Exception):
    """A failure that may be temporary.

    Attributes:
        wait: seconds after which the other side asks to be tried again; None where it didn't say.
    """

    def __init__(self, reason: str, *, wait: float | None = None) -> None:
        super().__init__(reason)
        self.wait = wait


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """The time for which an operation may go on failing.

    Attributes:
        seconds: from the first attempt to the last one's start.
        first: seconds between the first attempt and the second; doubled each time.
        longest: seconds that are never exceeded between two, unless the other side asks for it.
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
            IndexUnreachableError: it went on failing.
            TryLaterError: the other side asked for more patience than there is.
        """
        began, pause = self.clock.monotonic(), self.first
        while True:
            try:
                return attempt()
            except RetryableError as failure:  # noqa: PERF203 - the point of the loop
                wait = pause if failure.wait is None else failure.wait
                left = began + self.seconds - self.clock.monotonic()
                if wait > left:
                    raise self._given_up(what, failure) from None
                self.note(f"{what}: {failure}; again in {wait:.0f} s")
                self.clock.sleep(wait)
                pause = min(2 * pause, self.longest)

    def _given_up(
        self, what: str, failure: RetryableError
    ) -> IndexUnreachableError | TryLaterError:
        if failure.wait is not None and failure.wait > self.seconds:
            return TryLaterError(
                f"{what}: {failure}",
                hint=f"the index asks to be left alone until {self._after(failure.wait)};"
                " run the same command again then",
            )
        return IndexUnreachableError(
            f"{what}: {failure}; given up after {self.seconds:.0f} s",
            hint="run the same command again: it goes on where this one stopped",
        )

    def _after(self, seconds: float) -> str:
        return utc_text(self.clock.now() + timedelta(seconds=seconds))


def utc_text(time_: datetime) -> str:
    """A time as people and programs read it: UTC, to the second, rounded up."""
    utc = time_.astimezone(timezone.utc) + timedelta(microseconds=999_999)
    return utc.strftime("%Y-%m-%dT%H:%M:%SZ")


def is_retryable(status: int) -> bool:
    """Return True for an HTTP status that the same request may not get again later."""
    return status in _BUSY or status >= _SERVER_FAULT


def retry_after_seconds(headers: Mapping[str, str], now: datetime) -> float | None:
    """Seconds until another try is welcome, or None where nothing is said.

    ``Retry-After`` is a number of seconds or a date (RFC 9110, 10.2.3). PyPI says it in
    ``RateLimit``, too: ``"project.create.user";r=0;t=55569`` has none left for so many seconds.
    """
    given = {name.lower(): text for name, text in headers.items()}
    found = [float(text) for text in _EXHAUSTED.findall(given.get("ratelimit", ""))]
    after = given.get("retry-after", "")
    if match := _SECONDS.fullmatch(after):
        found.append(float(match[1]))
    elif after and (time := _date(after)) is not None:
        found.append(max(0.0, (time - now).total_seconds()))
    return max(found, default=None)


def _date(text: str) -> datetime | None:
    try:
        time = parsedate_to_datetime(text)
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=timezone.utc)
