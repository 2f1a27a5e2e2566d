"""Checks before an upload: the roles of wheels, attestations, and the release as a whole.

Every file is read again before anything is uploaded, because the order of uploads depends on it.
"""

from __future__ import annotations

import base64
import json
from itertools import starmap
from typing import TYPE_CHECKING

from archsplit.errors import VerifyError
from archsplit.index.descriptions import check_descriptions
from archsplit.system.finding import Finding
from archsplit.system.fs import output_errors, read_file, temporary_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from archsplit.index.release import Artifact, UploadRelease
    from archsplit.index.upload import Twine

UNFIT = "an index refuses these files, or shows no page for them:"


def role_faults(release: UploadRelease, roles: Mapping[str, str]) -> Iterator[str]:
    """Yield a fault for each wheel with another role than in its report.

    Args:
        roles: by file name, as the content of each wheel shows.
    """
    for one in release.artifacts:
        if (found := roles.get(one.path.name, one.role)) != one.role:
            yield f"{one.path.name} is a {found}, and its report says {one.role}"


def attestation_faults(artifact: Artifact) -> Iterator[str]:
    """Yield a fault for each attestation of another file.

    The index would refuse it in the middle of the upload. Only the index checks signatures.
    """
    for path in artifact.attestations:
        if artifact.sha256 not in _subjects(read_file(path)):
            yield f"{path.name} does not attest {artifact.path.name} as it is now"


def _subjects(content: bytes) -> set[str]:
    """Return the digests of the attested files; none for an unreadable attestation."""
    try:
        statement = json.loads(base64.b64decode(json.loads(content)["envelope"]["statement"]))
        return {str(one["digest"]["sha256"]) for one in statement["subject"]}
    # An attestation is written by other tools: any shape of JSON is possible.
    except (ValueError, KeyError, TypeError, RecursionError):
        return set()


def _description_finding(file: str, text: str) -> Finding:
    return Finding(
        code="bad-description",
        subject=file,
        found=text,
        expected="",
        hint="mend the description of the project, and make the wheel again",
    )


def preflight_check(
    release: UploadRelease, twine: Twine, verify: Callable[[Path], Mapping[str, str]]
) -> tuple[str, ...]:
    """Check a release as a whole: `verify`, ``twine check``, and the attestations.

    Args:
        verify: reads all wheels of a folder again, raises `VerifyError` for findings, and returns
            the role of each wheel by its file name.

    Returns:
        Warnings about descriptions that upstream wrote.

    Raises:
        VerifyError: lists all faults.
        ArchsplitError: a file can't be read.
    """
    faults = [fault for one in release.artifacts for fault in attestation_faults(one)]
    if faults:
        raise VerifyError("\n  ".join(["attestations are of other files:", *faults]))
    roles: dict[str, str] = {}
    for build in release.builds.values():
        with temporary_dir() as folder:
            # Only the files of the report are checked, because only they are published.
            for one in build:
                with output_errors(folder / one.path.name):
                    # Links, because wheels may have gigabytes.
                    (folder / one.path.name).symlink_to(one.path)
            roles.update(verify(folder))
    # The upload order is the order of roles, so a wrong role could put a core before its plugins.
    if faults := list(role_faults(release, roles)):
        raise VerifyError("\n  ".join(["wheels are not what their report calls them:", *faults]))
    descriptions = check_descriptions([one.path for one in release.artifacts], twine)
    if descriptions.faults:
        raise VerifyError(UNFIT, findings=tuple(starmap(_description_finding, descriptions.faults)))
    return descriptions.warnings
