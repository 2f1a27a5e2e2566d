"""Write the rules for make that nvcc writes with ``-MD`` and its kin.

nvcc has no tool for it: it reads the line markers of every text that was preprocessed for a source
(for the host and for each target) and names each file once, in the order in which it meets them.
How it spells them was found by asking CUDA 13.0: spaces alone are escaped, and names aren't
normalized.

Ask the host's compiler which files a source includes, in the way that nvcc would start it.
"""

from __future__ import annotations

import os
import re
from pathlib import PurePath
from typing import TYPE_CHECKING

from archsplit.nvcc.steps import StepKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from archsplit.nvcc.cmdline import DepfileOptions
    from archsplit.nvcc.steps import Transcript

__pure__ = True

_MAIN = re.compile(rb'^# \d+ "((?:[^"\\\n]|\\.)+)"', re.MULTILINE)
_ENTERED = re.compile(rb'^# 1 "((?:[^"\\\n]|\\.)+)" 1((?: \d)*)', re.MULTILINE)
_MARKER_ESCAPE = re.compile(rb"\\(\d{3}|.)")
_SYSTEM = b"3"


def has_other_outputs(transcript: Transcript) -> bool:
    """Tell whether a command makes anything besides rules for make and preprocessed text."""
    return any(step.kind is not StepKind.PREPROCESS for step in transcript.steps)


def depfile_text(texts: Iterable[bytes], *, options: DepfileOptions, made: bool) -> bytes:
    """The rule as nvcc spells it.

    Args:
        texts: what the preprocessor made of the source, once for each pass.
        options: what the command line says of rules.
        made: whether the command makes anything besides rules; ``-o`` names the rule's file if not.
    """
    names: dict[bytes, None] = {}
    for text in texts:
        names |= dict.fromkeys(_included(text, user_only=options.user_only))
    escaped = [name.replace(b" ", rb"\ ") for name in names]
    wanted = options.target or (made and options.output) or _object_name(names)
    if options.folder:
        # Whatever it is, and wherever the object is.
        wanted = f"{options.folder}/{wanted}"
    rule = b" \\\n    ".join([os.fsencode(wanted) + b" : " + b"".join(escaped[:1]), *escaped[1:]])
    phony = [b"\n%s:\n" % name for name in escaped[1:]] if options.phony else []
    return rule + b"\n" + b"".join(phony)


def _object_name(names: Iterable[bytes]) -> str:
    return PurePath(os.fsdecode(next(iter(names), b""))).stem + ".o"


def _included(text: bytes, *, user_only: bool) -> Iterator[bytes]:
    main = _MAIN.search(text)
    entered = [(name, b"") for name in ([] if main is None else [main[1]])]
    for spelled, flags in dict.fromkeys([*entered, *_ENTERED.findall(text)]):
        if not (user_only and _SYSTEM in flags):
            yield _MARKER_ESCAPE.sub(_character, spelled)


def _character(escape: re.Match[bytes]) -> bytes:
    code = escape[1]
    if len(code) > 1:
        return bytes([int(code, 8)])
    # nvcc takes a backslash for what separates folders.
    return b"/" if code == b"\\" else code


_TARGET = "listing"
_WORD = re.compile(r"(?:\\[ #]|\S)+")
_MAKE_ESCAPE = re.compile(r"\\([ #])|\$(\$)")


def depfile_command(transcript: Transcript, rule: Path) -> tuple[str, ...]:
    """The command that lists in ``rule`` what the host's side of a source includes.

    It is nvcc's own step, so that the macros are those of the build, with system headers left out.
    For a source with CUDA it does that step's work too: the preprocessed text is there afterwards.
    """
    argv = transcript.host_step.argv
    flags = ("-MF", str(rule), "-MT", _TARGET)
    if transcript.module_ids:
        return (*argv, "-MMD", *flags)
    at = argv.index("-o")
    return (*argv[:at], *argv[at + 2 :], "-MM", *flags)


def parse_depfile(rule: str) -> tuple[str, ...]:
    """The files in what the command writes: a rule for make, the source first."""
    text = rule.replace("\\\n", " ").removeprefix(f"{_TARGET}:")
    return tuple(_MAKE_ESCAPE.sub(r"\1\2", word) for word in _WORD.findall(text))
