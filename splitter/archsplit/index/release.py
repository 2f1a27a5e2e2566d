"""A release to publish: the files that the reports of one release name, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - pydantic reads the annotations
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from packaging.utils import InvalidSdistFilename, parse_sdist_filename

from archsplit.errors import InputError, VerifyError
from archsplit.release.report import releases_by_build, require_report
from archsplit.system.fs import sha256
from archsplit.wheels.filename import WheelName

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from archsplit.release.report import Release, ReleaseWheel

PLUGIN, CORE, SOURCE, META = "plugin", "core", "source", "meta"

ORDER = (PLUGIN, CORE, SOURCE, META)
"""Order of roles in an upload.

The core comes after all requirements of its extras, so that everything that can be installed is
complete. An earlier source distribution would be built where only the core is wanted, and an
earlier meta wheel could not be resolved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A file of a release.

    Attributes:
        role: one of `ORDER`.
        project: normalized by PEP 503.
        version: from the file name.
        platforms: the platform tags of a wheel.
        attestations: the PEP 740 files beside it.
    """

    path: Path
    role: str
    project: str
    version: str
    size: int
    sha256: str
    platforms: tuple[str, ...] = ()
    attestations: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadRelease:
    """All files of one version of a project.

    Attributes:
        project: the name of the core.
        artifacts: in the order of the upload.
        builds: wheels by build id; each platform has its own build.
        reports: the report of each build, with the wheels of all its parts.
        folders: of the reports.
    """

    project: str
    version: str
    artifacts: tuple[Artifact, ...]
    builds: Mapping[str, tuple[Artifact, ...]] = field(repr=False)
    reports: Mapping[str, Release] = field(default_factory=dict, repr=False)
    folders: tuple[Path, ...] = ()

    @property
    def projects(self) -> tuple[str, ...]:
        """All projects, in the order of the upload."""
        return tuple(dict.fromkeys(one.project for one in self.artifacts))

    def of(self, role: str) -> tuple[Artifact, ...]:
        """Return the files with a role."""
        return tuple(one for one in self.artifacts if one.role == role)


def read_release(folders: Sequence[Path], *, source: Path | None = None) -> UploadRelease:
    """Read the reports of one release.

    Args:
        folders: each with the report of a build or of a split; parts of one build, or builds of one
            version for several platforms.
        source: a source distribution to publish with them.

    Raises:
        InputError: a folder has no report, or the reports are of different releases.
        VerifyError: lists every file that differs between the reports.
    """
    faults: list[str] = []
    builds: dict[str, dict[str, Artifact]] = {}
    reports = {folder: require_report(folder) for folder in folders}
    for folder, report in reports.items():
        build = builds.setdefault(report.build_id, {})
        for row in report.wheels:
            _add_artifact(build, _read_artifact(folder, row), faults)
    # Each platform is a build of its own; together they are one version on the index.
    names = {row.file for report in reports.values() for row in report.published}
    files = [one for build in builds.values() for name, one in build.items() if name in names]
    # A source distribution is made by another tool, so no report lists it.
    if source is not None:
        files.append(_read_source(source))
    artifacts = _unique_artifacts(files, faults)
    if faults:
        raise VerifyError("\n  ".join(["the parts are from different releases:", *faults]))
    project, version = _release_name(artifacts)
    return UploadRelease(
        project=project,
        version=version,
        artifacts=artifacts,
        builds={name: tuple(build.values()) for name, build in builds.items()},
        reports=releases_by_build(reports.values()),
        folders=tuple(folders),
    )


def _read_artifact(folder: Path, row: ReleaseWheel) -> Artifact:
    path, name = folder / row.file, WheelName.parse(row.file)
    return Artifact(
        path=path.absolute(),
        role=row.role,
        project=name.project,
        version=name.version,
        # A file that is missing is a finding of the checks, as any other difference.
        size=path.stat().st_size if path.exists() else row.size,
        sha256=row.sha256,
        platforms=name.platforms,
        attestations=_find_attestations(path),
    )


def _find_attestations(path: Path) -> tuple[Path, ...]:
    # The names that pypi-attestations writes, and that twine looks for.
    beside = path.absolute().parent.glob(f"{path.name}.*.attestation")
    return tuple(sorted(beside))


def _read_source(path: Path) -> Artifact:
    try:
        project, version = parse_sdist_filename(path.name)
    except InvalidSdistFilename as error:
        raise InputError(f"{path} is not a source distribution: {error}") from None
    return Artifact(
        path=path.absolute(),
        role=SOURCE,
        project=project,
        version=str(version),
        size=path.stat().st_size,
        sha256=sha256(path),
        attestations=_find_attestations(path),
    )


def _add_artifact(build: dict[str, Artifact], one: Artifact, faults: list[str]) -> None:
    before = build.setdefault(one.path.name, one)
    if before.sha256 != one.sha256:
        faults.append(f"{one.path} and {before.path} have the same name but different content")


def _unique_artifacts(files: Sequence[Artifact], faults: list[str]) -> tuple[Artifact, ...]:
    """Return each file once, though builds for several platforms make the same meta wheel."""
    file_by_name: dict[str, Artifact] = {}
    for one in files:
        _add_artifact(file_by_name, one, faults)
    return tuple(sorted(file_by_name.values(), key=_sort_key))


def _sort_key(one: Artifact) -> tuple[int, str, str]:
    return ORDER.index(one.role), one.project, one.path.name


def _release_name(artifacts: tuple[Artifact, ...]) -> tuple[str, str]:
    cores = {one.project for one in artifacts if one.role in (CORE, SOURCE)}
    versions = {one.version for one in artifacts}
    # Without a wheel each user would build the source distribution: not a release.
    if len(cores) != 1 or not any(one.role == CORE for one in artifacts):
        found = ", ".join(sorted(cores)) or "none"
        raise InputError(f"one core is published with its plugins; these files have {found}")
    if len(versions) != 1:
        raise InputError(
            f"one version is published; these files have {', '.join(sorted(versions))}"
        )
    return cores.pop(), versions.pop()
