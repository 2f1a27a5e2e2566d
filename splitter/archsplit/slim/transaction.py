"""Write and replace the files of an environment so that it can be undone.

Everything for it lies in one folder of site-packages, on the same file system: new files and old
files, each by its path in site-packages, the journal, and a marker: a folder without the marker
belongs to another program, and is never changed. The journal is written before the first file is
changed; it is removed after the last old file is back in its place, or removed by a commit. So new
files without a journal are leftovers, and old files without a journal are the remains of a store
that something else has damaged.

    plans ─► StagingFolder ─► FileChange ─► Transaction: undo or commit

A library finds others by its own path (``$ORIGIN/../../nvidia/cublas/lib``). So the staging folder
mirrors the folders of the new files, with links to unchanged files: there the new libraries can be
loaded before anything is changed. Files are only renamed or linked: an old file is restored as the
same inode, with its times, owner and links, and a cache that shares it is not affected.
"""

from __future__ import annotations

import contextlib
import enum
import json
import os
import shutil
from dataclasses import asdict, dataclass, field, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from archsplit.devicecode.apply import check_plan, write_plan
from archsplit.errors import DiskFullError, InputError, OutputError, VerifyError
from archsplit.formats.reader import open_file
from archsplit.slim.report import SLIM_NOTE_FILE, describe_files, removal_record
from archsplit.system.file_lock import try_lock
from archsplit.system.fs import (
    atomic_replace,
    input_errors,
    is_sha256,
    output_errors,
    read_file,
    sha256,
    sync_path,
    write_file,
)
from archsplit.system.parallel import map_on_cores
from archsplit.system.temporary_files import remove_abandoned
from archsplit.system.worker_processes import map_in_processes
from archsplit.wheels.record import RecordRow, member_fault, read_distribution

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from archsplit.slim.installed import OwnedLibrary
    from archsplit.slim.request import SlimRequest
    from archsplit.system.worker_processes import WorkerProcesses
    from archsplit.wheels.record import InstalledDistribution

SLIM_JOURNAL_SCHEMA = 1


TRANSACTION_FOLDER = ".archsplit-slim"
_MARKER = "README.txt"
_MARKER_TEXT = """\
Files that `archsplit slim --site-packages` has replaced, made by archsplit.
`archsplit slim --site-packages DIR --undo` restores them, `--commit` removes them.
"""


class TransactionState(enum.Enum):
    """The progress of a transaction."""

    SWITCHING = "switching"
    """New files are replacing the old ones."""

    SLIMMED = "slimmed"
    """All new files are in place, and the old ones are kept."""

    UNDOING = "undoing"
    """The old files are being restored."""

    COMMITTING = "committing"
    """The old files are being removed."""


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
        content = {"schema": SLIM_JOURNAL_SCHEMA, **asdict(self), "state": self.state.value}
        return json.dumps(content, indent=1) + "\n"


