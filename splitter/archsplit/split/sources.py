"""Split of a library that is in no wheel: it is put into one, in a package of its own.

In: a library, and the metadata and files of its project (`LibraryProject`). Out: the wheels of the
split. The wheel around the library is private, and is not kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from archsplit.errors import InputError, UsageError, WheelError
from archsplit.formats.elf import MACHINE_NAMES, Elf
from archsplit.formats.reader import open_file
from archsplit.release.manifest import SourceFile
from archsplit.release.verify import tag_cache
from archsplit.release.wheel_plans import wheel_name
from archsplit.split.split import split_wheel
from archsplit.system.env import ZIP_EPOCH
from archsplit.system.fs import sha256, temporary_dir
from archsplit.wheels.filename import distribution_name
from archsplit.wheels.metadata import CoreMetadata
from archsplit.wheels.writer import WheelDraft, wheel_members, write_wheel

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from archsplit.release.context import Effects
    from archsplit.release.report import Release
    from archsplit.split.model import SplitRequest


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
        name=wheel_name(project.metadata, _platform_tags(library, effects, folder)),
        metadata=project.metadata,
        generator="archsplit",
        members=wheel_members(members),
        licenses=wheel_members(project.licenses),
    )


def _platform_tags(library: Path, effects: Effects, folder: Path) -> tuple[str, ...]:
    """Return the platform tag of the oldest Linux that the library's symbols allow.

    Its needed libraries are not checked. If no policy allows its symbols, the tag is ``linux_…``,
    which the public index refuses.
    """
    machine = Elf(open_file(library)).header.machine
    if machine not in MACHINE_NAMES:
        raise InputError(f"{library} is for ELF machine {machine}, which has no CUDA")
    try:
        # Only the library's own symbols count: what it needs is installed by other packages.
        return tag_cache(effects, folder).platforms({library.name: library}, provided=("*",))
    except WheelError:
        # The wheel is usable, but not for the public index.
        return (f"linux_{MACHINE_NAMES[machine]}",)
