"""Replace files of a site-packages folder so that every step can be undone.

Everything for it lies in one folder of site-packages, on the same file system: new files and old
files, each by its path in site-packages, and the journal. The journal is written before the first
file is changed; it is removed when the last old file is back, or at the commit. A folder without
a journal is a leftover.

Files are only renamed or linked: an old file is restored as the same inode, with its times, owner
and links, and a cache that shares it is not affected.
"""

from __future__ import annotations

import contextlib
import enum
import json
import os
import shutil
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

from archsplit.errors import InputError, OutputError
from archsplit.system.file_lock import try_lock
from archsplit.system.fs import (
    atomic_replace,
    is_sha256,
    output_errors,
    read_file,
    sha256,
    sync_folder,
)
from archsplit.wheels.member_names import member_fault

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SLIM_JOURNAL_SCHEMA = 1


TRANSACTION_FOLDER = ".archsplit-slim"


class TransactionState(enum.Enum):
    """The progress of a transaction."""

    SWITCHING = "switching"
    """New files are replacing the old ones."""

    SLIMMED = "slimmed"
    """All new files are in place, and the old ones are kept."""

    UNDOING = "undoing"
    """The old files are being restored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """The replacement of a file.

    Attributes:
        path: relative to site-packages.
        distribution: the ``.dist-info`` folder of its distribution, ``torch-2.9.1.dist-info``.
        old: SHA-256 of the old file; None for a new file.
        new: SHA-256 of the new file.
    """

    path: str
    distribution: str
    old: str | None
    new: str

    def __post_init__(self) -> None:
        # A manipulated journal must not remove or move files outside of site-packages.
        fault = member_fault(self.path) or member_fault(self.distribution)
        digests = (self.new, self.new if self.old is None else self.old)
        if fault is not None or not all(map(is_sha256, digests)):
            raise ValueError(f"{self.path!r}: {fault or 'not a SHA-256'}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlimJournal:
    """All changes of one slimming, in the order of replacement."""

    state: TransactionState
    choice: str
    changes: tuple[FileChange, ...] = field(repr=False)

    def encode(self) -> str:
        """Return the journal as JSON."""
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
        InputError: the content is not a journal, or of another schema.
    """
    try:
        content = json.loads(text)
        # Files of another version's run are left alone: the wrong guess would lose libraries.
        if content["schema"] != SLIM_JOURNAL_SCHEMA:
            raise InputError(
                f"{path} has schema {content['schema']}, expected {SLIM_JOURNAL_SCHEMA}",
                hint="use the archsplit that slimmed this environment",
            )
        return SlimJournal(
            state=TransactionState(content["state"]),
            choice=str(content["choice"]),
            changes=tuple(FileChange(**change) for change in content["changes"]),
        )
    # Any JSON may lie there, nested a million times too.
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{path} is not a journal of archsplit: {error}") from None


@contextlib.contextmanager
def open_transaction(site: Path) -> Iterator[Transaction]:
    """Lock a site-packages folder for this process.

    Raises:
        OutputError: another process has the lock, or the folder can't be opened.
    """
    with output_errors(site):
        # The lock is on the folder itself: no file is left behind, and a killed process can't keep
        # it.
        descriptor = os.open(site, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _lock(descriptor, site)
        yield Transaction(site=site)
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """A site-packages folder, with the new and the old files of a transaction."""

    site: Path

    @property
    def folder(self) -> Path:
        """The folder of the new files, the old files and the journal."""
        return self.site / TRANSACTION_FOLDER

    @property
    def new(self) -> Path:
        """The new files by their paths in site-packages, until they are in place."""
        return self.folder / "new"

    @property
    def old(self) -> Path:
        """The old files by their paths in site-packages."""
        return self.folder / "old"

    @property
    def journal_file(self) -> Path:
        """The journal, which exists as long as files can be restored."""
        return self.folder / "journal.json"

    def read_journal(self) -> SlimJournal | None:
        """Read the journal, or return None without one.

        Raises:
            InputError: the journal can't be read.
        """
        return (
            decode_slim_journal(read_file(self.journal_file), self.journal_file)
            if self.journal_file.exists()
            else None
        )

    def remove_folder(self) -> None:
        """Remove the folder, with the leftovers of a killed run."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def write_journal(self, journal: SlimJournal) -> None:
        """Write the journal, and flush the file and its folder to the disk.

        Raises:
            OutputError: the journal can't be written.
        """
        with atomic_replace(self.journal_file) as path, path.open("w") as file:
            file.write(journal.encode())
            file.flush()
            # The rename may reach the disk before the content.
            os.fsync(file.fileno())
        # The name of the journal, and the name of its folder.
        for folder in (self.folder, self.site):
            with output_errors(folder):
                sync_folder(folder)

    def is_damaged(self, change: FileChange) -> bool:
        """Return True if a waiting new file is damaged, as after a power failure."""
        new = self.new / change.path
        # A file that isn't there any more is in its place already.
        return new.exists() and sha256(new) != change.new

    def apply(self, journal: SlimJournal) -> None:
        """Put all new files in place, or on failure none.

        A second call finishes an earlier one that was killed.

        Raises:
            OutputError: a file can't be replaced; the old files are restored.
        """
        journal = replace(journal, state=TransactionState.SWITCHING)
        self.write_journal(journal)
        # From here on, a killed run can be resumed or undone.
        try:
            for change in journal.changes:
                self._put_file(change)
        except BaseException:
            # Ctrl-C too: an environment with half of its libraries replaced must not stay.
            self.roll_back(journal)
            raise
        shutil.rmtree(self.new, ignore_errors=True)
        self.write_journal(replace(journal, state=TransactionState.SLIMMED))

    def roll_back(self, journal: SlimJournal) -> None:
        """Restore all old files, and remove the journal.

        Raises:
            OutputError: a file can't be restored; another call goes on from there.
        """
        self.write_journal(replace(journal, state=TransactionState.UNDOING))
        # The reverse order restores each RECORD before the libraries that it lists.
        for change in reversed(journal.changes):
            target, old = self.site / change.path, self.old / change.path
            with output_errors(target):
                if change.old is None:
                    target.unlink(missing_ok=True)
                elif os.path.lexists(old):
                    old.replace(target)
                    # A rename between two links of one inode does nothing, and leaves both.
                    old.unlink(missing_ok=True)
        self.commit()

    def commit(self) -> None:
        """Remove the journal first, then the old files: no journal without its files.

        Raises:
            OutputError: the journal can't be removed.
        """
        with output_errors(self.journal_file):
            self.journal_file.unlink()
        self.remove_folder()

    def _put_file(self, change: FileChange) -> None:
        new, target, old = (each / change.path for each in (self.new, self.site, self.old))
        # An earlier run has put it in place.
        if not new.exists():
            return
        with output_errors(target):
            old.parent.mkdir(parents=True, exist_ok=True)
            # The first old file is the original; a second run would keep its own new one instead.
            if change.old is not None and not os.path.lexists(old):
                _back_up(target, old)
            new.replace(target)


def _lock(descriptor: int, site: Path) -> None:
    try:
        is_locked = try_lock(descriptor)
    except OSError:
        # Some network file systems have no locks.
        return
    if not is_locked:
        raise OutputError(
            f"another archsplit has the lock of {site}", hint="wait until that process has ended"
        )


def _back_up(target: Path, old: Path) -> None:
    """Link a file to a second name, so that it is never missing; without links, rename it."""
    try:
        # A link keeps the inode: no byte is copied.
        os.link(target, old, follow_symlinks=False)
    except OSError:
        target.rename(old)
