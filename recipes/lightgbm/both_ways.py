"""Build LightGBM with its own CMake, by nvcc and by archsplit-nvcc, and compare the two libraries.

``both_ways.py build SDIST FOLDER`` makes FOLDER/nvcc.so and FOLDER/archsplit.so and prints how long
each build took. ``both_ways.py compare ONE OTHER`` says whether they have the same dynamic symbols
and the same device code; it needs archsplit. CMake, ninja and NCCL must be there; it takes minutes.
"""
# ruff: noqa: INP001 (a script, no part of a package)

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import subprocess  # noqa: TID251 (a script for users)
import sys
import tarfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SWITCHES = ("USE_CUDA", "__BUILD_FOR_PYTHON", "BUILD_WITH_SHARED_NCCL", "USE_NCCL_LIB_PATH")
UNIT = re.compile(rb"_[0-9a-f]{8}_\d+_\w+?_cu_[0-9a-f]{8}(?:_\d+)?")
"""What nvcc calls a translation unit. archsplit-nvcc has names of its own, of the same length."""


def main() -> int:
    """Return 0 if all is well."""
    parser = argparse.ArgumentParser(description=__doc__)
    verbs = parser.add_subparsers(required=True)
    build = verbs.add_parser("build")
    build.add_argument("sdist", type=Path)
    build.add_argument("folder", type=Path)
    build.add_argument("--nvcc", default=shutil.which("nvcc"))
    build.add_argument("--archsplit-nvcc", default=shutil.which("archsplit-nvcc"))
    build.add_argument("--nccl", type=Path, required=True, help="holds include and lib")
    build.add_argument("--targets", default="80-real;90-real;100-real;120", help="for CMake")
    build.add_argument("--target", default="_lightgbm", help="for ninja")
    build.set_defaults(run=build_both)
    compare = verbs.add_parser("compare")
    compare.add_argument("libraries", type=Path, nargs=2)
    compare.set_defaults(run=compare_both)
    asked = parser.parse_args()
    status: int = asked.run(asked)
    return status


def build_both(asked: argparse.Namespace) -> int:
    """Build one after the other, in the same place, so that no path tells them apart."""
    asked.folder.mkdir(parents=True)
    with tarfile.open(asked.sdist) as archive:
        archive.extractall(asked.folder, filter="data")
    (sources,) = asked.folder.glob("lightgbm-*")
    for name, compiler in (("nvcc", asked.nvcc), ("archsplit", asked.archsplit_nvcc)):
        started = time.monotonic()
        build = build_one(asked, sources.absolute(), Path(compiler).absolute())
        say(f"{name}: {time.monotonic() - started:.1f} s")
        library = sources / "lib_lightgbm.so"
        if library.exists():
            library.replace(asked.folder / f"{name}.so")
        build.rename(asked.folder / f"build-{name}")
    return 0


def build_one(asked: argparse.Namespace, sources: Path, compiler: Path) -> Path:
    """Configure and build; returns the folder that it was done in."""
    build = Path(asked.folder).absolute() / "build"
    library = next((asked.nccl / "lib").glob("libnccl.so*")).absolute()
    options = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_CUDA_COMPILER": compiler,
        "CMAKE_CUDA_ARCHITECTURES": asked.targets,
        "NCCL_INCLUDE_DIR": asked.nccl.absolute() / "include",
        "NCCL_LIBRARY": library,
        **dict.fromkeys(SWITCHES, "ON"),
    }
    defines = [f"-D{name}={value}" for name, value in options.items()]
    run("cmake", "-G", "Ninja", "-S", str(sources), "-B", str(build), *defines)
    started = time.monotonic()
    run("cmake", "--build", str(build), "--target", asked.target)
    say(f"{compiler.name}: {time.monotonic() - started:.1f} s without configuring")
    return build


def compare_both(asked: argparse.Namespace) -> int:
    """Say what is different."""
    symbols, code = zip(*map(contents, asked.libraries), strict=True)
    for name in sorted(symbols[0] ^ symbols[1]):
        say(f"only one has the symbol {name}")
    for name in sorted({name for name, _ in (code[0] - code[1]) + (code[1] - code[0])}):
        say(f"different: {name}")
    same = symbols[0] == symbols[1] and code[0] == code[1]
    say(f"{len(symbols[0])} symbols, {code[0].total()} parts of device code")
    say("the same symbols and the same device code" if same else "not the same")
    return 0 if same else 1


def contents(path: Path) -> tuple[set[str], Counter[tuple[str, str]]]:
    """The dynamic symbols; and the names and SHA-256 of the device code's parts."""
    # archsplit is needed for this alone, and may be missing where LightGBM is built.
    from splitter.binfmt.dynamic import Dynamic  # noqa: PLC0415
    from splitter.binfmt.elf import Elf  # noqa: PLC0415
    from splitter.binfmt.fatbin import containers_of  # noqa: PLC0415
    from splitter.binfmt.mapped import open_file  # noqa: PLC0415
    from splitter.devicecode.decompress import decompressed  # noqa: PLC0415

    elf = Elf(open_file(path))
    code: Counter[tuple[str, str]] = Counter()
    for number, (section, container) in enumerate(containers_of(elf)):
        for entry in container.entries():
            image = decompressed(entry, container.payload(entry))
            for name, part in parts(image):
                where = f"{section.name} {number} {entry.target} {name}"
                code[where, hashlib.sha256(part).hexdigest()] += 1
    symbols = {
        UNIT.sub(b"(unit)", one.name.encode()).decode() for one in Dynamic(elf).exported_symbols()
    }
    return symbols, code


def parts(image: bytes) -> Iterator[tuple[str, bytes]]:
    """The sections of a cubin; all of anything else. Units' names are taken out of both."""
    from splitter.binfmt.cursor import Window  # noqa: PLC0415
    from splitter.binfmt.elf import Elf  # noqa: PLC0415
    from splitter.binfmt.elf_header import ELF_MAGIC  # noqa: PLC0415

    if not image.startswith(ELF_MAGIC):
        yield "", UNIT.sub(b"(unit)", image)
        return
    elf = Elf(Window(image, source="cubin"))
    for section in elf.sections():
        name = UNIT.sub(b"(unit)", section.name.encode()).decode()
        yield name, UNIT.sub(b"(unit)", elf.content(section).to_bytes())


def run(*command: str) -> None:
    """Run a program, or leave with its output."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 (from a PATH that the user chose)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")


def say(text: str) -> None:
    """Print it at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
