"""What a slimmed environment can be put back with: one file that is there as long as it can.

Put new files in the place of old ones so that every moment can be undone.

All that is needed for it lies in one folder of site-packages, on the same file system: new files,
old files, each by the path that it has in site-packages, and the journal. The journal is written
before the first file is changed and goes when the last one is back, or when all is committed; a
folder without a journal is a leftover. Files are only ever renamed or linked: an old file is put
back as the very same one, with its times, owner and links, and a cache that shares it never
notices.
"""

from __future__ import annotations

import contextlib
import enum
import json
import os
import re
import shutil
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

from archsplit.errors import InputError, OutputError
from archsplit.system.file_lock import try_lock
from archsplit.system.fs import atomic_replace, output_errors, read_file, sha256, sync_folder
from archsplit.wheels.member_names import member_fault

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SLIM_JOURNAL_SCHEMA = 1

_DIGEST = re.compile(r"[0-9a-f]{64}")


class TransactionState(enum.Enum):
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

    state: TransactionState
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


def decode_slim_journal(text: bytes, path: Path) -> SlimJournal:
    """Read a journal.

    Raises:
        InputError: it is none of ours, or of a later archsplit.
    """
    try:
        content = json.loads(text)
        if content["schema"] != SLIM_JOURNAL_SCHEMA:
            raise InputError(f"{path} is of another archsplit: schema {content['schema']}")
        return SlimJournal(
            state=TransactionState(content["state"]),
            choice=str(content["choice"]),
            changes=tuple(FileChange(**change) for change in content["changes"]),
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{path} is no journal of archsplit: {error}") from None


TRANSACTION_FOLDER = ".archsplit-slim"


@contextlib.contextmanager
def open_transaction(site: Path) -> Iterator[Transaction]:
    """Give a site-packages folder to one process at a time.

    Raises:
        OutputError: another one is at work there, or it can't be opened.
    """
    with output_errors(site):
        descriptor = os.open(site, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _lock(descriptor, site)
        yield Transaction(site=site)
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """A site-packages folder, and what waits beside its files."""

    site: Path

    @property
    def folder(self) -> Path:
        """Where all of it lies."""
        return self.site / TRANSACTION_FOLDER

    @property
    def new(self) -> Path:
        """The new files, by their paths in site-packages, until they are in place."""
        return self.folder / "new"

    @property
    def old(self) -> Path:
        """The old files, likewise."""
        return self.folder / "old"

    @property
    def _journal(self) -> Path:
        return self.folder / "journal.json"

    def journal(self) -> SlimJournal | None:
        """What can be undone, if there is anything.

        Raises:
            InputError: there is a journal that can't be read.
        """
        return (
            decode_slim_journal(read_file(self._journal), self._journal)
            if self._journal.exists()
            else None
        )

    def sweep(self) -> None:
        """Remove all that a killed run left before it had changed anything, or after all."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def record(self, journal: SlimJournal) -> None:
        """Write the journal; it and its name are on the disk when this returns.

        Raises:
            OutputError: it can't be written.
        """
        with atomic_replace(self._journal) as path, path.open("w") as file:
            file.write(journal.encode())
            file.flush()
            os.fsync(file.fileno())
        for folder in (self.folder, self.site):
            with output_errors(folder):
                sync_folder(folder)

    def is_damaged(self, change: FileChange) -> bool:
        """Whether a new file that still waits is not what was written, as after a power failure."""
        new = self.new / change.path
        return new.exists() and sha256(new) != change.new

    def switch(self, journal: SlimJournal) -> None:
        """Put all new files in place, or on failure none.

        What an earlier call that was killed has done already is left as it is.

        Raises:
            OutputError: a file can't be put in place; the old ones are back.
        """
        journal = replace(journal, state=TransactionState.SWITCHING)
        self.record(journal)
        try:
            for change in journal.changes:
                self._put(change)
        except BaseException:
            self.put_back(journal)
            raise
        shutil.rmtree(self.new, ignore_errors=True)
        self.record(replace(journal, state=TransactionState.SLIMMED))

    def put_back(self, journal: SlimJournal) -> None:
        """Put all old files back, and forget that there were others.

        Raises:
            OutputError: a file can't be put back; calling it again goes on from there.
        """
        self.record(replace(journal, state=TransactionState.UNDOING))
        for change in reversed(journal.changes):
            place, old = self.site / change.path, self.old / change.path
            with output_errors(place):
                if change.old is None:
                    place.unlink(missing_ok=True)
                elif os.path.lexists(old):
                    old.replace(place)
                    # Renaming one name of a file to another one of the same does nothing.
                    old.unlink(missing_ok=True)
        self.forget()

    def forget(self) -> None:
        """Remove the journal, and with it the way back; then all that it was needed for.

        Raises:
            OutputError: the journal can't be removed.
        """
        with output_errors(self._journal):
            self._journal.unlink()
        self.sweep()

    def _put(self, change: FileChange) -> None:
        new, place, old = (each / change.path for each in (self.new, self.site, self.old))
        if not new.exists():
            return
        with output_errors(place):
            old.parent.mkdir(parents=True, exist_ok=True)
            if change.old is not None and not os.path.lexists(old):
                _set_aside(place, old)
            new.replace(place)


def _lock(descriptor: int, site: Path) -> None:
    try:
        is_ours = try_lock(descriptor)
    except OSError:
        # Some network file systems know no locks.
        return
    if not is_ours:
        raise OutputError(f"another archsplit is at work in {site}")


def _set_aside(place: Path, old: Path) -> None:
    """Give a file a second name, so that it is never missing; or move it where that can't be."""
    try:
        os.link(place, old, follow_symlinks=False)
    except OSError:
        place.rename(old)
