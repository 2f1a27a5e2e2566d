"""Compile the loader and the stub that archsplit's own wheel has as data.

``python tools/build_loader.py`` compiles them from the C sources in ``archsplit_loader``, for
x86-64 and aarch64, with the same bytes on every computer; ``--check`` compares the bytes instead.
ziglang's compiler (``archsplit[loader]``) has the symbol lists of all glibc versions, and the
libraries need no more than glibc 2.17 (CentOS 7, manylinux2014). Each library is read back and
compared with the public header.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.errors import ArchsplitError, ToolFailedError, ToolNotFoundError
from archsplit.formats.elf import MACHINE_NAMES, Elf, ElfMachine, FileType
from archsplit.formats.elf_dynamic import Dynamic
from archsplit.formats.reader import open_file
from archsplit.release.identity import LOADER_LIBRARY
from archsplit.release.loader import DIGESTS, STUB_LIBRARY, ZIG, prebuilt, read_digests
from archsplit.system.fs import output_errors, sha256, temporary_dir
from archsplit.system.process import Command, SubprocessRunner, run_checked

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from archsplit.system.process import Runner

GLIBC = "2.17"
SOURCES = ("include/archsplit", "src", "stub")
"""Folders of the sources, below the folder of ``prebuilt``."""

_COMPILE = ("-std=c11", "-Os", "-g0", "-Wall", "-Wextra", "-Wpedantic", "-Werror")
_HIDE = ("-fPIC", "-fvisibility=hidden", "-fstack-protector-strong")
# Both are hints to the processor that older ones execute as no operation: the libraries run on all.
_BRANCHES: Mapping[ElfMachine, str] = {
    "x86_64": "-fcf-protection=full",
    "aarch64": "-mbranch-protection=standard",
}
_LINK = ("-shared", "-s", "-rtlib=none", "-Wl,-z,relro,-z,now,-z,defs,--build-id=sha1", "-ldl")
"""Linker options; the compiler's runtime is left out.

Building the runtime takes longer than all else, and the libraries need nothing of it: otherwise the
link fails.
"""

_HEAD = """\
# Written by `nox -s loader` from the sources below; `sha256sum -c {digests}` checks all of it.
# ziglang {zig}: zig cc -target MACHINE-linux-gnu.{glibc} {options}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedLibrary:
    """Facts of a shared library that a loader is checked for."""

    type: int
    machine: int
    soname: str | None
    exports: frozenset[str]


def build_loader_and_stub(
    *, folder: Path, runner: Runner, machine: ElfMachine = "x86_64"
) -> tuple[Path, Path]:
    """Compile the loader and the stub in ``folder``; their bytes do not depend on the folder.

    Args:
        machine: the machine to compile for.

    Raises:
        ToolNotFoundError: the ziglang wheel is not installed.
        ToolFailedError: the compiler failed, or a library is not the expected one.
        OutputError: the folder can't be written.
    """
    with temporary_dir(folder) as private:
        loader = _build(folder / LOADER_LIBRARY, "src", runner, machine, private)
        return loader, _build(folder / STUB_LIBRARY, "stub", runner, machine, private)


def stale_files(folder: Path) -> tuple[str, ...]:
    """Return the files of a folder of compiled libraries that ``SHA256SUMS`` doesn't describe.

    Nothing is compiled: the sources are compared with the digests of those that were compiled.

    Args:
        folder: has ``SHA256SUMS``, with the sources in folders beside it.
    """
    text = (folder / DIGESTS).read_text() if (folder / DIGESTS).exists() else ""
    recorded, found = read_digests(text), _digests(folder)
    names = {name for name in {*recorded, *found} if recorded.get(name) != found.get(name)}
    # Other options are another library, although no source has changed.
    return tuple(sorted({*names, *(() if text.startswith(_head()) else (DIGESTS,))}))


def write_prebuilt(folder: Path, runner: Runner) -> None:
    """Compile all libraries into a folder, and write their digests; see `build_loader_and_stub`."""
    for machine in _BRANCHES:
        _build_machine(folder, runner, machine)
    # Sorted, with one file a line: then a merge of two changes conflicts only where both changed.
    lines = (f"{digest}  {name}\n" for name, digest in sorted(_digests(folder).items()))
    with output_errors(folder / DIGESTS):
        (folder / DIGESTS).write_text(_head() + "".join(lines))


def run_loader_build(arguments: Sequence[str] | None = None) -> int:
    """Write the compiled libraries, or compare them with what the sources make."""
    parser = argparse.ArgumentParser(prog="python tools/build_loader.py")
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit with 1 if a library differs"
    )
    options = parser.parse_args(arguments)
    folder = Path(str(prebuilt()))
    try:
        if not options.check:
            write_prebuilt(folder, SubprocessRunner())
            return 0
        differing = _differing(folder)
    except ArchsplitError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    for name in differing:
        sys.stderr.write(f"{name} is not what the sources make; run `nox -s loader`\n")
    return int(bool(differing))


