"""Ask the host's compiler which files a source includes, in the way that nvcc would start it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.nvcc.steps import Transcript

_TARGET = "listing"
_WORD = re.compile(r"(?:\\[ #]|\S)+")
_MAKE_ESCAPE = re.compile(r"\\([ #])|\$(\$)")


def listing_command(transcript: Transcript, rule: Path) -> tuple[str, ...]:
    """The command that lists in ``rule`` what the host's side of a source includes.

    It is nvcc's own step, so that the macros are those of the build, with system headers left out.
    For a source with CUDA it does that step's work too: the preprocessed text is there afterwards.
    """
    argv = transcript.host_view.argv
    flags = ("-MF", str(rule), "-MT", _TARGET)
    if transcript.module_ids:
        return (*argv, "-MMD", *flags)
    at = argv.index("-o")
    return (*argv[:at], *argv[at + 2 :], "-MM", *flags)


def listed_files(rule: str) -> tuple[str, ...]:
    """The files in what the command writes: a rule for make, the source first."""
    text = rule.replace("\\\n", " ").removeprefix(f"{_TARGET}:")
    return tuple(_MAKE_ESCAPE.sub(r"\1\2", word) for word in _WORD.findall(text))
