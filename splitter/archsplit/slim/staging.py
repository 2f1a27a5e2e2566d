"""Write the new files of an environment among links to all unchanged files.

In: plans of libraries. Out: `StagedFiles`: new libraries, RECORDs and removal records, read back
and compared. A library finds others by its own path (``$ORIGIN/../../nvidia/cublas/lib``). So the
staging folder mirrors the folders of the new files, with links to unchanged files: there the new
libraries can be loaded before anything is changed.
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
from archsplit.system.parallel import map_on_cores
from archsplit.wheels.installed import read_distribution
from archsplit.wheels.record import RecordRow

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from archsplit.devicecode.verify import KeptImage
    from archsplit.slim.installed import OwnedLibrary
    from archsplit.slim.request import SlimRequest
    from archsplit.wheels.installed import InstalledDistribution

_RESERVE = 16 << 20
"""Free bytes for RECORDs, the journal and the file system itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFiles:
    """The new files, and the images in the libraries among them."""

    changes: tuple[FileChange, ...] = field(repr=False)
    kept: Mapping[str, tuple[KeptImage, ...]] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingFolder:
    """A mirror of a site-packages folder with new files.

    Attributes:
        site: the site-packages folder.
        root: the mirror.
        digests: SHA-256 of the old libraries, by path.
        new_digests: SHA-256 of the new libraries, filled by `prepare`.
    """

    site: Path
    root: Path
    request: SlimRequest
    digests: Mapping[str, str] = field(repr=False)
    new_digests: dict[str, str] = field(default_factory=dict, repr=False)

    def prepare(self, owned: tuple[OwnedLibrary, ...]) -> StagedFiles:
        """Write the new libraries, RECORDs and removal records, and read them back.

        Raises:
            VerifyError: a new file differs from its plan.
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
        written = map_on_cores(
            self._write_library, owned, weight=lambda each: each.library.plan.size
        )
        kept = dict(zip(paths, written, strict=True))
        # Each new library is hashed once: RECORD and the journal have the same digest.
        new_digests = dict(
            zip(paths, map_on_cores(lambda path: sha256(self.root / path), paths), strict=True)
        )
        self.new_digests.update(new_digests)
        changes = [self._file_change(each.library.name, each.owner) for each in owned]
        for distribution in distributions:
            # RECORD last: it has the digests of the other files.
            changes += self._write_dist_info(distribution, owned)
        return StagedFiles(changes=tuple(changes), kept=kept)

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

    def _write_library(self, owned: OwnedLibrary) -> tuple[KeptImage, ...]:
        library = owned.library
        new = self.root / library.name
        write_plan(library.path, library.plan, new)
        # Root may slim an environment that another user owns.
        _copy_ownership(library.path, new)
        return check_plan(library.plan, new)

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
        mode = self.request.mode.value
        return removal_record(
            source={"distribution": distribution.name},
            choice=self.request.choice,
            files=[describe_file(each.library.name, each.library.plan, mode) for each in owned],
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
    """Refuse to begin without space for the new files beside the old ones.

    Raises:
        DiskFullError: the message has the needed and the free space.
    """
    with input_errors(site):
        # A race with other programs stays; the rename of finished files makes it harmless.
        free = shutil.disk_usage(site).free
    if free < needed + _RESERVE:
        raise DiskFullError(
            f"{site}: {needed / 1e6:.1f} MB are needed beside the old files, and "
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
