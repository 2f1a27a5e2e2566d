"""Files that are checked in, and written by the tools beside this one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).parents[1]


def write_or_check(
    outputs: Mapping[Path, str], arguments: Sequence[str], *, source: str, tool: str
) -> int:
    """Write the files that differ, or with ``--check`` name them; return the exit code.

    Args:
        source: what the texts are made from, for the message.
        tool: the script in ``tools/`` that writes them, for the hint.
    """
    # Only files that differ are written, so that make and ninja rebuild nothing without a change.
    stale = {
        path: text
        for path, text in outputs.items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    }
    for path, text in stale.items():
        if "--check" in arguments:
            print(f"{path.relative_to(ROOT)} differs from {source}", file=sys.stderr)
        else:
            path.write_text(text, encoding="utf-8")
    if stale and "--check" in arguments:
        print(f"hint: run python tools/{tool}", file=sys.stderr)
        return 1
    return 0
