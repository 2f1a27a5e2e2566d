"""Sources that ask what time it is.

``__DATE__``, ``__TIME__`` and ``__TIMESTAMP__`` can be put together by macros, in ways that nobody
can tell from a source. What they become shows in preprocessed text.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_CLOCK = (b"__DATE__", b"__TIME__")
_SPLICE = re.compile(rb"(?:\\|\?\?/)[ \t]*\r?\n")
_RARE_SPLICES = (b"\\ ", b"\\\t", b"??/")
_PIECES = (b"__TI", b"__DA", b"IME__", b"ATE__", b"STAMP__")
_PIECE = re.compile(
    rb"\b(?:__(?:TIM?|TIME_|TIMEST(?:AM?P?|AMP_)?|DAT?|DATE_|(?:TIME|DATE)(?=[ \t]*(?:,|##)))"
    rb"|_?(?:T?IME|D?ATE|(?:TIME)?STAMP)__)\b"
)
"""Parts of the names of the clock macros."""
_PASTED = re.compile(rb"(?<!\w)__?[ \t]*##|##[ \t]*__?(?!\w)")
_PASSED = re.compile(rb"[(,]\s*__?\s*[,)]")
"""Underscores beside a macro's argument, or as one."""
_BARE = re.compile(rb"\b(?:TIME|DATE|(?:TIME)?STAMP)\b")
_MONTHS = b"Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()
_TIMESTAMP = re.compile(
    rb'"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}'
)
_MINUTE = 60


def join_continued_lines(text: bytes) -> bytes:
    """Return the text with its continued lines made one, as a preprocessor begins."""
    text = text.replace(b"\\\n", b"").replace(b"\\\r\n", b"")
    # The rest is rare, and looking for it takes long.
    return _SPLICE.sub(b"", text) if any(each in text for each in _RARE_SPLICES) else text


def has_time_macro(texts: Iterable[bytes]) -> bool:
    """Tell if a text names the date or the time."""
    return any(word in text for text in texts for word in _CLOCK)


def may_have_time_macro(text: bytes) -> bool:
    """Return True if a text has a part of a clock macro's name."""
    return any(piece in text for piece in _PIECES) and _PIECE.search(text) is not None


def may_paste_time_macro(texts: Sequence[bytes]) -> bool:
    """Tell if unpreprocessed texts could put underscores around ``TIME`` or ``DATE``."""
    likely = (text for text in texts if any(word in text for word in (b"TIME", b"DATE", b"STAMP")))
    naming = [text for text in likely if _BARE.search(text)]
    # Most sources have none of the words, and the rest is slow.
    if not naming:
        return False
    pasting = (text for text in texts if b"##" in text)
    return any(map(_PASTED.search, pasting)) or any(map(_PASSED.search, naming))


def has_time_text(texts: Iterable[bytes], *, since: int, epoch: str | None) -> bool:
    """Tell if preprocessed texts have the date or the time of their making.

    Args:
        since: when the first of them was begun, in nanoseconds since 1970.
        epoch: what ``SOURCE_DATE_EPOCH`` says that the time is; None where nothing does.
    """
    told = set(_told(since, epoch))
    return any(each in text for text in texts for each in told)


def has_timestamp_text(text: bytes) -> bool:
    """Tell if a preprocessed text has what looks like ``__TIMESTAMP__``."""
    return _TIMESTAMP.search(text) is not None


def _told(since: int, epoch: str | None) -> Iterator[bytes]:
    # gcc writes this time, whatever the clock shows.
    if epoch is not None and epoch.isdigit():
        moments = [time.gmtime(int(epoch))]
    else:
        first, last = since // 10**9 - 1, int(time.time()) + 1
        seconds = [*range(first, last, _MINUTE), last]
        moments = [time.localtime(second) for second in seconds]
    for moment in moments:
        yield b"%s %2d %d" % (_MONTHS[moment.tm_mon - 1], moment.tm_mday, moment.tm_year)
        yield b"%02d:%02d:" % (moment.tm_hour, moment.tm_min)
