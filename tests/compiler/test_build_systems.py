"""The stand-in where build systems put it: as CMake's compiler, as its launcher, in a makefile."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from source_roots import SOURCE_PATH

if TYPE_CHECKING:
    from archsplit.nvcc.toolkit import Toolkit

pytestmark = pytest.mark.nvcc

LISTS = """
cmake_minimum_required(VERSION 3.20)
project(probe LANGUAGES CXX CUDA)
add_library(probe SHARED k.cu p.cpp)
set_target_properties(probe PROPERTIES CUDA_ARCHITECTURES "80-real;90")
"""
MAKEFILES = """
cmake_minimum_required(VERSION 3.20)
project(probe LANGUAGES CXX CUDA)
add_library(probe SHARED k.cu other.cu p.cpp)
target_include_directories(probe PRIVATE "an include")
set_target_properties(probe PROPERTIES CUDA_ARCHITECTURES "80-real;90"
    CUDA_SEPARABLE_COMPILATION ON CUDA_RESOLVE_DEVICE_SYMBOLS ON)
"""
MAKEFILE = """
OBJECTS = k.o other.o
all: $(OBJECTS)
%.o: %.cu
\t+$(NVCC) -c $< -o $@ -MD -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=sm_90
-include $(OBJECTS:.o=.d)
"""
SOURCES = {
    "k.cu": '#include "k.h"\n__global__ void fill(float* x) { *x = ONE; }\n',
    "k.h": "#define ONE 1.0f\n",
    "other.cu": "__global__ void other(float* x) { *x = 2.0f; }\n",
    "p.cpp": "int p() { return 1; }\n",
}


@pytest.fixture
def launcher(tmp_path: Path) -> Path:
    """Write the script ``archsplit-nvcc`` as pip would, with a log line for each call."""
    path = tmp_path / "bin" / "archsplit-nvcc"
    path.parent.mkdir()
    path.write_text(
        f'#!/bin/sh\necho "$*" >> {tmp_path}/calls\n'
        f'exec "{sys.executable}" -c "from archsplit.cli.nvcc import launcher; launcher()" "$@"\n'
    )
    path.chmod(0o755)
    return path


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    for name, text in {**SOURCES, "CMakeLists.txt": LISTS, "Makefile": MAKEFILE}.items():
        (folder / name).write_text(text)
    return folder


def environment(whole_toolkit: Toolkit, path: Path) -> dict[str, str]:
    # The index's wheels put libraries where nvcc's own profile doesn't look.
    return {
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), "/usr/bin", "/bin")),
        "HOME": str(path),
        "PYTHONPATH": SOURCE_PATH,
        "LIBRARY_PATH": str(whole_toolkit.library_folder),
        "ARCHSPLIT_CACHE": "off",
        "ARCHSPLIT_CACHE_DIR": str(path / "cache"),
        "CUDA_HOME": str(whole_toolkit.root),
    }


def run(argv: tuple[str, ...], folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        argv, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("place", [pytest.param("compiler", marks=pytest.mark.stress), "launcher"])
def test_cmake_builds_with_it(
    place: str, project: Path, launcher: Path, whole_toolkit: Toolkit, tmp_path: Path
) -> None:
    given = {
        "compiler": (f"-DCMAKE_CUDA_COMPILER={launcher}",),
        "launcher": (
            f"-DCMAKE_CUDA_COMPILER={whole_toolkit.nvcc}",
            f"-DCMAKE_CUDA_COMPILER_LAUNCHER={launcher}",
        ),
    }[place]
    around = environment(whole_toolkit, tmp_path)
    cmake = shutil.which("cmake", path=around["PATH"])
    assert cmake is not None, "pip install 'archsplit[test]' brings cmake"
    run((cmake, "-G", "Ninja", "-S", ".", "-B", "build", *given), project, around)
    run((cmake, "--build", "build"), project, around)
    assert (project / "build" / "libprobe.so").is_file()
    calls = (tmp_path / "calls").read_text()
    assert "k.cu" in calls
    again = run((cmake, "--build", "build"), project, around)
    assert "no work to do" in again
    (project / "k.h").touch()
    assert "k.cu" in run((cmake, "--build", "build", "--verbose"), project, around)


@pytest.mark.stress  # Makefiles without the cache are in tests/split/test_own_build.py.
def test_cmakes_makefiles_hit_the_cache(
    project: Path, launcher: Path, whole_toolkit: Toolkit, tmp_path: Path
) -> None:
    around = {**environment(whole_toolkit, tmp_path), "ARCHSPLIT_CACHE": "on"}
    around["ARCHSPLIT_NVCC_OPTIONS"] = "--explain"
    cmake = shutil.which("cmake", path=around["PATH"])
    assert cmake is not None, "pip install 'archsplit[test]' brings cmake"
    if shutil.which("make") is None:
        pytest.skip("make is missing")
    (project / "an include").mkdir()
    (project / "k.h").rename(project / "an include" / "k.h")
    (project / "CMakeLists.txt").write_text(MAKEFILES)
    given = ("-G", "Unix Makefiles", "-S", ".", "-B", "build", f"-DCMAKE_CUDA_COMPILER={launcher}")
    run((cmake, *given), project, around)

    def built() -> tuple[str, dict[str, bytes]]:
        argv = (cmake, "--build", "build")
        done = subprocess.run(
            argv, cwd=project, env=around, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "running nvcc itself" not in done.stderr
        objects = project.glob("build/CMakeFiles/probe.dir/*.cu.o*")
        return done.stderr, {path.name: path.read_bytes() for path in objects}

    said, cold = built()
    assert "--options-file" in (tmp_path / "calls").read_text()
    assert {"k.cu.o", "k.cu.o.d", "other.cu.o", "other.cu.o.d"} <= cold.keys()
    assert "archsplit: cache hit" not in said
    run((cmake, "--build", "build", "--target", "clean"), project, around)
    said, warm = built()
    assert said.count("archsplit: cache hit") == 2
    assert warm == cold
    (project / "an include" / "k.h").write_text("#define ONE 3.0f\n")
    said, edited = built()
    assert "k.h has changed" in said
    assert {name for name in cold if edited[name] != cold[name]} == {"k.cu.o"}


def test_make_builds_with_it_and_lends_its_slots(
    project: Path, launcher: Path, whole_toolkit: Toolkit, tmp_path: Path
) -> None:
    make = shutil.which("make")
    if make is None:
        pytest.skip("make is missing")
    around = environment(whole_toolkit, tmp_path)
    said = run((make, "-j2", f"NVCC={launcher}"), project, around)
    assert "jobserver" not in said
    assert {path.name for path in project.glob("*.[od]")} == {"k.o", "k.d", "other.o", "other.d"}
    run((make, "-q", f"NVCC={launcher}"), project, around)
    (project / "k.h").touch()
    assert "k.cu" in run((make, f"NVCC={launcher}"), project, around)
