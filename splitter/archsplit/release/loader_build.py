"""Compilation of the loader and the stub for core wheels, with ziglang's compiler.

In: the C sources in ``archsplit_loader`` and a machine. Out: shared libraries, the same bytes on
every computer. The compiler has the symbol lists of all glibc versions: the libraries need no more
than glibc 2.17 (CentOS 7, manylinux2014). Each library is read back and compared with the public
header.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.errors import ToolFailedError, ToolNotFoundError
from archsplit.formats.elf import MACHINE_NAMES, Elf, ElfMachine, FileType
from archsplit.formats.elf_dynamic import Dynamic
from archsplit.formats.reader import open_file
from archsplit.release.identity import LOADER_LIBRARY
from archsplit.system.fs import output_errors, temporary_dir
from archsplit.system.process import Command, run_checked

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from importlib.resources.abc import Traversable

    from archsplit.system.process import Runner

GLIBC = "2.17"

STUB_LIBRARY = "libarchsplit_0000000000000000.so"
"""The name of the stub before its copies are renamed; all names have the same length."""

_COMPILE = ("-std=c11", "-Os", "-g0", "-Wall", "-Wextra", "-Wpedantic", "-Werror")
_HIDE = ("-fPIC", "-fvisibility=hidden", "-fstack-protector-strong")
_BRANCHES: Mapping[ElfMachine, str] = {
    "x86_64": "-fcf-protection=full",
    "aarch64": "-mbranch-protection=standard",
}
_LINK = ("-shared", "-s", "-rtlib=none", "-Wl,-z,relro,-z,now,-z,defs,--build-id=sha1", "-ldl")
"""Linker options; the compiler's runtime is left out.

Building the runtime takes longer than all else, and the libraries need nothing of it: otherwise the
link fails.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedLibrary:
    """The facts of a shared library that a loader is checked for."""

    type: int
    machine: int
    soname: str | None
    exports: frozenset[str]


def build_loader(*, folder: Path, runner: Runner, machine: ElfMachine = "x86_64") -> Path:
    """Compile the loader in ``folder``; its bytes do not depend on the folder.

    Args:
        machine: the machine to compile for.

    Raises:
        ToolNotFoundError: the ziglang wheel is not installed.
        ToolFailedError: the compiler failed, or the library is not the expected one.
        OutputError: the folder can't be written.
    """
    with temporary_dir(folder) as private:
        return _build(folder / LOADER_LIBRARY, "src", runner, machine, private)


def build_loader_and_stub(
    *, folder: Path, runner: Runner, machine: ElfMachine = "x86_64"
) -> tuple[Path, Path]:
    """Compile the loader and the stub; see `build_loader`."""
    with temporary_dir(folder) as private:
        loader = _build(folder / LOADER_LIBRARY, "src", runner, machine, private)
        return loader, _build(folder / STUB_LIBRARY, "stub", runner, machine, private)


def _build(library: Path, part: str, runner: Runner, machine: ElfMachine, private: Path) -> Path:
    """Compile the loader or the stub; both share the compiler's cache in ``private``."""
    sources = _copy_sources(private, part)
    command = _command(machine, sources, library.name, private)
    run_checked(runner, command, what="compiling the plugin loader")
    built = private / library.name
    declared = _declared(private) if part == "src" else frozenset()
    _check_result(observe(built), machine, library.name, declared)
    with output_errors(library):
        built.replace(library)
    return library


def observe(library: Path) -> ObservedLibrary:
    """Read the type, machine, SONAME and exports of a shared library.

    Raises:
        BinaryFormatError: the file is no ELF file, or is damaged.
    """
    elf = Elf(open_file(library))
    dynamic = Dynamic(elf)
    return ObservedLibrary(
        type=elf.header.type,
        machine=elf.header.machine,
        soname=dynamic.soname,
        exports=frozenset(symbol.name for symbol in dynamic.exported_symbols()),
    )


def _copy_sources(private: Path, sources: str) -> tuple[str, ...]:
    """Copy the sources to the private folder; return their relative paths.

    With relative paths no path of this machine gets into the library.
    """
    root = resources.files("archsplit_loader")
    for part in ("include", sources):
        with output_errors(private / part):
            (private / part).mkdir(exist_ok=True)
            for file in _files(root / part):
                (private / part / file.name).write_bytes(file.read_bytes())
    return tuple(sorted(f"{sources}/{path.name}" for path in (private / sources).glob("*.c")))


def _files(folder: Traversable) -> Iterator[Traversable]:
    return (file for file in folder.iterdir() if file.name.endswith((".c", ".h")))


def _command(machine: ElfMachine, sources: tuple[str, ...], library: str, private: Path) -> Command:
    target = ("-target", f"{machine}-linux-gnu.{GLIBC}")
    return Command(
        argv=(
            str(_zig()),
            "cc",
            *target,
            *_COMPILE,
            *_HIDE,
            _BRANCHES[machine],
            *sources,
            *_LINK,
            f"-Wl,-soname,{library}",
            "-o",
            library,
        ),
        cwd=private,
        env={
            "HOME": str(private),
            "ZIG_GLOBAL_CACHE_DIR": str(private / "zig"),
            "ZIG_LOCAL_CACHE_DIR": str(private / "zig"),
        },
        timeout=600,
    )


def _zig() -> Path:
    found = importlib.util.find_spec("ziglang")
    if found is None or found.origin is None:
        raise ToolNotFoundError(
            "the ziglang package with the compiler for the plugin loader is not installed",
            hint="pip install ziglang==0.15.2",
        )
    return Path(found.origin).with_name("zig")


def _declared(private: Path) -> frozenset[str]:
    """Return the names of the functions in the public header."""
    words = (private / "include" / "plugin_loader.h").read_text().split("ARCHSPLIT_API ")[1:]
    heads = (word.partition("(")[0].split()[-1].lstrip("*") for word in words)
    return frozenset(head for head in heads if head.startswith("archsplit_"))


def _check_result(
    found: ObservedLibrary, machine: ElfMachine, library: str, declared: frozenset[str]
) -> None:
    facts = (
        ("ELF type", found.type, FileType.LIBRARY.value),
        ("ELF machine", MACHINE_NAMES.get(found.machine, found.machine), machine),
        ("SONAME", found.soname, library),
        ("exports", " ".join(sorted(found.exports)), " ".join(sorted(declared))),
    )
    faults = [
        f"{what}: found {is_}, expected {should}" for what, is_, should in facts if is_ != should
    ]
    if faults:
        raise ToolFailedError("\n".join(("the compiled plugin loader is wrong:", *faults)))
