"""Drafts of the wheels of a build, its front package and its source distribution.

In: a recipe, the identity of its core, and one library for each target. Out: drafts that
`archsplit.wheels.writer` writes without further decisions.

Releases for several CUDA majors (``foo-cu12`` and ``foo-cu13`` of one version) get a front package:
the wheel ``foo`` has no files, only extras that bring the core of one major with the plugins for a
GPU, as in ``foo[cu13-sm90]``.
"""

from __future__ import annotations

import gzip
import io
import tarfile
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from archsplit.errors import OutputError
from archsplit.formats.elf import ELF_MAGIC
from archsplit.formats.reader import open_file
from archsplit.release.identity import CoreFiles, hook_entry_points
from archsplit.release.requirements import (
    dropped_extras,
    exact_pin,
    meta_metadata,
    pinned_extras,
    target_extras,
)
from archsplit.system.file_lock import LockedFolder
from archsplit.system.fs import atomic_replace, output_dir, read_file, replace_all, temporary_dir
from archsplit.wheels import metadata
from archsplit.wheels.filename import (
    WheelName,
    distribution_name,
    extra_name,
    plugin_distribution,
    plugin_path,
)
from archsplit.wheels.metadata import CoreMetadata, MetadataAuthor, read_extras
from archsplit.wheels.reader import open_wheel
from archsplit.wheels.writer import WheelDraft, WheelMember, wheel_members, write_wheel

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from archsplit.arch.target import Target
    from archsplit.recipe.model import Project, Recipe
    from archsplit.release.identity import Identity
    from archsplit.release.report import Release


def core_metadata(recipe: Recipe) -> CoreMetadata:
    """Return the core's metadata, with an extra for every plugin and one for all."""
    project = recipe.project
    plugins = {
        str(target): plugin_distribution(project.name, str(target)) for target in recipe.targets.all
    }
    dropped = [extra_name(str(target)) for target in recipe.targets.dropped]
    extras = {
        **pinned_extras(target_extras(plugins), plugins, project.version),
        **dropped_extras(dropped, distribution_name(project.name), project.version),
    }
    return replace(project_metadata(project, recipe.root), extras=extras)


