"""The front package of releases for several CUDA majors: no files, only extras.

In: the releases ``foo-cu12`` and ``foo-cu13`` of one version. Out: the wheel ``foo``, whose extras
bring the core of one major with the plugins for a GPU: ``foo[cu13-sm90]``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from archsplit import __version__
from archsplit.errors import OutputError
from archsplit.release.requirements import exact_pin
from archsplit.wheels.filename import WheelName, distribution_name
from archsplit.wheels.metadata import CoreMetadata, read_extras
from archsplit.wheels.reader import open_wheel
from archsplit.wheels.writer import WheelPlan, write_wheel

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from archsplit.release.report import Release


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaReleases:
    """The releases of one version for several CUDA majors.

    Attributes:
        front: the file name of the front package's wheel.
        releases: the report of each major.
    """

    front: str
    releases: Mapping[int, Release] = field(repr=False)


def refuse_cuda_folders(out: Path, majors: Iterable[int]) -> None:
    """Refuse an output folder that has the release of a major.

    Raises:
        OutputError: it has one.
    """
    # Folders can't be exchanged at once, so there is none before.
    if existing := [f"cu{major}" for major in majors if (out / f"cu{major}").exists()]:
        raise OutputError(
            f"{out} has {', '.join(existing)} already", hint="choose another folder with --out"
        )


def write_front_package(
    folder: Path,
    project: str,
    version: str,
    releases: Mapping[int, Release],
    *,
    requires_python: str,
    epoch: int,
) -> str:
    """Write the front package beside the folders of the releases; return its file name.

    Args:
        folder: has the release of each major in ``cu12``, ``cu13``.
    """
    metadata = CoreMetadata(
        name=project,
        version=version,
        summary=f"{project} for one major version of CUDA, chosen by an extra.",
        # `twine check --strict` refuses a page without a text.
        description=_description(project, sorted(releases)),
        description_content_type="text/markdown",
        requires_python=requires_python,
        extras=dict(_extras(project, version, releases, folder)),
    )
    name = WheelName(project=distribution_name(project), version=version, platforms=("any",))
    generator = f"archsplit {__version__}"
    plan = WheelPlan(name=name, metadata=metadata, generator=generator, members=(), purelib=True)
    return write_wheel(folder, plan, epoch=epoch).name


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


def _description(project: str, majors: Sequence[int]) -> str:
    lines = "\n".join(f"- `pip install {project}[cu{major}]` for CUDA {major}" for major in majors)
    return (
        f"# {project}\n\nThis package has no files. It brings {project} for one CUDA:\n\n{lines}\n"
    )
