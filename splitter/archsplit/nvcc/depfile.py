"""Depfiles: written as nvcc writes them, and read as gcc writes them.

nvcc has no tool for ``-MD`` and its kin: it reads the line markers of every preprocessed text of a
source (for the host and for each target) and lists each file once, in their order. The format was
measured with CUDA 13.0: only spaces are escaped, and names aren't normalized. To find the inputs
of a source for the cache, the host compiler writes a depfile of its own, by nvcc's own step.
"""

from __future__ import annotations

import os
import re
from pathlib import PurePath
from typing import TYPE_CHECKING

from archsplit.nvcc.dryrun import StepKind
from archsplit.nvcc.preprocessed_text import include_markers
from archsplit.system.patterns import lazy_pattern

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from archsplit.nvcc.cmdline import CommandLine
    from archsplit.nvcc.dryrun import Transcript

__pure__ = True

_MARKER = lazy_pattern(rb'^# \d+ "((?:[^"\\\n]|\\.)+)"(.*)', re.MULTILINE)
_MARKER_ESCAPE = lazy_pattern(rb"\\(\d{3}|.)")
_SYSTEM = b"3"
_TARGET = "listing"
_WORD = lazy_pattern(r"(?:\\[ #]|\S)+")
_MAKE_ESCAPE = lazy_pattern(r"\\([ #])|\$(\$)")


def has_other_outputs(transcript: Transcript) -> bool:
    """Return True if a command writes more than depfiles and preprocessed text."""
    return any(step.kind is not StepKind.PREPROCESS for step in transcript.steps)


def depfile_text(texts: Iterable[bytes], *, command: CommandLine, has_outputs: bool) -> bytes:
    """Return the text of a depfile as nvcc writes it.

    Args:
        texts: the preprocessed source, once for each pass.
        command: has the options about depfiles.
        has_outputs: result of `has_other_outputs`; if False, ``-o`` is the name of the depfile.
    """
    names: dict[bytes, None] = {}
    for text in texts:
        names |= dict.fromkeys(_included_files(text, user_only=command.omits_system_headers))
    escaped = [name.replace(b" ", rb"\ ") for name in names]
    target = command.rule_target or (has_outputs and command.output) or _object_name(names)
    if command.output_folder:
        # nvcc prepends it to any target, even to one of -MT, wherever the object is.
        target = f"{command.output_folder}/{target}"
    rule = b" \\\n    ".join([os.fsencode(target) + b" : " + b"".join(escaped[:1]), *escaped[1:]])
    phony = [b"\n%s:\n" % name for name in escaped[1:]] if command.has_phony_rules else []
    return rule + b"\n" + b"".join(phony)


def depfile_command(transcript: Transcript, depfile: Path) -> tuple[str, ...]:
    """Return the command that writes the user headers of a source to a depfile.

    The command is nvcc's own step with more flags, so the build's macros are defined. It also
    writes the preprocessed text, for a source with CUDA to the path of the step's own output.
    """
    step = transcript.host_step
    flags = ("-MMD", "-MF", str(depfile), "-MT", _TARGET)
    if transcript.module_id_files:
        return (*step.argv, *flags)
    at, text = step.argv.index("-o"), depfile.with_suffix(".ii")
    return (*step.argv[:at], *step.argv[at + 2 :], "-E", "-o", str(text), *flags)


def parse_depfile(text: str) -> tuple[str, ...]:
    """Return the files in the depfile of `depfile_command`, the source first."""
    names = text.replace("\\\n", " ").removeprefix(f"{_TARGET}:")
    # Nearly no depfile has an escape, and each match costs more than all of this.
    if "\\" not in names and "$" not in names:
        return tuple(names.split())
    return tuple(_MAKE_ESCAPE.sub(r"\1\2", word) for word in _WORD.findall(names))


def _object_name(names: Iterable[bytes]) -> str:
    return PurePath(os.fsdecode(next(iter(names), b""))).stem + ".o"


def _included_files(text: bytes, *, user_only: bool) -> Iterator[bytes]:
    for spelled, flags in _MARKER.findall(include_markers(text)):
        if not (user_only and _SYSTEM in flags):
            yield _MARKER_ESCAPE.sub(_unescape, spelled) if b"\\" in spelled else spelled


def _unescape(escape: re.Match[bytes]) -> bytes:
    code = escape[1]
    if len(code) > 1:
        return bytes([int(code, 8)])
    # nvcc reads a backslash as a separator of folders.
    return b"/" if code == b"\\" else code
