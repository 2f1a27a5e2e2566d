"""Text for terminals: names in files may hold what a terminal would obey."""

from __future__ import annotations

import re

_WORDS = re.compile(r"""(?:'[^']*'|"[^"]*"|\S)+""")
_WIDTH = 80


def printable(text: str) -> str:
    r"""Return the text with control characters as ``\x1b``; its line breaks stay.

    Left out is also what turns the direction of writing, which could hide a part of a name.
    """
    return "".join(
        each if each == "\n" or each.isprintable() else each.encode("unicode_escape").decode()
        for each in text
    )


def wrap_command(line: str) -> list[str]:
    """Return a line with a command as lines of 80 columns, for a shell."""
    start = line[: len(line) - len(line.lstrip())]
    lines = [start]
    for word in _WORDS.findall(line):
        # The end of a line that continues has a space and a backslash.
        begins = not lines[-1].strip() or lines[-1].endswith(": ")
        if len(lines[-1]) + len(word) + 2 > _WIDTH and not begins:
            lines[-1] += "\\"
            lines.append(f"{start}    ")
        lines[-1] += f"{word} "
    return [line] if len(line) <= _WIDTH else [each.rstrip() for each in lines]