def _differing(folder: Path) -> list[str]:
    """Compile all libraries again, and return the names of those with other bytes."""
    # The new folder has no sources beside it, so only the compiled files are compared.
    with temporary_dir() as private:
        again = private / folder.name
        again.mkdir()
        for machine in _BRANCHES:
            _build_machine(again, SubprocessRunner(), machine)
        recorded = read_digests((folder / DIGESTS).read_text())
        made = _digests(again, sources=())
        other = (name for name in made if made[name] != recorded.get(name))
        return sorted({*stale_files(folder), *other})


def _build_machine(folder: Path, runner: Runner, machine: ElfMachine) -> None:
    with output_errors(folder / machine):
        (folder / machine).mkdir(exist_ok=True)
    build_loader_and_stub(folder=folder / machine, runner=runner, machine=machine)


def _head() -> str:
    options = " ".join((*_COMPILE, *_HIDE, *_BRANCHES.values(), *_LINK))
    return _HEAD.format(digests=DIGESTS, zig=ZIG, glibc=GLIBC, options=options)


def _digests(folder: Path, sources: Iterable[str] = SOURCES) -> dict[str, str]:
    """Return the digests of the compiled libraries and of their sources, by relative path."""
    files = {
        f"{machine}/{path.name}": path
        for machine in _BRANCHES
        for path in (folder / machine).glob("*.so")
    }
    for part in sources:
        files |= {f"../{part}/{path.name}": path for path in _sources(folder.parent / part)}
    return {name: sha256(path) for name, path in sorted(files.items())}


def _build(library: Path, part: str, runner: Runner, machine: ElfMachine, private: Path) -> Path:
    """Compile the loader or the stub; both share the compiler's cache in ``private``."""
    sources = _copy_sources(private, part)
    command = _command(machine, sources, library.name, private)
    run_checked(runner, command, what="compiling the plugin loader")
    built = private / library.name
    declared = _declared(private) if part == "src" else frozenset()
    _check_result(observe(built), machine, library.name, declared)
    with output_errors(library):
        # Renamed after the check: a wrong library never gets the name.
        built.replace(library)
    return library


def observe(library: Path) -> ObservedLibrary:
    """Read the type, machine, SONAME and exports of a shared library.

    Raises:
        BinaryFormatError: the file is not an ELF file, or it is damaged.
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
    """Copy the sources to the private folder; return the relative paths of those to compile.

    With relative paths no path of this machine gets into the library.
    """
    root = Path(str(prebuilt())).parent
    for part in SOURCES:
        with output_errors(private / part):
            (private / part).mkdir(exist_ok=True, parents=True)
            for file in _sources(root / part):
                (private / part / file.name).write_bytes(file.read_bytes())
    return tuple(sorted(f"{sources}/{path.name}" for path in (private / sources).glob("*.c")))


def _sources(folder: Path) -> Iterator[Path]:
    return (file for file in folder.iterdir() if file.suffix in (".c", ".h", ".map"))


def _command(machine: ElfMachine, sources: tuple[str, ...], library: str, private: Path) -> Command:
    target = ("-target", f"{machine}-linux-gnu.{GLIBC}")
    maps = sorted({Path(each).parent / "loader.map" for each in sources if each[:4] == "src/"})
    return Command(
        argv=(
            str(zig_program()),
            "cc",
            *target,
            *_COMPILE,
            *_HIDE,
            _BRANCHES[machine],
            *sources,
            *_LINK,
            f"-Wl,-soname,{library}",
            # The stub exports nothing, so it has no versions.
            *(f"-Wl,--version-script={path}" for path in maps),
            "-o",
            library,
        ),
        cwd=private,
        env=zig_environment(private),
        timeout=600,
    )


def zig_environment(folder: Path) -> dict[str, str]:
    """Return an environment in which zig writes below a folder only."""
    caches = ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR")
    return {"HOME": str(folder), **dict.fromkeys(caches, str(folder / "zig"))}


def zig_program() -> Path:
    """Return the compiler of the ziglang package.

    Raises:
        ToolNotFoundError: the package is not installed.
    """
    found = importlib.util.find_spec("ziglang")
    installed = version("ziglang") if found is not None else ZIG
    # Another compiler writes other bytes, which say nothing about the sources.
    if installed != ZIG:
        raise ToolNotFoundError(
            f"ziglang {installed} is installed, but the loader is built with {ZIG}",
            hint=f"pip install ziglang=={ZIG}",
        )
    if found is None or found.origin is None:
        raise ToolNotFoundError(
            "the ziglang package with the compiler for the plugin loader is not installed",
            hint=f"pip install 'archsplit[loader]', or ziglang=={ZIG}",
        )
    return Path(found.origin).with_name("zig")


def _declared(private: Path) -> frozenset[str]:
    """Return the names of the functions in the public header."""
    header = private / "include" / "archsplit" / "plugin_loader.h"
    words = header.read_text().split("ARCHSPLIT_API ")[1:]
    # The header declares one function after each macro; `*` belongs to a pointer result.
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
        f"{what}: found {value}, expected {expected}"
        for what, value, expected in facts
        if value != expected
    ]
    if faults:
        raise ToolFailedError("\n".join(("the compiled plugin loader is wrong:", *faults)))


if __name__ == "__main__":
    raise SystemExit(run_loader_build())
