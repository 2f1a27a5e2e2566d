"""Ask the host's compiler which files a source includes, in the way that nvcc would start it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from splitter.nvcc.steps import Transcript

_TARGET = "listing"
_WORD = re.compile(r"(?:\\[ #]|\S)+")
_ESCAPED = re.compile(r"\\([ #])|\$(\$)")


def listing_command(transcript: Transcript) -> tuple[str, ...]:
    """The command that prints what the host's side of a source includes, but for system headers.

    It is nvcc's own first step with ``-MM`` for its output: the macros are those of the build.
    """
    argv = list(transcript.host_view.argv)
    at = argv.index("-o")
    return (*argv[:at], *argv[at + 2 :], "-MM", "-MT", _TARGET)


def listed_files(rule: str) -> tuple[str, ...]:
    """The files in what the command prints: a rule for make, the source first."""
    text = rule.replace("\\\n", " ").removeprefix(f"{_TARGET}:")
    return tuple(_ESCAPED.sub(r"\1\2", word) for word in _WORD.findall(text))
