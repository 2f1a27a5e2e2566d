"""Split one library that is in no wheel: the core's wheel has it, in a package of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from splitter.binfmt.elf import Elf
from splitter.binfmt.elf_header import Machine
from splitter.binfmt.mapped import open_file
from splitter.errors import InputError, UsageError
from splitter.splitting.archive import write_members
from splitter.splitting.wheel import split_wheel
from splitter.system.files import private_folder, writing
from splitter.wheels.info import WheelInfo
from splitter.wheels.metadata import CoreMetadata, encode
from splitter.wheels.names import WheelName, distribution_name
from splitter.wheels.packing import packed, packed_file

if TYPE_CHECKING:
    from pathlib import Path

    from splitter.splitting.request import SplitReport, SplitRequest
    from splitter.workshop import Workshop

_MACHINES = {Machine.X86_64: "linux_x86_64", Machine.AARCH64: "linux_aarch64"}


def split_library(request: SplitRequest, workshop: Workshop, *, version: str) -> SplitReport:
    """Split a library as if it had come in a wheel, as ``<name>/lib/<file>``.

    Raises:
        UsageError: the request has no name.
        InputError: the library can't be read, or is for no processor that has CUDA.
        ArchsplitError: see `split_wheel`.
    """
    if request.name is None:
        raise UsageError(f"{request.source} has no name as a project", hint="add --name")
    with private_folder() as folder:
        wheel = _wheel(request.source, request.name, version, folder)
        report = split_wheel(replace(request, source=wheel), workshop)
    return replace(report, source=request.source.name)


def _wheel(library: Path, name: str, version: str, folder: Path) -> Path:
    """A wheel with nothing but the library in it."""
    machine = Elf(open_file(library)).header.machine
    if machine not in _MACHINES:
        raise InputError(f"{library} is for ELF machine {machine}, which has no CUDA")
    project = distribution_name(name)
    wheel = WheelName(project=project, version=version, platforms=(_MACHINES[Machine(machine)],))
    package = project.replace("-", "_")
    members = {
        f"{package}/__init__.py": packed(f'"""Has {library.name} in lib."""\n'.encode()),
        f"{package}/lib/{library.name}": packed_file(library),
        f"{wheel.dist_info}/METADATA": packed(encode(CoreMetadata(name=project, version=version))),
        f"{wheel.dist_info}/WHEEL": packed(
            WheelInfo(generator="archsplit", tags=wheel.tags).encode()
        ),
    }
    path = folder / str(wheel)
    with writing(path), path.open("wb") as file:
        write_members(file, wheel, members)
    return path
