"""The check of a mirror: all originals are fetched again, and all edits are done again.

The index is compared with its pages first. Then each original is downloaded by the address and the
digest of the state, and edited as the state has it; every output must have the recorded digest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from archsplit import __version__
from archsplit.errors import InputError, VerifyError
from archsplit.index.static_folder import check_index, open_folder
from archsplit.mirror.edit import describe_original, edit_wheel
from archsplit.mirror.mirror import mirror_downloader, quiet
from archsplit.mirror.model import STATE_FILE, ResolvedWheel, read_state
from archsplit.system.finding import Finding
from archsplit.system.fs import output_errors, temporary_dir

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from archsplit.mirror.download import Downloader
    from archsplit.mirror.model import MirroredWheel
    from archsplit.release.context import Effects


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedMirror:
    """The result of a check without a finding.

    Attributes:
        wheels: the number of originals that were fetched and edited again.
        files: the number of wheels on the pages.
    """

    wheels: int
    files: int


def verify_mirror(root: Path, effects: Effects, *, downloads: Path | None = None) -> VerifiedMirror:
    """Fetch the originals of a mirror again, edit them again, and compare.

    Args:
        downloads: a folder that keeps originals; None to remove each after use.

    Raises:
        VerifyError: the index differs from its pages, or an output from the repeated edit.
        InputError: the folder is no mirror.
        IndexUnreachableError: an original can't be downloaded.
    """
    state = read_state(root)
    if not state.wheels:
        raise InputError(f"{root} is no mirror: it has no {STATE_FILE}")
    # The pages first: a wrong digest there would be blamed on the edit.
    files = check_index(open_folder(root))
    findings: list[Finding] = []
    effects.progress.begin_stage("editing again", len(state.wheels))
    with temporary_dir(downloads or root) as folder:
        downloader = mirror_downloader(downloads or folder, effects)
        for wheel in state.wheels:
            with temporary_dir(folder) as scratch:
                findings += _edit_again(wheel, downloader, scratch, effects)
            # Originals have gigabytes, so each is removed before the next download.
            if downloads is None:
                with output_errors(folder):
                    (folder / wheel.original.file).unlink(missing_ok=True)
            effects.progress.finish_step(wheel.original.file, 0.0)
    if findings:
        raise VerifyError(
            f"{root}: the originals make other wheels:",
            findings=tuple(findings),
            hint="an edit depends on the version of archsplit: use the recorded one, or make the"
            " mirror again in another folder",
        )
    return VerifiedMirror(wheels=len(state.wheels), files=files)


def _edit_again(
    wheel: MirroredWheel, downloader: Downloader, scratch: Path, effects: Effects
) -> Iterator[Finding]:
    original = wheel.original
    resolved = ResolvedWheel(
        name=wheel.name,
        version=wheel.version,
        file=original.file,
        url=original.url,
        sha256=original.sha256,
        attestations=original.attestations,
    )
    path = downloader.fetch(resolved)
    edited = edit_wheel(
        path, describe_original(path, resolved), wheel.edit, scratch, quiet(effects)
    )
    found = {file.file: file.sha256 for file in edited.wheel.files}
    for file in wheel.files:
        # Another version of archsplit may choose another file name, for example for a new pack.
        again = found.get(file.file, "no such file")
        if again != file.sha256:
            yield Finding(
                code="mirror-edit-differs",
                subject=file.file,
                found=f"{again} by archsplit {__version__}",
                expected=f"{file.sha256} by archsplit {wheel.tool}",
                hint="make the mirror again in another folder, or use that version",
            )
