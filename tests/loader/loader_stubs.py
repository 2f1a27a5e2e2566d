"""Stub plugins and cores for the loader's tests: real ELF files, no device code."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from archsplit.release.identity import Identity, library_table
from loader_objects import LOADER

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
LIBRARY = "libvecsort.so"
SIZE = 512  # of the descriptor in stub_plugin.c
STRICT = ("-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror")
SANITIZERS = ("-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
NO_NVML = "/nonexistent"

_KINDS = {"sm": 1, "compute": 2}
_PLACEHOLDER = b"\xa5" * SIZE


def compile_c(output: Path, *arguments: str, compiler: str = "gcc") -> Path:
    command = [compiler, f"-I{LOADER / 'include'}", "-o", str(output), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return output


def target_row(name: str) -> tuple[int, int, int, int]:
    kind, _, number = name.partition("_")
    digits = number.rstrip("af")
    suffix = ord(number[len(digits) :] or "\0")
    return _KINDS[kind], int(digits[:-1]), int(digits[-1]), suffix


@dataclass(frozen=True, slots=True, kw_only=True)
class Stub:
    """The descriptor of a stub plugin, with an encoder of its own as a second implementation."""

    package: bytes = b"vecsort"
    version: bytes = b"1.2.3"
    build_id: bytes = b"\x11" * 32
    interface_hash: bytes = b"\x22" * 32
    targets: tuple[str, ...] = ("sm_90",)
    cuda_version: int = 13000
    shape: int = 1
    contract: tuple[int, int] = (1, 0)
    fixed_size: int = 112
    target_size: int = 8
    changes: dict[int, bytes] = field(default_factory=dict)
    """Offset → bytes that are written over the finished descriptor."""

    def encode(self) -> bytes:
        row = struct.Struct("<4H")
        rows = b"".join(
            row.pack(*target_row(name)).ljust(self.target_size, b"\xee") for name in self.targets
        )
        at = self.fixed_size
        package_at, version_at = at + len(rows), at + len(rows) + len(self.package)
        fixed = struct.pack(
            "<IIHHIIIIIIIHHI32s32s",
            self.fixed_size, SIZE, *self.contract, self.shape, self.cuda_version,
            package_at, len(self.package), version_at, len(self.version),
            at, self.target_size, len(self.targets), 0, self.build_id, self.interface_hash,
        )  # fmt: skip
        content = bytearray(fixed.ljust(at, b"\xdd") + rows + self.package + self.version)
        content = content.ljust(SIZE, b"\0")
        for offset, change in self.changes.items():
            content[offset : offset + len(change)] = change
        return bytes(content)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workbench:
    """The programs and libraries that the tests compile once."""

    folder: Path
    template: bytes
    library: Path

    def stub(self, path: Path, stub: Stub | None = None) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        content = (stub or Stub()).encode()
        path.write_bytes(self.template.replace(_PLACEHOLDER, content))
        return path

    def plugin(self, site: Path, target: str, stub: Stub | None = None) -> Path:
        """Install a stub as a plugin wheel would."""
        path = site / "vecsort_plugins" / "cuda" / target / LIBRARY
        return self.stub(path, stub or Stub(targets=(target,)))

    def core(self, site: Path, **changes: object) -> Path:
        """Install a core as its wheel would: the face, the library, who it is."""
        face = site / "vecsort" / "_archsplit"
        face.mkdir(parents=True)
        for file in (LOADER / "archsplit_loader").glob("*.py"):
            shutil.copy(file, face)
        shutil.copy(self.library, face)
        targets = ("sm_80", "sm_90", "compute_120")
        identity = {
            "schema": 1,
            "package": "vecsort",
            "version": "1.2.3",
            "build_id": "11" * 32,
            "interface_hash": "22" * 32,
            "library": LIBRARY,
            "plugins_package": "vecsort_plugins",
            "distribution": "vecsort",
            "targets": {target: f"vecsort-{target.replace('_', '')}" for target in targets},
        }
        (face / "core.json").write_text(json.dumps(identity | changes))
        write_table(face)
        init = "from ._archsplit import *\nfrom ._archsplit import explain, load\n"
        (site / "vecsort" / "__init__.py").write_text(init)
        shim = "import sys\nfrom ._archsplit.doctor import main\nsys.exit(main())\n"
        (site / "vecsort" / "doctor.py").write_text(shim)
        return face

    def environment(self, gpus: str | None, **more: str) -> dict[str, str]:
        """An environment with the stand-in NVML and these GPUs, or with none to be found."""
        place = NO_NVML if gpus is None else str(self.folder)
        return {"LD_LIBRARY_PATH": place, "STAND_IN_GPUS": gpus or "", **more}

    def python(
        self, site: Path, code: str, *, gpus: str | None = None, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run code in a child process that imports from ``site``."""
        return run(
            [sys.executable, "-c", code],
            {"PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"}
            | self.environment(gpus, **environment),
        )

    def probe(
        self, *arguments: object, gpus: str | None = None, program: str = "probe", **more: str
    ) -> subprocess.CompletedProcess[str]:
        """Run the sanitized C program; a sanitizer's complaint fails the test."""
        command = [str(self.folder / program), *map(str, arguments)]
        done = run(command, self.environment(gpus, **more))
        assert "Sanitizer" not in done.stderr, done.stderr
        assert "runtime error" not in done.stderr, done.stderr
        return done


def write_table(face: Path, **digests: str) -> None:
    """Write the core's table again, by ``core.json`` and the digests of plugins' libraries."""
    content = json.loads((face / "core.json").read_text())
    content.pop("schema")
    (face / "core.pack").write_bytes(library_table(Identity(**content | {"digests": digests})))


def run(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        timeout=120,
        stdin=subprocess.DEVNULL,
    )


def interpreter(version: str) -> str:
    """A Python of this version, wherever it is."""
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    known = sorted(Path.home().glob(f".pyenv/versions/{version.rstrip('t')}*/bin/python{version}"))
    found = str(known[-1]) if known else shutil.which(f"python{version}")
    # A shim may be there for a version that is not.
    if found is None or subprocess.run([found, "-c", ""], check=False).returncode != 0:
        pytest.skip(f"Python {version} is not installed here")
    return found


@contextlib.contextmanager
def visible_folder() -> Iterator[Path]:
    """A folder that other users may look into; pytest's own are closed whenever a pytest starts."""
    with tempfile.TemporaryDirectory(prefix="archsplit-") as folder:
        path = Path(folder).resolve()
        path.chmod(0o755)
        yield path
