"""How long an index asks to be left alone, from its answer's headers; pure."""

from __future__ import annotations

import re
from datetime import timezone
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

__pure__ = True

_SECONDS = re.compile(r"\s*(\d+)\s*")
_EXHAUSTED = re.compile(r"\br=0\b[^,]*?\bt=(\d+)")


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
