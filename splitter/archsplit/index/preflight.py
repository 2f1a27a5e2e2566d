"""Checks before an upload: roles of wheels, descriptions, attestations, the whole release.

Every file is read again before anything is uploaded, because the order of uploads depends on it.
Indexes refuse a description that they can't render; twine's renderer says so beforehand.
"""

from __future__ import annotations

import base64
import json
from importlib.util import find_spec
from itertools import starmap
from typing import TYPE_CHECKING

from archsplit.errors import VerifyError
from archsplit.index.upload import Twine
from archsplit.release.findings import DescriptionCheck
from archsplit.system.env import without_credentials
from archsplit.system.finding import Finding
from archsplit.system.fs import output_errors, read_file, temporary_dir
from archsplit.wheels.reader import open_wheel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from archsplit.index.release import Artifact, UploadRelease
    from archsplit.release.context import Effects

_OURS = "archsplit"
"""First word of the generator in WHEEL where archsplit wrote METADATA."""

_LINES = 2
"""Lines of a message that are kept; docutils writes many more."""


def check_descriptions(paths: Sequence[Path], twine: Twine) -> DescriptionCheck:
    """Check files with ``twine check``, strictly where archsplit wrote the description."""
    faults: list[tuple[str, str]] = []
    warnings: list[str] = []
    for report in twine.check(paths):
        lines = map(str.strip, report.text.splitlines()[:_LINES])
        text = ": ".join(filter(None, lines))
        # A warning about upstream's text can't be mended here, so it doesn't stop a release.
        if report.is_error or _is_ours(report.path):
            faults.append((report.path.name, text))
        else:
            warnings.append(f"{report.path.name}: {text}")
    return DescriptionCheck(tuple(faults), tuple(warnings))


def check_where_installed(paths: Sequence[Path], effects: Effects) -> DescriptionCheck:
    """Check files as `check_descriptions` does; without twine, warn that nothing was checked."""
    # twine belongs to the extra `publish`; `verify` must work without it.
    if find_spec("twine") is None:
        note = "no twine, which `publish` needs: descriptions were not checked"
        return DescriptionCheck((), (f"{note}; pip install 'archsplit[publish]'",))
    twine = Twine(
        runner=effects.runner,
        # `twine check` needs no password, so it gets none.
        environment=without_credentials(effects.environment),
        python_path=effects.python_path,
    )
    return check_descriptions(paths, twine)


def _is_ours(path: Path) -> bool:
    """Return True if archsplit wrote a wheel's METADATA; a split's core has upstream's."""
    if path.suffix != ".whl":
        return False
    with open_wheel(path, same_tags=False, full_record=False) as wheel:
        return wheel.info.generator.startswith(_OURS)


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
        hint="name a readme of the project, or mend its markup, and make the wheel again",
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
