"""Requirements of a release that only its index can meet; read before the first upload.

In: the cores of a release, and the pages of indexes. Out: warnings about other projects that no
index has, and about targets of the last release that this one lacks.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

from packaging.metadata import parse_email
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import Version

from archsplit.index.release import CORE, META, SOURCE
from archsplit.wheels.filename import ALL_EXTRA, WheelName
from archsplit.wheels.reader import open_wheel

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from packaging.metadata import RawMetadata

    from archsplit.index.client import Index, IndexFile, IndexPage
    from archsplit.index.release import Artifact, UploadRelease

_PYTHON = re.compile(r"cp3(\d+)")


def install_requirement(release: UploadRelease) -> str:
    """Return the requirement that brings a core with every plugin."""
    metas, (core, *_) = release.of(META), release.of(CORE)
    if metas:
        return f"{metas[0].project}=={release.version}"
    extras = _read_metadata(core.path).get("provides_extra", [])
    extra = f"[{ALL_EXTRA}]" if ALL_EXTRA in extras else ""
    return f"{release.project}{extra}=={release.version}"


def missing_dependencies(release: UploadRelease, indexes: Sequence[Index]) -> Iterator[str]:
    """Yield a warning for each requirement on another project that no index can meet.

    Raises:
        IndexUnreachableError: an index can't be read.
    """
    for requirement in dict.fromkeys(_outside(release)):
        pages = (index.project(canonicalize_name(requirement.name)) for index in indexes)
        if not any(_has_version(page, requirement) for page in pages):
            places = " and ".join(index.address for index in indexes)
            yield (
                f"{release.project} requires {requirement}, which is not on {places};"
                " --extra-index-url names the index that users have for it"
            )


def dropped_targets(release: UploadRelease, page: IndexPage, index: Index) -> Iterator[str]:
    """Yield a warning for targets that only the last release has.

    ``pip install -U`` of such an extra brings the new core without code for the user's GPU.

    Args:
        page: the core's project.
    """
    (core, *_) = release.of(CORE)
    now = _plugin_extras(_read_metadata(core.path), core.project)
    earlier = _last_core(page, Version(release.version))
    if earlier is None:
        return
    version, served = earlier
    # The wheel itself may have gigabytes, so an index without metadata files is not searched.
    if served.metadata is None:
        yield f"{core.project} {version} has no metadata on the index, so targets are not compared"
        return
    last = parse_email(index.read(served.metadata_url))[0]
    before = _plugin_extras(last, core.project)
    # A pack of PTX for future GPUs has no machine that would be left without code today.
    dropped = sorted(before - now - {ALL_EXTRA, "ptx"})
    if dropped:
        # An extra may bring another extra's pack. A name that the project never registered must not
        # be required: anybody could upload it.
        own = {canonicalize_name(one.name) for one in _requirements(last)}
        kept = ",".join(one for one in dropped if f"{core.project}-{one}" in own)
        is_split = all(report.split is not None for report in release.reports.values())
        mend = f"`archsplit split --dropped {kept}`" if is_split else "`dropped` in the recipe"
        yield (
            f"{core.project} {version} on the index has {','.join(dropped)}, and this release lacks"
            " it: `pip install -U` leaves these users without device code"
            + (f"; {mend} keeps them at {version}" if kept else "")
        )


def _read_metadata(path: Path) -> RawMetadata:
    with open_wheel(path, same_tags=False, full_record=False) as wheel:
        return wheel.raw_metadata


def _outside(release: UploadRelease) -> Iterator[Requirement]:
    """Yield the requirements on projects that are not of the release, without their markers."""
    for artifact in release.artifacts:
        if artifact.role == SOURCE:
            continue
        environment = _environment(artifact)
        for requirement in _requirements(_read_metadata(artifact.path)):
            name = canonicalize_name(requirement.name)
            is_own = name in release.projects or _is_plugin(requirement, release.project)
            # Upstream's own extras are not part of an installation with all plugins.
            is_needed = requirement.marker is None or requirement.marker.evaluate(environment)
            if is_needed and not is_own:
                requirement.marker = None
                yield requirement


def _environment(artifact: Artifact) -> dict[str, str]:
    """Return the variables of markers for the Python of a wheel."""
    environment = {"extra": ""}
    for tag in WheelName.parse(artifact.path.name).pythons:
        if match := _PYTHON.fullmatch(tag):
            environment["python_version"] = f"3.{match[1]}"
            environment["python_full_version"] = f"3.{match[1]}.0"
    return environment


def _requirements(metadata: RawMetadata) -> Iterator[Requirement]:
    for text in metadata.get("requires_dist", []):
        # Old METADATA has forms that only installers accept.
        with contextlib.suppress(InvalidRequirement):
            yield Requirement(text)


def _is_plugin(requirement: Requirement, core: str) -> bool:
    """Return True for an exact pin of a project that is named after the core."""
    is_exact = any(one.operator == "==" for one in requirement.specifier)
    return is_exact and canonicalize_name(requirement.name).startswith(f"{core}-")


def _plugin_extras(metadata: RawMetadata, core: str) -> set[str]:
    """Return the extras of a core that bring a plugin."""
    return {
        extra
        for extra in metadata.get("provides_extra", [])
        for one in _requirements(metadata)
        if _is_plugin(one, core)
        and one.marker is not None
        and one.marker.evaluate({"extra": extra})
    }


def _has_version(page: IndexPage, requirement: Requirement) -> bool:
    found = filter(None, map(_file_version, page.files))
    return any(requirement.specifier.contains(one, prereleases=True) for one in found)


def _file_version(file: str) -> Version | None:
    try:
        is_wheel = file.endswith(".whl")
        return parse_wheel_filename(file)[1] if is_wheel else parse_sdist_filename(file)[1]
    # Old pages have eggs and installers of other systems.
    except (InvalidWheelFilename, InvalidSdistFilename):
        return None


def _last_core(page: IndexPage, version: Version) -> tuple[Version, IndexFile] | None:
    """Return the newest earlier version, and one of its wheels, with its metadata if possible."""
    wheels = [
        (found, served)
        for name, served in page.files.items()
        if name.endswith(".whl")
        and served.yanked is None
        and (found := _file_version(name)) is not None
        and found < version
        and (version.is_prerelease or not found.is_prerelease)
    ]
    newest = max((found for found, _ in wheels), default=version)
    cores = [served for found, served in wheels if found == newest]
    core = min(cores, key=lambda one: (one.metadata is None, one.name), default=None)
    return None if core is None else (newest, core)
