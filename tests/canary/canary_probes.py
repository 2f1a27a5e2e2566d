"""Small programs with device code, built by the toolkit at hand, and read without archsplit."""

from __future__ import annotations

import io
import os
import re
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

from elftools.elf.elffile import ELFFile
from elftools.elf.relocation import RelocationSection

PROGRAMS = Path(__file__).with_name("programs")
WRAPPER = struct.Struct("<IIQQ")
CONTAINER = struct.Struct("<IHHQ")
WRAPPER_MAGIC, CONTAINER_MAGIC = 0x466243B1, 0xBA55ED50
RELATIVE = {8, 1027}  # R_X86_64_RELATIVE, R_AARCH64_RELATIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class Workbench:
    """A toolkit, and a folder for what it makes."""

    nvcc: Path
    folder: Path
    environment: dict[str, str]

    def run(self, *command: str | Path, **variables: str) -> str:
        """Run a program in the folder, and return its output."""
        done = subprocess.run(
            [str(word) for word in command],
            cwd=self.folder,
            env={**self.environment, **variables},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def compile(self, *options: str, source: str = "probe.cu") -> str:
        libraries = self.nvcc.parents[1] / "lib"
        search = ("-L", str(libraries)) if libraries.is_dir() else ()
        return self.run(self.nvcc, "-Xcompiler=-fPIC", *options, *search, PROGRAMS / source)

    def link(self, name: str, *options: str | Path, source: str = "stub.c") -> None:
        self.run("gcc", "-O1", "-fPIC", PROGRAMS / source, "-o", name, *options)

    def opener(self) -> Path:
        path = self.folder / "opener"
        if not path.exists():
            self.link("opener", "-ldl", source="opener.c")
        return path

    def opened(self, *libraries: str) -> str:
        """Open libraries one after the other, and return what that printed."""
        return self.run(self.opener(), *(self.folder / name for name in libraries))

    def image(self, *libraries: Path, **variables: str) -> int:
        """Return what the kernel of the last library says; a CUDA error is negative."""
        said = self.run(self.opener(), *libraries, CANARY_CALL="1", **variables)
        (found,) = re.findall(r"^image (-?\d+)$", said, re.MULTILINE)
        return int(found)


def section(library: Path, name: str) -> tuple[int, int, bytes]:
    """Return address, offset in the file, and content of a section."""
    found = ELFFile(io.BytesIO(library.read_bytes())).get_section_by_name(name)
    assert found is not None, f"{library.name} has no {name}"
    return found["sh_addr"], found["sh_offset"], found.data()


def wrappers(library: Path) -> list[tuple[int, int, int]]:
    """Return address, version, and address of the container of each wrapper of a library."""
    address, _, content = section(library, ".nvFatBinSegment")
    assert len(content) % WRAPPER.size == 0
    relocations = ELFFile(io.BytesIO(library.read_bytes())).get_section_by_name(".rela.dyn")
    assert isinstance(relocations, RelocationSection)
    addends = {
        row["r_offset"]: row["r_addend"]
        for row in relocations.iter_relocations()
        if row["r_info_type"] in RELATIVE
    }
    found = []
    for at in range(0, len(content), WRAPPER.size):
        magic, version, _, _ = WRAPPER.unpack_from(content, at)
        assert magic == WRAPPER_MAGIC
        found.append((address + at, version, addends[address + at + 8]))
    return found


def containers(content: bytes) -> list[tuple[int, int]]:
    """Return offset and size of the entries of each container of a section, without gaps."""
    found, at = [], 0
    while at < len(content):
        magic, version, header, size = CONTAINER.unpack_from(content, at)
        assert (magic, version, header) == (CONTAINER_MAGIC, 1, CONTAINER.size), hex(at)
        found.append((at, size))
        at += header + size
        at += -at % 8
    return found


def emptied(library: Path, name: str, *sections: str) -> Path:
    """Return a copy in which the containers of some sections have no entries."""
    data = bytearray(library.read_bytes())
    for each in sections or (".nv_fatbin",):
        _, offset, content = section(library, each)
        for at, size in containers(content):
            struct.pack_into("<Q", data, offset + at + 8, 0)
            first = offset + at + CONTAINER.size
            data[first : first + size] = bytes(size)
    path = library.with_name(name)
    path.write_bytes(data)
    return path


def clean_environment() -> dict[str, str]:
    """Return this process's own variables, without what belongs to a wrapper or to make."""
    dropped = ("ARCHSPLIT_", "NVCC_", "MAKE")
    return {name: text for name, text in os.environ.items() if not name.startswith(dropped)}
