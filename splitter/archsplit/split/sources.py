"""Splits of other sources than the wheels of one release.

A library that is in no wheel is put into one, in a package of its own (`split_library`).

Wheels of one project and version for several CUDA majors (`split_by_cuda`) become for each major a
release of its own, ``foo-cu12`` in ``cu12/``; and a front package, a wheel ``foo`` without files,
whose extras bring the core of a major with the packs for a GPU. The index has no local versions,
and a resolver can't choose between ``1.0+cu128`` and ``1.0+cu130``. So the major is in the name,
and the local part goes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from archsplit.errors import InputError, UsageError, WheelError
from archsplit.formats.elf import MACHINE_NAMES, Elf
from archsplit.formats.reader import open_file
from archsplit.release.manifest import SourceFile
from archsplit.release.wheel_plans import write_cuda_releases
from archsplit.split.split import split_wheel
from archsplit.system.env import ZIP_EPOCH, clean_environment, source_date_epoch
from archsplit.system.fs import sha256, temporary_dir
from archsplit.wheels.filename import CUDA_IN_NAME, WheelName, distribution_name
from archsplit.wheels.metadata import CoreMetadata
from archsplit.wheels.platform_tags import find_platform_tags
from archsplit.wheels.reader import open_wheel
from archsplit.wheels.writer import WheelDraft, wheel_members, write_wheel

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from archsplit.release.context import Effects
    from archsplit.release.report import Release
    from archsplit.release.wheel_plans import CudaReleases
    from archsplit.split.model import SplitRequest
    from archsplit.wheels.reader import Wheel


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryProject:
    """Project of a library without a wheel.

    Attributes:
        metadata: the metadata of the core.
        package: the import package that gets the library, in ``lib``.
        files: the other files of the core, by their name in its wheel.
        licenses: the license files, by their name below ``licenses/``.
    """

    metadata: CoreMetadata
    package: str
    files: Mapping[str, Path] = field(default_factory=dict)
    licenses: Mapping[str, Path] = field(default_factory=dict)


def minimal_project(name: str | None, version: str) -> LibraryProject:
    """Return a project with a name and a version only.

    Raises:
        UsageError: the name is missing.
    """
    if name is None:
        # Not made of the file name: `libfoo.so.1` is rarely what a project is called.
        raise UsageError("a library needs a project name", hint="add --name")
    project = distribution_name(name)
    metadata = CoreMetadata(
        name=project,
        version=version,
        # `twine check --strict` refuses a wheel without a description.
        description=f"Libraries of {project}, split by archsplit.\n",
        description_content_type="text/plain",
    )
    return LibraryProject(metadata=metadata, package=project.replace("-", "_"))


def split_library(request: SplitRequest, effects: Effects, project: LibraryProject) -> Release:
    """Split a library: put it into a wheel as ``<package>/lib/<file>``, and split the wheel.

    Raises:
        InputError: the library can't be read, or is for a machine without CUDA.
        ArchsplitError: see `split_wheel`.
    """
    with temporary_dir() as folder:
        draft = _library_draft(request.source, project, effects, folder)
        wheel = write_wheel(folder, draft, epoch=ZIP_EPOCH)
        origin = SourceFile(path=request.source.name, sha256=sha256(request.source))
        # No fat wheel has this name, so pip can't prefer one: the core needs no build tag.
        request = replace(request, source=wheel, name=None, release=True)
        return split_wheel(request, effects, origin=origin)


def _library_draft(
    library: Path, project: LibraryProject, effects: Effects, folder: Path
) -> WheelDraft:
    """Return a wheel with the library and the files of its project."""
    # A package, so that the loader's folder has a place in it.
    text = f'"""Has {library.name} in lib."""\n'.encode()
    members: dict[str, bytes | Path] = {
        f"{project.package}/__init__.py": text,
        **project.files,
        f"{project.package}/lib/{library.name}": library,
    }
    return WheelDraft(
        name=WheelName(
            project=distribution_name(project.metadata.name),
            version=project.metadata.version,
            platforms=_platforms(library, effects, folder),
        ),
        metadata=project.metadata,
        generator="archsplit",
        members=wheel_members(members),
        licenses=wheel_members(project.licenses),
    )


def _platforms(library: Path, effects: Effects, folder: Path) -> tuple[str, ...]:
    """Return the platform tag of the oldest Linux that the library's symbols allow.

    Its needed libraries are not checked. If no policy allows its symbols, the tag is ``linux_…``,
    which the public index refuses.
    """
    machine = Elf(open_file(library)).header.machine
    if machine not in MACHINE_NAMES:
        raise InputError(f"{library} is for ELF machine {machine}, which has no CUDA")
    environment = clean_environment(effects.environment, temporary=folder, epoch=ZIP_EPOCH)
    environment["PYTHONPATH"] = effects.python_path
    try:
        return find_platform_tags(
            {library.name: library},
            runner=effects.runner,
            environment=environment,
            # Only the library's own symbols count: what it needs is installed by other packages.
            provided=("*",),
        ).names
    except WheelError:
        # A usable wheel nevertheless, only not one for the public index.
        return (f"linux_{MACHINE_NAMES[machine]}",)


_IN_LOCAL = re.compile(r"^cu(?:da)?\.?(\d\d)")
_OF_TOOLKIT = re.compile(r"cuda-toolkit|nvidia-(?:cublas|cuda-(?:runtime|nvrtc|cupti))")
"""Distributions with CUDA's version as their own; the others count by themselves."""


