"""Checks before an upload: roles of wheels, descriptions, attestations, the whole release.

Every file is read again before anything is uploaded, because the order of uploads depends on it.
Indexes refuse a description that they can't render; twine's renderer says so beforehand.
"""

from __future__ import annotations

import base64
import json
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

from archsplit.errors import VerifyError
from archsplit.index.upload import Twine
from archsplit.release.completeness import folder_findings, release_findings
from archsplit.release.findings import DescriptionCheck
from archsplit.release.verify import tag_cache
from archsplit.release.wheel_set import read_wheel_set
from archsplit.system.env import without_credentials
from archsplit.system.fs import read_file, temporary_dir
from archsplit.wheels.reader import open_wheel

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from archsplit.index.release import Artifact, UploadRelease
    from archsplit.release.completeness import CheckOptions
    from archsplit.release.context import Effects
    from archsplit.system.finding import Finding

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


def check_descriptions_with_twine(paths: Sequence[Path], effects: Effects) -> DescriptionCheck:
    """Check files as `check_descriptions` does; without twine, warn that nothing was checked."""
    # twine belongs to the extra `publish`; `verify` must work without it.
    if find_spec("twine") is None:
        note = "descriptions were not checked, because twine is not installed"
        return DescriptionCheck((), (f"{note}: pip install 'archsplit[publish]'",))
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


def preflight_check(
    release: UploadRelease, effects: Effects, options: CheckOptions
) -> tuple[str, ...]:
    """Check a release as ``archsplit verify --release`` does, and its attestations.

    Nothing is installed here.

    Returns:
        Warnings about descriptions that upstream wrote.

    Raises:
        VerifyError: lists all faults.
        ArchsplitError: a file can't be read.
    """
    faults = [fault for one in release.artifacts for fault in attestation_faults(one)]
    if faults:
        raise VerifyError("\n  ".join(["attestations are of other files:", *faults]))
    describe = partial(check_descriptions_with_twine, effects=effects)
    findings: list[Finding] = []
    warnings: list[str] = []
    for build_id, build in release.builds.items():
        with temporary_dir() as scratch:
            tags = tag_cache(effects, scratch)
            # Only the files of the report are checked, because only they are published. A
            # missing one is a finding.
            paths = tuple(one.path for one in build if one.path.exists())
            wheels = read_wheel_set(
                release.folders[0], scratch, paths=paths, platforms=tags.platforms
            )
            checked = release_findings(wheels, release.reports[build_id], options, describe)
        findings += checked.findings
        warnings += checked.warnings
    for folder in release.folders:
        findings += folder_findings(folder)
    if findings:
        found = tuple(dict.fromkeys(findings))
        raise VerifyError("this release can't be published:", findings=found)
    return tuple(dict.fromkeys(warnings))
