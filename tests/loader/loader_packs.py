"""Split cores for the loader's tests: packs from an encoder of their own, and a library for them.

The library has two containers. An image's payload is one letter, again and again, so that what a
process has registered is told by a few letters.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
import subprocess
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from loader_stubs import HERE, Stub, Workbench, target_row

from compiled_once import compile_once
from loader_objects import LOADER

if TYPE_CHECKING:
    from pathlib import Path

STUB = "libarchsplit_{:016x}.so"
MAGIC = b"\x89ASPACK\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image: its number in the original container, its target, and its letter."""

    number: int
    target: str
    letter: str
    size: int = 128

    @property
    def content(self) -> bytes:
        return bytes(64) + self.letter.encode() * 64

    def row(self, offset: int) -> bytes:
        head = struct.pack("<II4HQQ", self.number, 0, *target_row(self.target), offset, self.size)
        return head + hashlib.sha256(self.content).digest()


def images(*, contained: str) -> tuple[tuple[Image, ...], tuple[Image, ...]]:
    """The images of both containers for the GPUs of one pack; ``all`` is for what there is."""
    every = (
        Image(number=0, target="sm_80", letter="a"),
        Image(number=1, target="sm_90", letter="h"),
        Image(number=2, target="compute_90", letter="p"),
    )
    kept = tuple(each for each in every if contained in {"all", each.target})
    return kept, tuple(replace(each, letter=each.letter.upper()) for each in kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """A device pack, or the core's table, as plugin.h has it."""

    containers: tuple[tuple[Image, ...], ...]
    places: tuple[tuple[int, int], ...]
    stub: str
    is_table: bool = False
    descriptor: Stub = field(default_factory=lambda: Stub(shape=2))
    driver: int = 0
    whole: tuple[tuple[Image, ...], ...] | None = None
    """All images of the containers that were split, if they differ from `images`."""
    head_size: int = 96
    library_size: int = 24
    container_size: int = 80
    image_size: int = 64

    def encode(self) -> bytes:
        descriptor = self.descriptor.encode()
        tables = self.library_size + len(self.containers) * self.container_size
        tables += sum(map(len, self.containers)) * self.image_size
        texts = b"toy/lib/libtoy.so" + self.stub.encode()
        index_size = tables + len(texts)
        start = (self.head_size + len(descriptor) + index_size + 63) // 64 * 64
        rows, body = self._rows(start)
        library = struct.pack(
            "<6I", tables, 17, tables + 17, len(self.stub), 0, len(self.containers)
        )
        index = library.ljust(self.library_size, b"\xee") + rows + texts
        front = descriptor + index
        rest = struct.pack("<I12x", self.driver).ljust(self.head_size - 80, b"\xdd")
        head = MAGIC + struct.pack(
            "<IIQIIIIHHHH32s",
            self.head_size, len(descriptor), start + len(body), index_size, 1,
            len(self.containers), sum(map(len, self.containers)), self.library_size,
            self.container_size, self.image_size, 0, hashlib.sha256(rest + front).digest(),
        )  # fmt: skip
        return (head + rest + front).ljust(start, b"\0") + body

    def _rows(self, start: int) -> tuple[bytes, bytes]:
        """The rows of containers and images, and the containers themselves."""
        containers, listed, body, first = b"", b"", b"", 0
        every = self.containers if self.is_table else self.whole or images(contained="all")
        for held, whole, place in zip(self.containers, every, self.places, strict=True):
            wrapper, address = place
            key = hashlib.sha256(b"".join(each.row(0) for each in whole)).digest()
            inside = b"".join(each.content for each in held)
            here = 0 if self.is_table or not held else start + len(body)
            size = 16 + len(inside) if here else 0
            row = struct.pack("<4Q4I", here, size, wrapper, address, first, len(held), 0, 0)
            row += key
            containers += row.ljust(self.container_size, b"\xee")
            for order, each in enumerate(held):
                offset = here + 16 + 128 * order if here else 0
                listed += each.row(offset).ljust(self.image_size, b"\xee")[: self.image_size]
            if here:
                body += struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(inside)) + inside
                body = body.ljust((len(body) + 63) // 64 * 64, b"\0")
            first += len(held)
        return containers + listed, body


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitSite:
    """A site-packages folder with a split core, and the packs that were added to it."""

    site: Path
    package: str
    places: tuple[tuple[int, int], ...]
    stub: str

    @property
    def library(self) -> Path:
        return self.site / self.package / "lib" / "libtoy.so"

    @property
    def face(self) -> Path:
        return self.site / self.package / "_archsplit"

    def path(self, name: str) -> Path:
        return self.site / f"{self.package}_plugins" / "cuda" / name / "device.pack"

    def table(self, **changes: object) -> Path:
        held = images(contained="all")
        table = Pack(containers=held, places=self.places, stub=self.stub, is_table=True)
        self.face.mkdir(parents=True, exist_ok=True)
        path = self.face / "core.pack"
        path.write_bytes(replace(table, **changes).encode())  # type: ignore[arg-type] # by name
        return path

    def add(self, name: str, target: str, **changes: object) -> Path:
        """Install a pack with the images of one target, or of ``all``."""
        held = images(contained=target)
        pack = Pack(containers=held, places=self.places, stub=self.stub)
        content = replace(pack, **changes).encode()  # type: ignore[arg-type] # fields by name
        self.path(name).parent.mkdir(parents=True, exist_ok=True)
        self.path(name).write_bytes(content)
        return self.path(name)

    def identity(self) -> dict[str, object]:
        packs = {
            name: {"distribution": f"{self.package}-{name}", "capabilities": []}
            for name in ("cc80", "cc90", "ptx")
        }
        return {
            "schema": 1,
            "package": "vecsort",
            "version": "1.2.3",
            "build_id": "11" * 32,
            "interface_hash": "22" * 32,
            "library": "device.pack",
            "plugins_package": f"{self.package}_plugins",
            "distribution": self.package,
            "targets": {},
            "packs": packs,
            "needs": {"8.0": ["cc80"], "9.0": ["cc90"]},
        }


def split_site(
    workbench: Workbench,
    site: Path,
    package: str = "toy",
    loader: Path | None = None,
    options: tuple[str, ...] = (),
) -> SplitSite:
    """Install a split core; ``loader`` is another library than the one of the sources.

    Args:
        options: of the compiler, for the core's library.
    """
    stub = STUB.format(int(hashlib.sha256(f"{site}{package}".encode()).hexdigest()[:15], 16))
    face, library = site / package / "_archsplit", site / package / "lib" / "libtoy.so"
    for folder in (face, library.parent):
        folder.mkdir(parents=True)
    shared, any_stub = ("-shared", "-fPIC"), STUB.format(0)
    source = str(LOADER / "stub" / "stub.c")
    compile_once(face / stub, *shared, f"-Wl,-soname,{any_stub}", source, "-ldl")
    runpath = ("-Wl,--no-as-needed", "-Wl,-rpath,$ORIGIN/../_archsplit")
    hidden = (*options, "-fvisibility=hidden", str(HERE / "stub_fat.c"))
    compile_once(library, *shared, *hidden, *runpath, str(face / stub))
    places = places_of(library)
    # Its SONAME and its own text; the library's DT_NEEDED.
    for path, count in ((face / stub, 2), (library, 1)):
        content = path.read_bytes()
        assert content.count(any_stub.encode()) == count
        path.write_bytes(content.replace(any_stub.encode(), stub.encode()))
    shutil.copy(loader or workbench.library, face / "libarchsplit_loader.so")
    for file in (LOADER / "archsplit_loader").glob("*.py"):
        shutil.copy(file, face)
    found = SplitSite(site=site, package=package, places=places, stub=stub)
    (face / "core.json").write_text(json.dumps(found.identity()))
    (site / package / "__init__.py").write_text("")
    found.table()
    return found


def places_of(library: Path, wrappers: str = "wrappers") -> tuple[tuple[int, int], ...]:
    """Return the offsets of the wrappers and of the empty containers in the library."""
    digest = hashlib.sha256(library.read_bytes()).digest()
    if (digest, wrappers) not in _PLACES:
        _PLACES[digest, wrappers] = _search_places(library, wrappers)
    return _PLACES[digest, wrappers]


_PLACES: dict[tuple[bytes, str], tuple[tuple[int, int], ...]] = {}
"""Answers of `places_of`, by a library's digest: most of them are equal."""


def _search_places(library: Path, wrappers: str) -> tuple[tuple[int, int], ...]:
    lines = subprocess.run(["nm", library], capture_output=True, text=True, check=True).stdout
    defined = [line.split() for line in lines.splitlines() if not line.startswith(" ")]
    symbols = {name: int(address, 16) for address, _, name in defined}
    return tuple((symbols[wrappers] + 24 * i, symbols["empty"] + 16 * i) for i in range(2))


LETTERS = """
import ctypes, sys
def letters(path, **how):
    library = ctypes.CDLL(path, **how)
    return "".join(chr(library.first_letter(index)) for index in range(2))
"""
"""Python code that reads what a library has registered."""