def split_by_cuda(request: SplitRequest, effects: Effects) -> CudaReleases:
    """Split wheels for several CUDA majors; write the folders of all majors, or none.

    Raises:
        InputError: the major of a wheel is unknown, or the wheels are not of one version.
        OutputError: the output folder has such a split already, or can't be written.
        ArchsplitError: see `split_wheel`.
    """
    paths = (request.source, *request.others)
    groups, (project, version) = _group_by_major(paths)
    with open_wheel(paths[0], same_tags=False) as wheel:
        requires_python = wheel.raw_metadata.get("requires_python", "")

    def write(major: int, folder: Path) -> Release:
        first, *others = groups[major]
        part = replace(
            request,
            source=first,
            others=tuple(others),
            out=folder,
            name=f"{project}-cu{major}",
            version=version,
        )
        return split_wheel(part, effects)

    return write_cuda_releases(
        request.out,
        groups,
        write,
        project=project,
        requires_python=requires_python,
        epoch=source_date_epoch(effects.environment),
    )


def _group_by_major(
    paths: Sequence[Path],
) -> tuple[dict[int, list[Path]], tuple[str, str]]:
    """Return the wheels of each major, and the project with its public version."""
    groups: dict[int, list[Path]] = {}
    found: dict[tuple[str, str], Path] = {}
    for path in paths:
        with open_wheel(path, same_tags=False) as wheel:
            groups.setdefault(find_cuda_major(wheel), []).append(path)
            found.setdefault((wheel.name.project, Version(wheel.name.version).public), path)
    if len(found) > 1:
        names = ", ".join(f"{path.name}" for path in found.values())
        raise InputError(
            f"the wheels are not of one project and version: {names}",
            hint="split each version by itself",
        )
    ((project, version),) = found
    if CUDA_IN_NAME.search(project):
        raise UsageError(
            f"{project} has the CUDA major in its name already",
            hint="split it without --name-by-cuda; the name stays",
        )
    return groups, (project, version)


def find_cuda_major(wheel: Wheel) -> int:
    """Return the CUDA major that a wheel is for, by its name, version and requirements.

    Raises:
        InputError: nothing says so, or not all of it agrees.
    """
    texts = wheel.raw_metadata.get("requires_dist", [])
    evidence: dict[int, str] = {}
    for major, source in (*_own_majors(wheel.name), *_required_majors(texts)):
        evidence.setdefault(major, source)
    if len(evidence) != 1:
        shown = "; ".join(f"{major} by {source}" for major, source in sorted(evidence.items()))
        raise InputError(
            f"{wheel.path}: its CUDA major is {shown or 'nowhere in its name or requirements'}",
            hint="split the wheels of each major by themselves, with --name NAME-cu12",
        )
    (major,) = evidence
    return major


def _own_majors(name: WheelName) -> Iterator[tuple[int, str]]:
    if found := CUDA_IN_NAME.search(name.project):
        yield int(found[1]), f"the name {name.project}"
    if found := _IN_LOCAL.search(Version(name.version).local or ""):
        yield int(found[1]), f"the version {name.version}"


def _required_majors(texts: Iterable[str]) -> Iterator[tuple[int, str]]:
    for text in texts:
        try:
            requirement = Requirement(text)
        # Other people's wheels have lines that no installer reads either.
        except InvalidRequirement:
            continue
        project = canonicalize_name(requirement.name)
        if found := CUDA_IN_NAME.search(project):
            yield int(found[1]), f"the requirement {project}"
        elif _OF_TOOLKIT.fullmatch(project):
            for one in requirement.specifier:
                if one.operator in {"==", "~=", ">="}:
                    yield int(one.version.partition(".")[0]), f"the requirement {text}"
