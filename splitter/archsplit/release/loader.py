"""The loader and the stub: compiled for archsplit's own wheel, copied into core wheels.

Builds and splits copy two small libraries, which are data of archsplit's wheel, for a machine. So
they need no C compiler, and every computer puts the same bytes into its cores. ``SHA256SUMS``
beside them has their digests and the sources' digests; ``sha256sum -c`` reads it too.

``tools/build_loader.py`` compiles them.
"""

from __future__ import annotations

import hashlib
from importlib import resources
from typing import TYPE_CHECKING

from archsplit.errors import ToolFailedError
from archsplit.release.identity import LOADER_LIBRARY
from archsplit.system.fs import output_errors

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable
    from pathlib import Path

    from archsplit.formats.elf import ElfMachine

ZIG = "0.15.2"
"""Version of ziglang that compiled the libraries; another one may write other bytes."""

STUB_LIBRARY = "libarchsplit_0000000000000000.so"
"""Name of the stub before its copies are renamed; all names have the same length."""

DIGESTS = "SHA256SUMS"


def prebuilt() -> Traversable:
    """Return the folder of the compiled libraries."""
    return resources.files("archsplit_loader") / "prebuilt"


def copy_loader(*, folder: Path, machine: ElfMachine = "x86_64") -> Path:
    """Copy the loader for a machine into a folder.

    Raises:
        ToolFailedError: the installed file is missing or not the one that was compiled.
        OutputError: the folder can't be written.
    """
    return _copy(LOADER_LIBRARY, folder, machine)


def copy_loader_and_stub(*, folder: Path, machine: ElfMachine = "x86_64") -> tuple[Path, Path]:
    """Copy the loader and the stub; see `copy_loader`."""
    return copy_loader(folder=folder, machine=machine), _copy(STUB_LIBRARY, folder, machine)


def read_digests(text: str) -> dict[str, str]:
    """Return the digests of ``SHA256SUMS`` by the paths of their files."""
    lines = (line.split("  ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: digest for digest, name in lines}


def _copy(library: str, folder: Path, machine: ElfMachine) -> Path:
    name = f"{machine}/{library}"
    try:
        expected = read_digests((prebuilt() / DIGESTS).read_text())[name]
        content = (prebuilt() / machine / library).read_bytes()
    except (OSError, KeyError, ValueError) as error:
        raise _damaged(name, f"can't be read ({error})") from None
    # What is copied here runs in every process that imports the core: a file that was changed
    # after the installation must not get there.
    if hashlib.sha256(content).hexdigest() != expected:
        raise _damaged(name, f"is not the file that {DIGESTS} names")
    copy = folder / library
    with output_errors(copy):
        copy.write_bytes(content)
    return copy


def _damaged(name: str, fault: str) -> ToolFailedError:
    return ToolFailedError(
        f"the compiled loader of archsplit is damaged: {name} {fault}",
        hint="pip install --force-reinstall --no-deps archsplit",
    )
