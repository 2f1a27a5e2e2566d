"""Split one library that is in no wheel: the core's wheel has it, in a package of its own."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from archsplit.errors import InputError, UsageError, WheelError
from archsplit.formats.elf import Elf
from archsplit.formats.elf_header import MACHINE_NAMES
from archsplit.formats.mapped import open_file
from archsplit.release.manifest import SourceFile
from archsplit.split.split import split_wheel
from archsplit.system.env import clean_environment
from archsplit.system.epoch import ZIP_EPOCH
from archsplit.system.fs import output_errors, sha256, temporary_dir
from archsplit.wheels.archive import write_members
from archsplit.wheels.filename import WheelName, distribution_name
from archsplit.wheels.info import WheelInfo
from archsplit.wheels.metadata import CoreMetadata, encode_metadata
from archsplit.wheels.repair import platform_tags
from archsplit.wheels.zip_writer import packed, packed_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from archsplit.release.context import Effects
    from archsplit.release.request import SplitRequest
    from archsplit.release.split_report import SplitReport


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryProject:
    """The project that a library belongs to, where no wheel says so.

    Attributes:
        package: the import package that gets the library, in ``lib``.
        files: what else the core has, by its place in it.
        licenses: by their names below ``licenses/``.
    """

    metadata: CoreMetadata
    package: str
    files: Mapping[str, Path] = field(default_factory=dict)
    licenses: Mapping[str, Path] = field(default_factory=dict)


def named_project(name: str | None, version: str) -> LibraryProject:
    """A project of which nothing but its name is known.

    Raises:
        UsageError: not even that.
    """
    if name is None:
        raise UsageError("a library has no name as a project", hint="add --name")
    project = distribution_name(name)
    metadata = CoreMetadata(
        name=project,
        version=version,
        # An index's page without a text is what `twine check --strict` refuses.
        description=f"Libraries of {project}, split by archsplit.\n",
        description_content_type="text/plain",
    )
    return LibraryProject(metadata=metadata, package=project.replace("-", "_"))


def split_library(request: SplitRequest, workshop: Effects, owner: LibraryProject) -> SplitReport:
    """Split a library as if it had come in a wheel, as ``<package>/lib/<file>``.

    Raises:
        InputError: the library can't be read, or is for no processor that has CUDA.
        ArchsplitError: see `split_wheel`.
    """
    with temporary_dir() as folder:
        wheel = _wheel(request.source, owner, workshop, folder)
        origin = SourceFile(path=request.source.name, sha256=sha256(request.source))
        # No fat wheel of that name is anywhere, so none can be taken for the core.
        request = replace(request, source=wheel, name=None, release=True)
        return split_wheel(request, workshop, origin=origin)


def _wheel(library: Path, owner: LibraryProject, workshop: Effects, folder: Path) -> Path:
    """A wheel with nothing but the library and the owner's files in it."""
    name = WheelName(
        project=distribution_name(owner.metadata.name),
        version=owner.metadata.version,
        platforms=_platforms(library, workshop, folder),
    )
    text = f'"""Has {library.name} in lib."""\n'.encode()
    members = {
        f"{owner.package}/__init__.py": packed(text),
        **{place: packed_file(path) for place, path in owner.files.items()},
        f"{owner.package}/lib/{library.name}": packed_file(library),
        f"{name.dist_info}/METADATA": packed(encode_metadata(owner.metadata)),
        f"{name.dist_info}/WHEEL": packed(
            WheelInfo(generator="archsplit", tags=name.tags).encode()
        ),
        **{
            f"{name.dist_info}/licenses/{each}": packed_file(path)
            for each, path in owner.licenses.items()
        },
    }
    path = folder / str(name)
    with output_errors(path), path.open("wb") as file:
        write_members(file, name, members)
    return path


def _platforms(library: Path, workshop: Effects, folder: Path) -> tuple[str, ...]:
    """The oldest Linux that the library's own symbols allow.

    What else it needs is whoever built it to say; where no policy has its symbols, it is tagged for
    machines like this one, which the public index refuses.
    """
    machine = Elf(open_file(library)).header.machine
    if machine not in MACHINE_NAMES:
        raise InputError(f"{library} is for ELF machine {machine}, which has no CUDA")
    environment = clean_environment(workshop.environment, temporary=folder, epoch=ZIP_EPOCH)
    environment["PYTHONPATH"] = workshop.python_path
    try:
        return platform_tags(
            {library.name: library},
            runner=workshop.runner,
            environment=environment,
            provided=("*",),
        ).names
    except WheelError:
        return (f"linux_{MACHINE_NAMES[machine]}",)
