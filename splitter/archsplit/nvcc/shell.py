"""The POSIX shell lines that nvcc prints, as far as they are plain words and quotes."""

from __future__ import annotations

import re
import shlex

_PIECE = re.compile(r"""\\.|'[^']*'|"(?:\\.|[^"\\])*"|[^\\'"]+|.""", re.DOTALL)
_SYNTAX = re.compile(r"[`$|;&<>]")
_EXPANSION = re.compile(r"[`$]")
_UNUSABLE = re.compile(r"""[,"$`\\\x00-\x1f\x7f]""")


def shell_words(line: str) -> tuple[str, ...]:
    """Split a line as a shell would.

    Raises:
        ValueError: it has syntax that a shell would act on, or a quote without its end.
    """
    for piece in _PIECE.findall(line):
        if found := _active(piece):
            raise ValueError(f"the shell syntax {found!r}")
    try:
        return tuple(shlex.split(line))
    except ValueError as error:
        raise ValueError(f"its quotes ({error})") from None


def unusable(path: str) -> str | None:
    """The first character of a path that nvcc can't have: it splits there, or doesn't quote it."""
    found = _UNUSABLE.search(path)
    return None if found is None else found[0]


def _active(piece: str) -> str | None:
    """The first character that means something: quotes take it away, but "" not from all."""
    if piece[0] in "\\'" and len(piece) > 1:
        return None
    found = (_EXPANSION if piece[0] == '"' else _SYNTAX).search(piece)
    return None if found is None else found[0]