def decode_slim_journal(text: bytes, path: Path) -> SlimJournal:
    """Read a journal.

    Raises:
        InputError: the content is not a journal, or of another schema.
    """
    try:
        content = json.loads(text)
        # Files of another version's run are not touched: a wrong guess would lose libraries.
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
        OutputError: another process has the lock, or the system refuses a step.
    """
    # Around all work on the environment: an error of the system that no step has named is told too.
    with output_errors(site):
        # The lock is on the folder itself: no file is left behind, and a killed process can't keep
        # it.
        descriptor = os.open(site, os.O_RDONLY)
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
        """Folder of the new files, the old files and the journal."""
        return self.site / TRANSACTION_FOLDER

    @property
    def new(self) -> Path:
        """New files by their paths in site-packages, until they are in place."""
        return self.folder / "new"

    @property
    def old(self) -> Path:
        """Old files by their paths in site-packages."""
        return self.folder / "old"

    @property
    def journal_file(self) -> Path:
        """Journal, which exists as long as files can be restored."""
        return self.folder / "journal.json"

    def read_journal(self) -> SlimJournal | None:
        """Read the journal, or return None without one.

        Raises:
            InputError: the journal can't be read.
        """
        if not self.journal_file.exists():
            return None
        return decode_slim_journal(read_file(self.journal_file), self.journal_file)

    def make_folder(self) -> None:
        """Make the folder with its marker, without the new files of a killed run.

        Raises:
            OutputError: the folder belongs to another program, or can't be made.
        """
        with output_errors(self.folder):
            if os.path.lexists(self.folder) and not self._is_marked():
                raise OutputError(
                    f"{self.folder} exists, but archsplit did not make it",
                    hint=f"move it: mv {self.folder} {self.folder}.old",
                )
            self.folder.mkdir(exist_ok=True)
            with (self.folder / _MARKER).open("w") as file:
                file.write(_MARKER_TEXT)
                file.flush()
                os.fsync(file.fileno())
        shutil.rmtree(self.new, ignore_errors=True)

    def has_old_files(self) -> bool:
        """Return True if the folder has files from before slimming."""
        return self._is_marked() and any(not path.is_dir() for path in self.old.rglob("*"))

    def remove_folder(self) -> None:
        """Remove new files and the folder; keep everything if old files are left."""
        if not self._is_marked():
            return
        shutil.rmtree(self.new, ignore_errors=True)
        if self.has_old_files():
            return
        shutil.rmtree(self.old, ignore_errors=True)
        # A killed process may have left an unfinished journal.
        remove_abandoned(str(self.folder))
        # The marker goes last, and only with the folder: other programs may have files in it.
        if {path.name for path in self.folder.iterdir()} <= {_MARKER}:
            (self.folder / _MARKER).unlink(missing_ok=True)
            self.folder.rmdir()

    def _is_marked(self) -> bool:
        try:
            names = [path.name for path in self.folder.iterdir()]
            marker = self.folder / _MARKER
            text = marker.read_text(errors="replace") if _MARKER in names else ""
        except OSError:
            return False
        # A killed process may have left an empty folder, or a part of the marker and nothing else.
        return text == _MARKER_TEXT or (set(names) <= {_MARKER} and _MARKER_TEXT.startswith(text))

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
                sync_path(folder)

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
        self._sync_new(journal)
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
        self._sync_folders(journal)
        self.write_journal(replace(journal, state=TransactionState.SLIMMED))

    def _sync_new(self, journal: SlimJournal) -> None:
        """Flush the waiting new files and their folders, before the journal lists them."""
        for change in journal.changes:
            new = self.new / change.path
            # An earlier run may have put it in place.
            if new.exists():
                with output_errors(new):
                    sync_path(new)
        self._sync_folders(journal)

    def _sync_folders(self, journal: SlimJournal) -> None:
        """Flush the names of new and old files, before the journal says more about them."""
        paths = [
            (root / change.path).parent
            for root in (self.new, self.old, self.site)
            for change in journal.changes
        ]
        for folder in {parent for path in paths for parent in (path, *path.parents)}:
            if folder.is_relative_to(self.site) and folder.is_dir():
                with output_errors(folder):
                    sync_path(folder)

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
        self._sync_folders(journal)
        self._close()

    def commit(self, journal: SlimJournal) -> None:
        """Remove the old files, then the journal: never old files without a journal.

        Raises:
            OutputError: a file can't be removed; another call goes on from there.
        """
        self.write_journal(replace(journal, state=TransactionState.COMMITTING))
        self._close()

    def _close(self) -> None:
        with output_errors(self.old):
            # After an undo, what is left is of distributions that were removed since.
            if self.old.exists():
                shutil.rmtree(self.old)
        with output_errors(self.journal_file):
            self.journal_file.unlink()
            sync_path(self.folder)
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
            f"another archsplit is working on {site}", hint="wait until that process has ended"
        )


def _back_up(target: Path, old: Path) -> None:
    """Link a file to a second name, so that it is never missing; without links, rename it."""
    try:
        # A link keeps the inode: no byte is copied.
        os.link(target, old, follow_symlinks=False)
    except OSError:
        target.rename(old)


_RESERVE = 16 << 20
"""Free bytes for RECORDs, the journal and the file system itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingFolder:
    """A mirror of a site-packages folder with new files.

    Attributes:
        site: the site-packages folder.
        root: the mirror.
        digests: SHA-256 of the old libraries, by path.
        new_digests: SHA-256 of the new libraries by path; `prepare` adds them.
    """

    site: Path
    root: Path
    request: SlimRequest
    digests: Mapping[str, str] = field(repr=False)
    new_digests: dict[str, str] = field(default_factory=dict, repr=False)

    def prepare(
        self, owned: tuple[OwnedLibrary, ...], workers: WorkerProcesses | None = None
    ) -> tuple[FileChange, ...]:
        """Write the new libraries, RECORDs and removal records, and read them back.

        Raises:
            VerifyError: a new file differs from its plan.
            InputError: another program has replaced a library.
            DiskFullError: there is no space for both the old and the new files.
            OutputError: a file can't be written.
        """
        paths = [each.library.name for each in owned]
        distributions = _claiming_distributions(owned)
        notes = [f"{each.folder}/{SLIM_NOTE_FILE}" for each in distributions]
        records = [each.record for each in distributions]
        # Before the first byte is written: a full disk would stop other programs too.
        check_free_space(self.site, sum(each.library.plan.size for each in owned))
        check_writable(self.site, (*paths, *records))
        self._mirror({*paths, *notes, *records})
        map_in_processes(self._write_library, owned, lambda each: each.library.plan.size, workers)
        # Each new library is hashed once: RECORD and the journal have the same digest.
        hashed = map_on_cores(lambda path: sha256(self.root / path), paths)
        self.new_digests.update(zip(paths, hashed, strict=True))
        changes = [self._file_change(each.library.name, each.owner) for each in owned]
        for distribution in distributions:
            # RECORD last: it has the digests of the other files.
            changes += self._write_dist_info(distribution, owned)
        return tuple(changes)

    def _mirror(self, paths: set[str]) -> None:
        folders = {str(folder) for path in paths for folder in PurePosixPath(path).parents}
        for folder in sorted(folders):
            with output_errors(self.root / folder):
                (self.root / folder).mkdir(parents=True, exist_ok=True)
                for path in (self.site / folder).iterdir():
                    name = path.relative_to(self.site).as_posix()
                    # Folders that hold a new file are made, all others are links.
                    if name not in {TRANSACTION_FOLDER, *paths, *folders}:
                        (self.root / name).symlink_to(path)

    def _write_library(self, owned: OwnedLibrary) -> None:
        library = owned.library
        new = self.root / library.name
        write_plan(library.path, library.plan, new)
        # Before the checks, which would blame the plan.
        owned.check_unchanged()
        # Root may slim an environment that another user owns.
        _copy_ownership(library.path, new)
        check_plan(library.plan, open_file(new))

    def _write_dist_info(
        self, distribution: InstalledDistribution, owned: tuple[OwnedLibrary, ...]
    ) -> list[FileChange]:
        """Write the removal record and RECORD of a distribution."""
        claims = [
            (each, claim.path)
            for each in owned
            for claim in each.claims
            if claim.distribution == distribution
        ]
        note = f"{distribution.folder}/{SLIM_NOTE_FILE}"
        write_file(
            self.root / note, self._removal_record(distribution, [each for each, _ in claims])
        )
        # A RECORD may list a library by the path of a link to it.
        entries = {path: self._record_row(path, each.library.name) for each, path in claims}
        entries[note] = self._record_row(note, note)
        write_file(self.root / distribution.record, distribution.updated_record(entries))
        _copy_ownership(self.site / distribution.record, self.root / distribution.record)
        self._check_record(distribution, entries)
        return [self._file_change(path, distribution) for path in (note, distribution.record)]

    def _check_record(
        self, distribution: InstalledDistribution, entries: Mapping[str, RecordRow]
    ) -> None:
        # Read as pip reads it, not as it was written.
        reread = read_distribution(self.root, distribution.folder)
        actual = {row.normalized_path: (row.hash_text, row.size) for row in reread.rows}
        wrong = [
            path
            for path, entry in entries.items()
            if actual.get(path) != (entry.hash_text, str(entry.size))
        ]
        if wrong:
            raise VerifyError(f"the new {distribution.record} lacks {', '.join(wrong)}")

    def _removal_record(
        self, distribution: InstalledDistribution, owned: list[OwnedLibrary]
    ) -> bytes:
        plans = {each.library.name: each.library.plan for each in owned}
        return removal_record(
            source={"distribution": distribution.name},
            choice=self.request.choice,
            files=describe_files(self.request, plans),
        )

    def _record_row(self, path: str, file: str) -> RecordRow:
        new = self.root / file
        digest = bytes.fromhex(self._new_digest(file))
        return RecordRow(path=path, digest=digest, size=new.stat().st_size)

    def _new_digest(self, path: str) -> str:
        return self.new_digests.get(path) or sha256(self.root / path)

    def _file_change(self, path: str, distribution: InstalledDistribution) -> FileChange:
        old = self.digests.get(path)
        # An earlier slimming that was committed has left its record here.
        if old is None and (self.site / path).exists():
            old = sha256(self.site / path)
        return FileChange(
            path=path,
            distribution=distribution.folder,
            old=old,
            new=self._new_digest(path),
        )


