"""Write what an environment will be beside what it is: new files among links to all others.

A library finds others by its own place (``$ORIGIN/../../nvidia/cublas/lib``). So the new ones are
written into a copy of the folders that they are in, which has links where nothing changes: there
they can be tried before anything is changed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from archsplit.devicecode.apply import check_plan, write_plan
from archsplit.errors import DiskFullError, OutputError, VerifyError
from archsplit.slim.report import SLIM_NOTE_FILE, describe_file, removal_record
from archsplit.slim.transaction import TRANSACTION_FOLDER, FileChange
from archsplit.system.fs import input_errors, output_errors, sha256, write_file
from archsplit.wheels.installed import read_distribution
from archsplit.wheels.record import RecordRow

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from archsplit.devicecode.verify import KeptImage
    from archsplit.slim.installed import OwnedLibrary
    from archsplit.slim.request import SlimRequest
    from archsplit.wheels.installed import InstalledDistribution

_SPARE = 16 << 20
"""Bytes for RECORDs, the journal and the file system's own needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFiles:
    """What was written, and the images that are in it."""

    changes: tuple[FileChange, ...] = field(repr=False)
    kept: Mapping[str, tuple[KeptImage, ...]] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingFolder:
    """Where an environment is prepared.

    Attributes:
        site: as it is.
        root: as it will be.
        digests: SHA-256 of the libraries as they are, by their paths.
    """

    site: Path
    root: Path
    request: SlimRequest
    digests: Mapping[str, str] = field(repr=False)

    def prepare(self, owned: tuple[OwnedLibrary, ...]) -> StagedFiles:
        """Write the new libraries, RECORDs and notes, and read them again.

        Raises:
            VerifyError: a new file is not what was planned.
            DiskFullError: there is no space for both the old and the new files.
            OutputError: something can't be written.
        """
        places = [each.library.name for each in owned]
        distributions = _claimants(owned)
        notes = [f"{each.folder}/{SLIM_NOTE_FILE}" for each in distributions]
        records = [each.record for each in distributions]
        check_free_space(self.site, sum(each.library.plan.size for each in owned))
        check_writable(self.site, (*places, *records))
        self._mirror({*places, *notes, *records})
        kept = {each.library.name: self._library(each) for each in owned}
        changes = [self._change(each.library.name, each.owner) for each in owned]
        for distribution in distributions:
            changes += self._own_files(distribution, owned)
        return StagedFiles(changes=tuple(changes), kept=kept)

    def _mirror(self, places: set[str]) -> None:
        folders = {str(folder) for place in places for folder in PurePosixPath(place).parents}
        for folder in sorted(folders):
            with output_errors(self.root / folder):
                (self.root / folder).mkdir(parents=True, exist_ok=True)
                for path in (self.site / folder).iterdir():
                    name = path.relative_to(self.site).as_posix()
                    if name not in {TRANSACTION_FOLDER, *places, *folders}:
                        (self.root / name).symlink_to(path)

    def _library(self, owned: OwnedLibrary) -> tuple[KeptImage, ...]:
        library = owned.library
        new = self.root / library.name
        write_plan(library.path, library.plan, new)
        _as_before(library.path, new)
        return check_plan(library.plan, new)

    def _own_files(
        self, distribution: InstalledDistribution, owned: tuple[OwnedLibrary, ...]
    ) -> list[FileChange]:
        """The note and RECORD of a distribution."""
        claims = [(each, claim) for each in owned for claim in each.claims]
        mine = [(each, claim) for each, claim in claims if claim.distribution == distribution]
        note = f"{distribution.folder}/{SLIM_NOTE_FILE}"
        write_file(self.root / note, self._note(distribution, [each for each, _ in mine]))
        entries = {claim.place: self._entry(claim.place, each.library.name) for each, claim in mine}
        entries[note] = self._entry(note, note)
        write_file(self.root / distribution.record, distribution.updated_record(entries))
        _as_before(self.site / distribution.record, self.root / distribution.record)
        self._check_record(distribution, entries)
        return [self._change(path, distribution) for path in (note, distribution.record)]

    def _check_record(
        self, distribution: InstalledDistribution, entries: Mapping[str, RecordRow]
    ) -> None:
        again = read_distribution(self.root, distribution.folder)
        found = {row.normalized_path: (row.hash_text, row.size) for row in again.rows}
        wrong = [
            path
            for path, entry in entries.items()
            if found.get(path) != (entry.hash_text, str(entry.size))
        ]
        if wrong:
            raise VerifyError(f"{distribution.record} would not have {', '.join(wrong)}")

    def _note(self, distribution: InstalledDistribution, owned: list[OwnedLibrary]) -> bytes:
        mode = self.request.mode.value
        return removal_record(
            source={"distribution": distribution.name},
            choice=self.request.choice,
            files=[describe_file(each.library.name, each.library.plan, mode) for each in owned],
        )

    def _entry(self, place: str, file: str) -> RecordRow:
        path = self.root / file
        return RecordRow(path=place, digest=bytes.fromhex(sha256(path)), size=path.stat().st_size)

    def _change(self, place: str, distribution: InstalledDistribution) -> FileChange:
        old = self.digests.get(place)
        if old is None and (self.site / place).exists():
            old = sha256(self.site / place)
        return FileChange(
            path=place,
            distribution=distribution.folder,
            old=old,
            new=sha256(self.root / place),
        )


def check_free_space(site: Path, needed: int) -> None:
    """Refuse to begin where the new files will not fit beside the old ones.

    Raises:
        DiskFullError: the message has both figures.
    """
    with input_errors(site):
        free = shutil.disk_usage(site).free
    if free < needed + _SPARE:
        raise DiskFullError(
            f"{site}: {needed / 1e6:.1f} MB are needed while the old files are still there, and "
            f"{free / 1e6:.1f} MB are free",
            hint="free some space and run it again",
        )


def check_writable(site: Path, places: Iterable[str]) -> None:
    """Refuse to begin where a folder can't be written.

    Raises:
        OutputError: names all of them.
    """
    folders = sorted({str((site / place).parent) for place in places} | {str(site)})
    closed = [folder for folder in folders if not os.access(folder, os.W_OK | os.X_OK)]
    if closed:
        raise OutputError(
            f"can't write {', '.join(closed)}", hint="run it as whoever installed the packages"
        )


def _claimants(owned: Iterable[OwnedLibrary]) -> list[InstalledDistribution]:
    claims = [claim for each in owned for claim in each.claims]
    return list({claim.distribution.folder: claim.distribution for claim in claims}.values())


def _as_before(old: Path, new: Path) -> None:
    """Give a new file the permissions and, as far as one may, the owner of the old one."""
    status = old.stat()
    with contextlib.suppress(PermissionError):
        os.chown(new, status.st_uid, status.st_gid)
    new.chmod(status.st_mode & 0o7777)
