"""What an earlier split left in the output folder: the same wheels may be replaced, no others.

Packs of two builds in one folder look like one release, and each core refuses the other's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from archsplit.errors import OutputError
from archsplit.release.listing import read_listing
from archsplit.release.split_report import SPLIT_REPORT_FILE, SPLIT_SCHEMA

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class _Earlier:
    """What of an earlier split's report matters here."""

    source: str
    build_id: str


_EARLIER_REPORT = TypeAdapter(_Earlier)


def refuse_another(folder: Path, build_id: str) -> None:
    """Refuse a folder that has the wheels of another split than this one.

    Raises:
        OutputError: it has.
        InputError: its report can't be read.
    """
    path = folder / SPLIT_REPORT_FILE
    if not path.exists():
        return
    earlier = read_listing(path, _EARLIER_REPORT, schema=SPLIT_SCHEMA, what="a split's report")
    if earlier.build_id != build_id:
        raise OutputError(
            f"{folder} has another split of {earlier.source}: of other bytes, with other options or"
            " by another version of archsplit",
            hint="remove it, or choose another folder with --out",
        )
