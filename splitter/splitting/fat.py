"""Find the libraries of a wheel that can be split, and take them apart."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from splitter.binfmt.elf import Elf
from splitter.binfmt.elf_header import FileType, Machine
from splitter.binfmt.mapped import open_file
from splitter.devicecode.read import HEAD_SIZE, Form, form_of
from splitter.errors import InputError, WheelError
from splitter.splitting.library import can_be_split, taken_apart
from splitter.splitting.stubs import stub_name
from splitter.wheels.record import Entry
from splitter.wheels.unpacked import head_of
from splitter.wheels.unpacking import unpack

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from splitter.splitting.library import Parts
    from splitter.splitting.stubs import Patcher
    from splitter.stages.loader import ElfMachine
    from splitter.wheels.reader import Wheel

_BLOCK = 1 << 20
_MACHINES: dict[int, ElfMachine] = {Machine.X86_64: "x86_64", Machine.AARCH64: "aarch64"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fat:
    """A library with device code that can move: its place in the wheel, and as a file."""

    name: str
    path: Path
    machine: ElfMachine
    containers: int = field(default=0)


def fat_libraries(wheel: Wheel, folder: Path) -> tuple[Fat, ...]:
    """Read all members to their end, which checks RECORD; unpack what can be split.

    Raises:
        WheelError: a member is damaged, or not what RECORD promises.
        BinaryFormatError: a library is damaged.
        InputError: there is nothing to split.
    """
    found = tuple(_found(wheel, folder))
    if not found:
        raise InputError(
            f"{wheel.path} has no library with device code that can be moved",
            hint="`archsplit inspect` says what device code there is, and where",
        )
    if len({one.machine for one in found}) > 1:
        raise WheelError(f"{wheel.path} has libraries for several processors")
    return found


def apart(
    libraries: tuple[Fat, ...], *, build_id: str, face: str, patcher: Patcher
) -> tuple[Parts, ...]:
    """Take libraries apart, in their order; raises as `taken_apart` and `Patcher.patched` do."""
    parts = []
    for fat in libraries:
        stub = stub_name(build_id, fat.name)
        patched = fat.path.with_suffix(".patched")
        folder = posixpath.relpath(face, posixpath.dirname(fat.name))
        patcher.patched(fat.path, patched, stub=stub, folder=folder)
        parts.append(taken_apart(fat.name, stub, fat.path, patched))
    return tuple(parts)


def _found(wheel: Wheel, folder: Path) -> Iterator[Fat]:
    data = f"{wheel.dist_info.removesuffix('.dist-info')}.data/"
    for number, name in enumerate(wheel.names):
        path = folder / f"{number}.fat"
        entry = wheel.record.get(name, Entry(path=name))
        head = head_of(wheel.archive, wheel.archive.members[name], HEAD_SIZE)
        # Where the files of .data go is up to the installer.
        if form_of(head) is Form.ELF and not name.startswith(data):
            unpack(wheel.archive, entry, path)
            elf = Elf(open_file(path))
            if _is_library(elf) and (places := can_be_split(path)):
                machine = _MACHINES[elf.header.machine]
                yield Fat(name=name, path=path, machine=machine, containers=len(places))
            else:
                path.unlink()
            continue
        with wheel.archive.open(entry) as stream:
            while stream.read(_BLOCK):
                pass


def _is_library(elf: Elf) -> bool:
    known = elf.header.type == FileType.LIBRARY and elf.header.machine in _MACHINES
    return known and elf.section_count > 0
