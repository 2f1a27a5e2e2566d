"""Tile kernels, which nvcc compiles since 13.3: two containers an object, one more compiler."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from wrapper_project import KNOWN, Project

from archsplit.cache.file_digests import FileDigests
from archsplit.compiler.keys import step_key
from archsplit.compiler.tool_identity import ToolIdentities
from archsplit.nvcc.dryrun import StepKind
from archsplit.scheduler.graph import Step
from archsplit.system.process import Command, SubprocessRunner

if TYPE_CHECKING:
    from pathlib import Path

PACKAGES = ("cuda-toolkit[nvcc,cudart,cccl]==13.4.*", "nvidia-cuda-tileiras==13.5.*")
SOURCE = """\
#include "cuda_tile.h"
__tile_global__ void tile(float* p) {}
__global__ void kernel(float* p) { p[threadIdx.x] = 2; }
void run(float* p) { tile<<<1, 1>>>(p); kernel<<<1, 32>>>(p); }
"""
FLAGS = ("-enable-tile", "-std=c++20", "-arch=sm_100")


def test_host_compile_has_the_container_of_tile_kernels_in_its_key(tmp_path: Path) -> None:
    for name in ("k.cudafe1.cpp", "k.fatbin.c", "k.tile.fatbin.c", "other.fatbin.c"):
        (tmp_path / name).write_text(name)
    source = tmp_path / "k.cudafe1.cpp"
    argv = (
        "gcc",
        "-c",
        str(source),
        "-o",
        str(tmp_path / "k.o"),
        "-MD",
        "-MF",
        str(tmp_path / "d"),
    )
    step = Step(
        name="host",
        command=Command(argv=argv, cwd=tmp_path, env={}),
        reads=(source,),
        writes=(tmp_path / "k.o",),
    )
    key = step_key(step, tmp_path, debug=False)
    assert key is not None
    assert {path.name for path in key.inputs} == {source.name, "k.fatbin.c", "k.tile.fatbin.c"}


def test_identity_of_tileiras_includes_its_programs(tmp_path: Path) -> None:
    identities = ToolIdentities(runner=SubprocessRunner(), digests=FileDigests(None), cwd=tmp_path)
    for name in ("bin/tileiras", "bin/ptxas", "lib/libnvvm.so.4"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
        (tmp_path / name).chmod(0o755)
    program = str(tmp_path / "bin/tileiras")
    argv = (program, "-arch=sm_100", "k.tilebc", "-o", "k.cubin")
    assert list(identities.files(argv, {})) == [
        tmp_path / name for name in ("bin/tileiras", "bin/ptxas", "lib/libnvvm.so.4")
    ]
    # Without the program nothing is known of its parts.
    assert list(identities.files(("tileiras",), {"PATH": ""})) == [None]


@pytest.mark.download
def test_tile_kernels_are_cached_like_others(tmp_path: Path) -> None:
    place = tmp_path / "toolkit"
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    subprocess.run([str(place / "bin/pip"), "install", "-q", *PACKAGES], check=True)
    (nvcc,) = place.glob("lib/python*/site-packages/nvidia/cu13/bin/nvcc")
    project = Project(folder=tmp_path / "project", store=tmp_path / "store", nvcc=nvcc)
    project.folder.mkdir()
    project.write("k.cu", SOURCE)
    said = "\n".join(project.compile(*FLAGS))
    assert f"{StepKind.TILEIRAS.value} sm_100: cache miss" in said
    assert project.is_fresh(*FLAGS)
    assert project.compile(*FLAGS) == KNOWN
    project.write("k.cu", SOURCE + "// a comment\n")
    said = "\n".join(project.compile(*FLAGS))
    assert f"{StepKind.TILEIRAS.value} sm_100: cache hit (local)" in said
    assert project.is_fresh(*FLAGS)
