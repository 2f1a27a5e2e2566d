"""Text for terminals: names in files may hold what a terminal would obey."""

from __future__ import annotations


def printable(text: str) -> str:
    r"""Return the text with control characters as ``\x1b``; its line breaks stay.

    Left out is also what turns the direction of writing, which could hide a part of a name.
    """
    return "".join(
        each if each == "\n" or each.isprintable() else each.encode("unicode_escape").decode()
        for each in text
    )
