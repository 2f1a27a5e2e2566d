"""Build LightGBM with its own CMake, once by nvcc and once by archsplit-nvcc.

``both_ways.py SDIST FOLDER --nccl FOLDER`` makes FOLDER/nvcc.so and FOLDER/archsplit.so, and prints
how long each build took; same_code.py compares them. CMake and ninja must be there. For comparing,
set ARCHSPLIT_NVCC_OPTIONS=--reproducible: what is compiled on several cores has other bytes.
"""
# ruff: noqa: INP001 (a script, no part of a package)

from __future__ import annotations

import argparse
import shutil
import subprocess  # noqa: TID251 (a script for users)
import sys
import tarfile
import time
from pathlib import Path

SWITCHES = ("USE_CUDA", "__BUILD_FOR_PYTHON", "BUILD_WITH_SHARED_NCCL", "USE_NCCL_LIB_PATH")


def main() -> int:
    """Return 0 if all is well."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sdist", type=Path)
    parser.add_argument("folder", type=Path, help="is made")
    parser.add_argument("--nvcc", default=shutil.which("nvcc"))
    parser.add_argument("--archsplit-nvcc", default=shutil.which("archsplit-nvcc"))
    parser.add_argument("--nccl", type=Path, required=True, help="holds include and lib")
    parser.add_argument("--targets", default="80-real;90-real;100-real;120", help="for CMake")
    parser.add_argument("--target", default="_lightgbm", help="for ninja")
    parser.add_argument("--cxx", default="g++", help="the host's compiler")
    asked = parser.parse_args()
    # One after the other, in the same place, so that no path tells them apart.
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
        "CMAKE_CXX_COMPILER": asked.cxx,
        "CMAKE_CUDA_COMPILER": compiler,
        "CMAKE_CUDA_ARCHITECTURES": asked.targets,
        # Of LightGBM's targets, the one with c_api.cpp isn't told where NCCL's header is.
        "CMAKE_CXX_FLAGS": f"-isystem {asked.nccl.absolute() / 'include'}",
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
