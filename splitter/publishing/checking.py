"""Read every file again before anything is uploaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from splitter.errors import VerifyError
from splitter.publishing.attestations import attestation_faults
from splitter.publishing.roles import role_faults
from splitter.system.files import private_folder, writing

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from splitter.publishing.release import Release
    from splitter.publishing.twine import Twine


def check_release(release: Release, twine: Twine, verify: Callable[[Path], object]) -> None:
    """Check a release as a whole: our ``verify``, ``twine check --strict``, the attestations.

    Args:
        verify: re-reads all wheels of a folder, and raises where one is not as promised.

    Raises:
        VerifyError: lists what is not as promised.
        ArchsplitError: a file can't be read.
    """
    faults = [fault for one in release.artifacts for fault in attestation_faults(one)]
    if faults:
        raise VerifyError("\n  ".join(["attestations are of other files:", *faults]))
    for build in release.builds.values():
        with private_folder() as folder:
            # What the report doesn't name is not looked at, and is not published either.
            for one in build:
                with writing(folder / one.path.name):
                    (folder / one.path.name).symlink_to(one.path)
            verify(folder)
    if faults := list(role_faults(release)):
        raise VerifyError("\n  ".join(["wheels are not what their report calls them:", *faults]))
    twine.check([one.path for one in release.artifacts])