def check_free_space(site: Path, needed: int) -> None:
    """Refuse to begin without space for the new files in addition to the old ones.

    Raises:
        DiskFullError: the message has the needed and the free space.
    """
    with input_errors(site):
        # A race with other programs stays; the rename of finished files makes it harmless.
        free = shutil.disk_usage(site).free
    if free < needed + _RESERVE:
        raise DiskFullError(
            f"{site}: {needed / 1e6:.1f} MB are needed in addition to the old files, and "
            f"{free / 1e6:.1f} MB are free",
            hint="free some space and run the command again",
        )


def check_writable(site: Path, paths: Iterable[str]) -> None:
    """Refuse to begin without write permission for all folders.

    Raises:
        OutputError: the message has all folders.
    """
    folders = sorted({str((site / path).parent) for path in paths} | {str(site)})
    # Write permission for the folder is what a rename needs; that for the file doesn't matter.
    unwritable = [folder for folder in folders if not os.access(folder, os.W_OK | os.X_OK)]
    if unwritable:
        raise OutputError(
            f"can't write {', '.join(unwritable)}",
            hint="run it as the user who installed the packages",
        )


def _claiming_distributions(owned: Iterable[OwnedLibrary]) -> list[InstalledDistribution]:
    claims = [claim for each in owned for claim in each.claims]
    return list({claim.distribution.folder: claim.distribution for claim in claims}.values())


def _copy_ownership(old: Path, new: Path) -> None:
    """Copy the permissions and, if permitted, the owner of the old file."""
    status = old.stat()
    with contextlib.suppress(PermissionError):
        os.chown(new, status.st_uid, status.st_gid)
    # After chown, which clears the bits for setuid and setgid.
    new.chmod(status.st_mode & 0o7777)