def plugin_metadata(recipe: Recipe, target: Target, requires: tuple[str, ...]) -> CoreMetadata:
    """Return a plugin's metadata, without the licenses of the code that is linked into it.

    Args:
        requires: the requirements of each plugin beside its core.
    """
    project = recipe.project
    return replace(
        project_metadata(project, recipe.root),
        name=plugin_distribution(project.name, str(target)),
        summary=f"{project.summary.rstrip('.')}: device code for {target}.",
        requires=(exact_pin(project.name, project.version), *requires),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelPlanner:
    """Plans the wheels of one build.

    Attributes:
        identity: of the core.
        plugin_requires: the requirements of each plugin beside its core.
    """

    recipe: Recipe
    identity: Identity
    plugin_requires: tuple[str, ...] = ()

    def plugin(self, target: Target, library: Path, platforms: tuple[str, ...]) -> WheelDraft:
        """Plan the wheel with one target's library; it requires exactly this build's core."""
        recipe = self.recipe
        path = plugin_path(recipe.python.package, str(target), recipe.link.library)
        metadata = plugin_metadata(recipe, target, self.plugin_requires)
        member = WheelMember(name=path, content=library, mode=0o755)
        return self._draft(metadata, platforms, (member,))

    def core(self, loader: Path, platforms: tuple[str, ...]) -> WheelDraft:
        """Plan the wheel that users import, with the loader and without device code."""
        files = CoreFiles(identity=self.identity)
        members = tuple(self._members(files, loader))
        points = (hook_entry_points(self.recipe.python.package) or b"").decode()
        return self._draft(core_metadata(self.recipe), platforms, members, entry_points=points)

    def core_libraries(self, loader: Path) -> dict[str, Path]:
        """Return the core's ELF files by their names in it."""
        recipe = self.recipe
        python = {
            str(path): recipe.root / recipe.python.root / path for path in recipe.python.files
        }
        # auditwheel judges all ELF files of a wheel together.
        own = {name: path for name, path in python.items() if is_elf(path)}
        return {**own, CoreFiles(identity=self.identity).library: loader}

    def meta(self) -> WheelDraft:
        """Plan the wheel that requires the core and every plugin."""
        common = project_metadata(self.recipe.project, self.recipe.root)
        # The meta wheel has no files, so it is the same on all platforms.
        return self._draft(meta_metadata(common), ("any",), (), purelib=True)

    def _members(self, files: CoreFiles, loader: Path) -> Iterator[WheelMember]:
        recipe = self.recipe
        root = recipe.root / recipe.python.root
        yield from wheel_members({str(path): root / path for path in recipe.python.files})
        yield from wheel_members({**files.members(), **files.hook_members()})
        yield WheelMember(name=files.library, content=loader, mode=0o755)

    def _draft(
        self,
        metadata: CoreMetadata,
        platforms: tuple[str, ...],
        members: tuple[WheelMember, ...],
        *,
        purelib: bool = False,
        entry_points: str = "",
    ) -> WheelDraft:
        return WheelDraft(
            name=wheel_name(metadata, platforms),
            metadata=metadata,
            members=members,
            licenses=wheel_members(
                {str(path): self.recipe.root / path for path in self.recipe.project.license_files}
            ),
            purelib=purelib,
            entry_points=entry_points,
        )


def wheel_name(metadata: CoreMetadata, platforms: tuple[str, ...]) -> WheelName:
    """Return the name of a wheel for any Python."""
    project = distribution_name(metadata.name)
    return WheelName(project=project, version=metadata.version, platforms=platforms)


def is_elf(path: Path) -> bool:
    """Return True if a file begins with ELF's magic number."""
    return open_file(path).data[: len(ELF_MAGIC)].tobytes() == ELF_MAGIC


def project_metadata(project: Project, root: Path) -> CoreMetadata:
    """Return the metadata of a project's table.

    Args:
        root: the recipe's folder.

    Raises:
        InputError: the readme can't be read any more.
    """
    readme = project.readme
    return CoreMetadata(
        name=project.name,
        version=project.version,
        summary=project.summary,
        description=read_file(root / readme).decode() if readme else "",
        description_content_type=project.readme_type,
        license_expression=project.license,
        license_files=tuple(map(str, project.license_files)),
        authors=tuple(MetadataAuthor(name=one.name, email=one.email) for one in project.authors),
        keywords=project.keywords,
        classifiers=project.classifiers,
        urls=project.urls,
        requires_python=project.requires_python,
        requires=project.dependencies,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaReleases:
    """Releases of one version for several CUDA majors.

    Attributes:
        front: the file name of the front package's wheel.
        releases: the report of each major.
    """

    front: str
    releases: Mapping[int, Release] = field(repr=False)


def _refuse_cuda_folders(out: Path, majors: Iterable[int]) -> None:
    # Folders can't be exchanged at once, so there is none before.
    if existing := [f"cu{major}" for major in majors if (out / f"cu{major}").exists()]:
        raise OutputError(
            f"{out} has {', '.join(existing)} already", hint="choose another folder with --out"
        )


def write_cuda_releases(
    out: Path,
    majors: Collection[int],
    write: Callable[[int, Path], Release],
    *,
    project: str,
    requires_python: str,
    epoch: int,
) -> CudaReleases:
    """Write the releases of all majors into ``cu12``, ``cu13``, and the front package; or nothing.

    Args:
        write: writes the release of a major into a folder.

    Raises:
        OutputError: the folder has the release of a major, or can't be written.
        ArchsplitError: see ``write``.
    """
    with output_dir(out) as target, temporary_dir(target) as staging:
        _refuse_cuda_folders(target, majors)
        releases = {major: write(major, staging / f"cu{major}") for major in sorted(majors)}
        # A policy may have given all releases another version.
        version = next(iter(releases.values())).version
        metadata = CoreMetadata(
            name=project,
            version=version,
            summary=f"{project} for one major version of CUDA, chosen by an extra.",
            # `twine check --strict` refuses a page without a text.
            description=_description(project, sorted(releases)),
            description_content_type="text/markdown",
            requires_python=requires_python,
            extras=dict(_extras(project, version, releases, staging)),
        )
        name = WheelName(project=distribution_name(project), version=version, platforms=("any",))
        draft = WheelDraft(name=name, metadata=metadata, purelib=True)
        front = write_wheel(staging, draft, epoch=epoch).name
        # Two at once have both passed the check before the work: the second is refused here.
        with LockedFolder(target):
            _refuse_cuda_folders(target, releases)
            names = [*(f"cu{major}" for major in releases), front]
            replace_all(names, source=staging, target=target)
    return CudaReleases(front=front, releases=releases)


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
    text = f"This package has no files. It installs {project} for one CUDA version:"
    return f"# {project}\n\n{text}\n\n{lines}\n"


def pack_source(recipe: Recipe, core: CoreMetadata, *, folder: Path, epoch: int) -> Path:
    """Write ``<name>-<version>.tar.gz`` into a folder.

    Args:
        core: the metadata for PKG-INFO.
        epoch: the modification time of all members, in seconds since 1970.

    Raises:
        InputError: a file of the recipe can't be read.
        OutputError: the folder can't be written.
    """
    stem = f"{distribution_name(core.name).replace('-', '_')}-{core.version}"
    path = folder / f"{stem}.tar.gz"
    with (
        atomic_replace(path) as temporary,
        temporary.open("wb") as file,
        # A file name or the time of today in the gzip header would change the bytes.
        gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=epoch) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, content in sorted(_source_members(recipe, core)):
            archive.addfile(_header(f"{stem}/{name}", len(content), epoch), io.BytesIO(content))
    return path


def _source_members(recipe: Recipe, core: CoreMetadata) -> Iterator[tuple[str, bytes]]:
    # The models of recipes take 0.1 s, and a split, which has its plans from here, reads none.
    from archsplit.recipe.pyproject_table import PROJECT_FILE  # noqa: PLC0415 (see above)

    yield "PKG-INFO", metadata.encode_metadata(core)
    for name in {*map(str, recipe.input_files), PROJECT_FILE}:
        yield name, read_file(recipe.root / name)


def _header(name: str, size: int, epoch: int) -> tarfile.TarInfo:
    header = tarfile.TarInfo(name)
    header.size, header.mtime, header.mode = size, epoch, 0o644
    return header
