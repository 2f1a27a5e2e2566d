"""Splits of the wheels of one version for several CUDA majors, with one front package.

In: fat wheels of one project and version, which differ in the CUDA that they are for. Out: for each
major a release of its own, ``foo-cu12`` in ``cu12/``; and a wheel ``foo`` without files, whose
extras bring the core of a major with the packs for a GPU.

The index has no local versions, and a resolver can't choose between ``1.0+cu128`` and
``1.0+cu130``. So the major is in the name, and the local part goes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from archsplit import __version__
from archsplit.errors import InputError, OutputError, UsageError
from archsplit.release.requirements import exact_pin
from archsplit.split.split import split_wheel
from archsplit.system.env import source_date_epoch
from archsplit.system.fs import output_dir, replace_all, temporary_dir
from archsplit.wheels.filename import WheelName, distribution_name
from archsplit.wheels.metadata import CoreMetadata, read_extras
from archsplit.wheels.reader import open_wheel
from archsplit.wheels.writer import WheelPlan, write_wheel

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from archsplit.release.context import Effects
    from archsplit.release.report import Release
    from archsplit.split.model import SplitRequest
    from archsplit.wheels.reader import Wheel

_IN_NAME = re.compile(r"-cu(?:da)?-?(\d\d)x?$")
_IN_LOCAL = re.compile(r"^cu(?:da)?\.?(\d\d)")
_OF_TOOLKIT = re.compile(r"cuda-toolkit|nvidia-(?:cublas|cuda-(?:runtime|nvrtc|cupti))")
"""Distributions whose own version is that of CUDA; the others count by themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaReleases:
    """The releases of a split by CUDA majors.

    Attributes:
        front: the file name of the front package's wheel.
        releases: the report of each major.
    """

    front: str
    releases: Mapping[int, Release] = field(repr=False)


def split_by_cuda(request: SplitRequest, effects: Effects) -> CudaReleases:
    """Split wheels for several CUDA majors; write the folders of all majors, or none.

    Raises:
        InputError: the major of a wheel is unknown, or the wheels are not of one version.
        OutputError: the output folder has such a split already, or can't be written.
        ArchsplitError: see `split_wheel`.
    """
    paths = (request.source, *request.others)
    groups, (project, version) = _group_by_major(paths)
    with output_dir(request.out) as out, temporary_dir(out) as staging:
        # Folders can't be exchanged at once, so there is none before.
        if existing := [f"cu{major}" for major in groups if (out / f"cu{major}").exists()]:
            raise OutputError(
                f"{out} has {', '.join(existing)} already", hint="choose another folder with --out"
            )
        releases = {}
        for major, (first, *others) in sorted(groups.items()):
            part = replace(
                request,
                source=first,
                others=tuple(others),
                out=staging / f"cu{major}",
                name=f"{project}-cu{major}",
                version=version,
            )
            releases[major] = split_wheel(part, effects)
        with open_wheel(paths[0], same_tags=False) as wheel:
            plan = _front(wheel, (project, version), releases, staging)
        epoch = source_date_epoch(effects.environment)
        front = write_wheel(staging, plan, epoch=epoch).name
        replace_all([*(f"cu{major}" for major in groups), front], source=staging, target=out)
    return CudaReleases(front=front, releases=releases)


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
    if _IN_NAME.search(project):
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
    metadata = wheel.read(f"{wheel.dist_info}/METADATA")
    requires = re.findall(rb"^Requires-Dist:\s*(.+?)\s*$", metadata, re.MULTILINE | re.IGNORECASE)
    texts = [text.decode(errors="replace") for text in requires]
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
    if found := _IN_NAME.search(name.project):
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
        if found := _IN_NAME.search(project):
            yield int(found[1]), f"the requirement {project}"
        elif _OF_TOOLKIT.fullmatch(project):
            for one in requirement.specifier:
                if one.operator in {"==", "~=", ">="}:
                    yield int(one.version.partition(".")[0]), f"the requirement {text}"


def _front(
    wheel: Wheel, release: tuple[str, str], releases: Mapping[int, Release], folder: Path
) -> WheelPlan:
    """Plan the front package: no files, and extras for each major and its own extras."""
    project, version = release
    metadata = CoreMetadata(
        name=project,
        version=version,
        summary=f"{project} for one major version of CUDA, chosen by an extra.",
        # `twine check --strict` refuses a page without a text.
        description=_description(project, sorted(releases)),
        description_content_type="text/markdown",
        requires_python=_requires_python(wheel),
        extras=dict(_extras(project, version, releases, folder)),
    )
    name = WheelName(project=distribution_name(project), version=version, platforms=("any",))
    generator = f"archsplit {__version__}"
    return WheelPlan(name=name, metadata=metadata, generator=generator, members=(), purelib=True)


def _extras(
    project: str, version: str, releases: Mapping[int, Release], folder: Path
) -> Iterator[tuple[str, tuple[str, ...]]]:
    for major, release in sorted(releases.items()):
        core = f"{project}-cu{major}"
        yield f"cu{major}", (exact_pin(core, version),)
        with open_wheel(folder / f"cu{major}" / release.cores[0].file, same_tags=False) as wheel:
            content = wheel.read(f"{wheel.dist_info}/METADATA")
        # The extras of the project itself, too: `foo[cu12-dask]` is `foo-cu12[dask]`.
        for extra in sorted(read_extras(content)):
            yield f"cu{major}-{extra}", (exact_pin(f"{core}[{extra}]", version),)


def _requires_python(wheel: Wheel) -> str:
    content = wheel.read(f"{wheel.dist_info}/METADATA")
    found = re.search(rb"^Requires-Python:\s*(.+?)\s*$", content, re.MULTILINE | re.IGNORECASE)
    return found[1].decode() if found else ""


def _description(project: str, majors: Sequence[int]) -> str:
    lines = "\n".join(f"- `pip install {project}[cu{major}]` for CUDA {major}" for major in majors)
    return (
        f"# {project}\n\nThis package has no files. It brings {project} for one CUDA:\n\n{lines}\n"
    )
