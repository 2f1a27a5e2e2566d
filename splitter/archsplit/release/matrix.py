"""The matrix of a release: a cell for each Python, platform and GPU, and the wheels that fill it.

In: the report of a release; no wheel is read. Out: the cells, complete or not. A Python that one
platform has and another lacks is a hole too: an index can't tell a user why. Holes can be allowed
by name, with patterns such as ``cp310-*aarch64*`` or ``*:9.0``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from archsplit.release.findings import finding
from archsplit.wheels.filename import WheelName, distribution_name, fitting_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from archsplit.release.report import Release, ReleaseWheel
    from archsplit.system.finding import Finding

__pure__ = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A cell: a Python and platform, and a GPU.

    Attributes:
        place: the tags of the core, ``cp311-cp311-manylinux_2_28_x86_64``.
        gpu: a capability of a split, a target of a build; "" for a core that is missing.
        files: the wheels that fill it.
        missing: the distributions without a wheel for it.
    """

    place: str
    gpu: str
    files: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


def release_matrix(release: Release) -> tuple[Cell, ...]:
    """Return all cells of a release; cells of missing cores are last."""
    plugins: dict[str, dict[WheelName, ReleaseWheel]] = {}
    for wheel in release.plugins:
        name = WheelName.parse(wheel.file)
        plugins.setdefault(name.project, {})[name] = wheel
    cells = [
        _cell(core, gpu, names, release, plugins)
        for core in release.cores
        for gpu, names in _needs(release).items()
    ]
    return (*cells, *_missing_cores(release))


def hole_findings(release: Release, without: Sequence[str] = ()) -> Iterator[Finding]:
    """Find the incomplete cells of a release.

    Args:
        without: patterns of the cells that may be missing.
    """
    cores = {WheelName.parse(core.file).place for core in release.cores}
    gpus: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for cell in release_matrix(release):
        name = f"{cell.place}:{cell.gpu}"
        if cell.missing and not any(fnmatchcase(name, pattern) for pattern in without):
            gpus.setdefault((cell.place, cell.missing), []).append(cell.gpu)
    for (place, missing), names in gpus.items():
        what = f"no wheel of {', '.join(missing)}"
        text = f"{what} for GPUs of {', '.join(names)}" if any(names) else what
        # A core that is here names its plugins: no option allows them to be missing.
        if place in cores:
            yield finding("incomplete-core", place, text)
        else:
            yield finding("missing-cell", place, text, cell=f"'{place}:*'")


def matrix_text(release: Release, cells: Sequence[Cell]) -> str:
    """Return the matrix as a table: a row for each Python and platform, a column for each GPU."""
    # A report's keys are sorted as text, where 10.0 comes before 8.0.
    gpus = sorted(
        {cell.gpu for cell in cells if cell.gpu},
        key=lambda gpu: [int(number) for number in re.findall(r"\d+", gpu)],
    )
    places = list(dict.fromkeys(cell.place for cell in cells))
    filled = {(cell.place, cell.gpu) for cell in cells if not cell.missing}
    width = max(map(len, places), default=0)
    rows = [f"{'':{width}}  {'  '.join(gpus)}".rstrip()]
    for place in places:
        marks = (("x" if (place, gpu) in filled else "-").center(len(gpu)) for gpu in gpus)
        rows.append(f"{place:{width}}  {'  '.join(marks)}".rstrip())
    return "\n".join([f"{release.project} {release.version}", *rows])


def _needs(release: Release) -> Mapping[str, tuple[str, ...]]:
    """Return the plugins that each capability or target needs."""
    # Capabilities of a split, targets of a build: users of each know these names.
    if release.split is not None:
        return release.split.needs
    targets = () if release.build is None else release.build.targets
    return {target: (target,) for target in targets}


def _cell(
    core: ReleaseWheel,
    gpu: str,
    names: Sequence[str],
    release: Release,
    plugins: Mapping[str, Mapping[WheelName, ReleaseWheel]],
) -> Cell:
    core_name = WheelName.parse(core.file)
    files, missing = [core.file], []
    for name in names:
        distribution = distribution_name(f"{release.project}-{name.replace('_', '')}")
        own = plugins.get(distribution, {})
        found = fitting_file(core_name, tuple(own))
        if found is None:
            missing.append(distribution)
        else:
            files.append(own[found].file)
    return Cell(place=core_name.place, gpu=gpu, files=tuple(files), missing=tuple(missing))


def _missing_cores(release: Release) -> Iterator[Cell]:
    """Yield a cell for each Python that a platform of the release lacks."""
    names = [WheelName.parse(core.file) for core in release.cores]
    pythons = dict.fromkeys((name.pythons, name.abis) for name in names)
    # Platform tags differ in the age of Linux; what counts is the machine.
    machines = dict.fromkeys(name.machine for name in names)
    present = {(name.pythons, name.abis, name.machine) for name in names}
    for python, abi in pythons:
        for machine in machines:
            # A Python that no platform has is not a hole: the project doesn't support it.
            if (python, abi, machine) not in present:
                place = f"{'.'.join(python)}-{'.'.join(abi)}-{machine}"
                yield Cell(place=place, gpu="", missing=(release.project,))
