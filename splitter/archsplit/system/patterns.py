"""Regular expressions that are compiled when they are used first.

A call of the compiler wrapper imports a hundred patterns and uses half of them, or needs them only
while its tools run. To compile one takes 0.2 ms of CPU time.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from typing import Any, AnyStr


class _LazyPattern:
    """A stand-in for a compiled pattern, with the methods that were called."""

    def __init__(self, pattern: str | bytes, flags: int) -> None:
        self.pattern, self.flags = pattern, flags

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - a method
        found = getattr(re.compile(self.pattern, self.flags), name)
        # Found without this method the next time.
        setattr(self, name, found)
        return found


def lazy_pattern(pattern: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Return a pattern as `re.compile` does, which it compiles at the first use."""
    return cast("re.Pattern[AnyStr]", _LazyPattern(pattern, flags))
