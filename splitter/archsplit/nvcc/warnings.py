"""Warnings of compilers, folded: the first of each kind in full, and the number of the others.

In: the output of gcc's and nvcc's tools. A header repeats its warnings for each source that
includes it. gcc names the kind at the end of a line (``[-Wunused]``), NVIDIA's front end behind the
word (``#177-D``). Errors and other texts are kept.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__pure__ = True

_GCC = re.compile(r"^\S.*?: warning: .*\[(-W[\w=+-]+)\]$")
_EDG = re.compile(r"^\S.*?: warning #(\d+)(?:-D)?: ")
_PTXAS = re.compile(r"^ptxas \S*: ?[Ww]arning|^ptxas warning ?:")
_OTHER = re.compile(r"^\S.*?: (?:fatal )?(?:error|warning)\b|^\S.*?: (?:catastrophic )?error #")
# gcc's lines before a warning: the chain of includes and the function around it.
_LEAD = re.compile(r"^In file included from |^ {17}from |^\S+: (?:In |At global scope)")


def fold_warnings(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the texts with one warning of each kind, and the number of the others."""
    seen: Counter[str] = Counter()
    kept = []
    # Equal outputs first: most sources have the same warnings of one header.
    for text in dict.fromkeys(texts):
        blocks = [block for kind, block in _blocks(text) if not _is_repeated(kind, seen)]
        kept += ["\n".join(blocks).strip("\n")]
    more = {kind: count - 1 for kind, count in seen.items() if count > 1}
    lines = [f"more warnings of the kind {kind}: {count}" for kind, count in sorted(more.items())]
    return tuple(text for text in (*kept, *lines) if text)


def _is_repeated(kind: str, seen: Counter[str]) -> bool:
    seen[kind] += bool(kind)
    return seen[kind] > 1


def _blocks(text: str) -> Iterator[tuple[str, str]]:
    """Yield each message with the lines around it, and its kind; "" for all but warnings."""
    kind = ""
    block: list[str] = []
    lead: list[str] = []
    for line in text.splitlines():
        if _LEAD.match(line):
            lead.append(line)
            continue
        found = _kind(line)
        if found is not None:
            yield kind, "\n".join(block)
            kind, block = found, []
        block += [*lead, line]
        lead = []
    # Lead lines without a message after them belong to the end of the text.
    yield kind, "\n".join([*block, *lead])


def _kind(line: str) -> str | None:
    """Return the kind of a line that begins a message; None for other lines."""
    if match := _GCC.match(line):
        return match[1]
    if match := _EDG.match(line):
        return f"#{match[1]}-D"
    return "" if _OTHER.match(line) or _PTXAS.match(line) else None
