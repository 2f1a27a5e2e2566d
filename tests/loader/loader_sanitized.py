"""The loader under one compiler's sanitizers, and programs that are linked with it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from loader_stubs import HERE, SANITIZERS, STRICT, compile_c

from loader_objects import loader_objects

if TYPE_CHECKING:
    from pathlib import Path

KINDS = {"address": SANITIZERS, "thread": ("-g", "-O1", "-fsanitize=thread")}
END = ("-ldl", "-lpthread")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sanitized:
    """The loader as a library with one compiler's sanitizers, and what is linked with it."""

    folder: Path
    compiler: str
    flags: tuple[str, ...]

    @property
    def loader(self) -> Path:
        return self.folder / "loader.so"

    def program(self, name: str) -> Path:
        """Return the path of a compiled C program of this folder."""
        path = self.folder / name
        if not path.exists():
            source = str(HERE / f"{name}.c")
            compile_c(
                path, *STRICT, *self.flags, source, str(self.loader), *END, compiler=self.compiler
            )
        return path


def sanitized(kind: str, compiler: str, folder: Path, places: tuple[str, ...] = ()) -> Sanitized:
    """Compile the loader; ``places`` are macros that say where it looks for the driver."""
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    found = Sanitized(folder=folder, compiler=compiler, flags=KINDS[kind])
    objects = loader_objects(*STRICT, *found.flags, *places, compiler=compiler)
    compile_c(found.loader, "-shared", *found.flags, *objects, *END, compiler=compiler)
    return found
