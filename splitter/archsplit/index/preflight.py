"""Read every file again before anything is uploaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from archsplit.errors import VerifyError
from archsplit.index.attestations import attestation_faults
from archsplit.index.descriptions import check_descriptions
from archsplit.index.roles import role_faults
from archsplit.system.fs import output_errors, temporary_dir

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from archsplit.index.release import UploadRelease
    from archsplit.index.upload import Twine


UNFIT = "an index refuses these files, or shows no page for them:"


def preflight_check(
    release: UploadRelease, twine: Twine, verify: Callable[[Path], object]
) -> tuple[str, ...]:
    """Check a release as a whole: our ``verify``, ``twine check``, the attestations.

    Args:
        verify: re-reads all wheels of a folder, and raises where one is not as promised.

    Returns:
        Warnings about what others wrote.

    Raises:
        VerifyError: lists what is not as promised.
        ArchsplitError: a file can't be read.
    """
    faults = [fault for one in release.artifacts for fault in attestation_faults(one)]
    if faults:
        raise VerifyError("\n  ".join(["attestations are of other files:", *faults]))
    for build in release.builds.values():
        with temporary_dir() as folder:
            # What the report doesn't name is not looked at, and is not published either.
            for one in build:
                with output_errors(folder / one.path.name):
                    (folder / one.path.name).symlink_to(one.path)
            verify(folder)
    if faults := list(role_faults(release)):
        raise VerifyError("\n  ".join(["wheels are not what their report calls them:", *faults]))
    descriptions = check_descriptions([one.path for one in release.artifacts], twine)
    if descriptions.faults:
        refused = [f"{file}: {text}" for file, text in descriptions.faults]
        raise VerifyError("\n  ".join([UNFIT, *refused]))
    return descriptions.warnings
