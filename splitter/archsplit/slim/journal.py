"""What a slimmed environment can be put back with: one file that is there as long as it can."""

from __future__ import annotations

import enum
import json
import re
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from archsplit.errors import InputError
from archsplit.wheels.member_names import member_fault

if TYPE_CHECKING:
    from pathlib import Path

SLIM_JOURNAL_SCHEMA = 1

_DIGEST = re.compile(r"[0-9a-f]{64}")


class State(enum.Enum):
    """How far it got."""

    SWITCHING = "switching"
    """New files are being put in the place of the old ones."""

    SLIMMED = "slimmed"
    """All are in place; the old ones wait."""

    UNDOING = "undoing"
    """The old ones are being put back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """One file.

    Attributes:
        path: relative to site-packages.
        distribution: the name of the folder of whose it is, ``torch-2.9.1.dist-info``.
        old: SHA-256 of what was there; None where nothing was.
        new: SHA-256 of what takes its place.
    """

    path: str
    distribution: str
    old: str | None
    new: str

    def __post_init__(self) -> None:
        # What is removed and moved by these names must be in site-packages, whoever wrote them.
        fault = member_fault(self.path) or member_fault(self.distribution)
        digests = (self.new, self.new if self.old is None else self.old)
        if fault is not None or not all(map(_DIGEST.fullmatch, digests)):
            raise ValueError(f"{self.path!r}: {fault or 'its digests are none'}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlimJournal:
    """All files of one slimming, in the order in which they are put in place."""

    state: State
    choice: str
    changes: tuple[FileChange, ...] = field(repr=False)

    def encode(self) -> str:
        """The journal as JSON."""
        content = {
            "schema": SLIM_JOURNAL_SCHEMA,
            "state": self.state.value,
            "choice": self.choice,
            "changes": [asdict(change) for change in self.changes],
        }
        return json.dumps(content, indent=1) + "\n"


def decode_journal(text: bytes, path: Path) -> SlimJournal:
    """Read a journal.

    Raises:
        InputError: it is none of ours, or of a later archsplit.
    """
    try:
        content = json.loads(text)
        if content["schema"] != SLIM_JOURNAL_SCHEMA:
            raise InputError(f"{path} is of another archsplit: schema {content['schema']}")
        return SlimJournal(
            state=State(content["state"]),
            choice=str(content["choice"]),
            changes=tuple(FileChange(**change) for change in content["changes"]),
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{path} is no journal of archsplit: {error}") from None
