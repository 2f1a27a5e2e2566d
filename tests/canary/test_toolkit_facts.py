"""What archsplit takes for granted about the toolkit, and NVIDIA doesn't promise; no GPU needed.

docs/contributing/index.md lists the facts by these numbers.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from canary_probes import CONTAINER, WRAPPER, containers, emptied, section, wrappers

from archsplit.nvcc.variables import hashed_variables

if TYPE_CHECKING:
    from canary_probes import Workbench

pytestmark = pytest.mark.canary

TWO = ("-gencode=arch=compute_80,code=sm_80", "-gencode=arch=compute_90,code=[sm_90,compute_90]")
WRAPPED = (sys.executable, "-m", "archsplit", "nvcc", "--verify", "--jobs", "2")
LINES = {
    "object": ("-c", *TWO),
    "relocatable": ("-c", "-rdc=true", *TWO),
    "optimized, line numbers": ("-c", "-O3", "-lineinfo", *TWO),
    "compressed": ("-c", "-Xfatbin=-compress-all", *TWO),
    "debug": ("-c", "-g", "-G", "-arch=sm_90"),
    "arch-specific": ("-c", "-gencode=arch=compute_90a,code=sm_90a"),
    "PTX": ("-ptx", "-arch=compute_90"),
    "cubin": ("-cubin", "-arch=sm_90"),
    "container": ("-fatbin", *TWO),
}
SOURCES = Path(__file__).parents[2] / "bench" / "sources"
FILES = {
    "sort": '#include "sort.cuh"\nSORT(float, int)',
    "fold": '#include "fold.cuh"\nFOLD(float)',
    "scan": '#include "fold.cuh"\nSCAN(int)',
    "gemm": '#include "gemm.cuh"\nGEMMS(float)',
    "map": '#include "map.cuh"\nMAPS(Bessel)',
}
"""Sources with Thrust, templates of matrices, and the toolkit's functions of mathematics."""
HARMLESS = {
    *("PATH", "HOME", "PWD", "TERM", "USER", "SHELL", "COLUMNS", "COLORTERM", "NO_COLOR"),
    *("TMPDIR", "TMP", "TEMP", "LD_LIBRARY_PATH", "POSIXLY_CORRECT", "TZ", "TZDIR"),
    *("MALLOC_ARENA_MAX", "GCONV_PATH", "NLSPATH", "OUTPUT_CHARSET", "LOCPATH"),
    *("NOCOLOR", "TEMPDIR", "MALLOC_CONF", "MAKEFLAGS"),
    "AS_SECURE_LOG_FILE",  # LLVM's assembler for macOS
    "bar",  # LLVM keeps code from being optimized away by `getenv("bar")`
    "DUMP_KNOBS_TO_FILE",  # one more file, whose name the user gives
}
"""Variables that find programs or temporary files, or change only colors, messages, logs."""
OF_TOOLKIT = {"nvcc", "cudafe++", "cicc", "ptxas", "fatbinary", "nvlink"}
"""Programs of the toolkit; the cache asks the host compiler in another way."""


@pytest.fixture(scope="module")
def library(bench: Workbench) -> Path:
    bench.compile("-shared", "-cudart", "none", *TWO, "-o", "libplain.so")
    return bench.folder / "libplain.so"


@pytest.fixture(scope="module")
def linked(bench: Workbench) -> Path:
    bench.compile("-c", "-rdc=true", *TWO, "-o", "rdc.o")
    # With `-cudart none`, nvcc itself leaves the device link out.
    bench.run(bench.nvcc, "-Xcompiler=-fPIC", "-dlink", *TWO, "rdc.o", "-o", "dlink.o")
    bench.run("g++", "-shared", "rdc.o", "dlink.o", "-o", "liblinked.so")
    return bench.folder / "liblinked.so"


def test_fact_1_magic_numbers_are_known(library: Path) -> None:
    _, _, content = section(library, ".nv_fatbin")
    assert containers(content)
    assert wrappers(library)


def test_fact_2_wrapper_has_24_bytes_and_points_at_its_container(library: Path) -> None:
    address, _, content = section(library, ".nv_fatbin")
    starts = {address + offset for offset, _ in containers(content)}
    assert WRAPPER.size == 24
    assert {pointer for _, _, pointer in wrappers(library)} <= starts


def test_fact_3_wrapper_versions_are_1_and_2(library: Path, linked: Path) -> None:
    assert {version for _, version, _ in wrappers(library)} == {1}
    assert 2 in {version for _, version, _ in wrappers(linked)}


@pytest.mark.parametrize("name", ["library", "linked"])
def test_fact_4_containers_are_registered_by_constructors(
    name: str, bench: Workbench, request: pytest.FixtureRequest
) -> None:
    path: Path = request.getfixturevalue(name)
    bench.link("librecorder.so", "-shared", source="recorder.c")
    said = bench.opened("librecorder.so", path.name).splitlines()
    registered = [line.split() for line in said if line.startswith("register")]
    # Between the two openings: in a constructor of the library, and before dlopen returns.
    assert said[0] == "opened"
    assert said[-1] == "opened"
    # A device link registers its own containers in place of the objects' ones.
    versions = [version for _, version, _ in wrappers(path)]
    assert [int(version) for _, _, version, _ in registered] == sorted(versions)[-len(registered) :]
    assert len(registered) == versions.count(max(versions))
    assert {(magic, first) for _, magic, _, first in registered} == {("466243b1", "ba55ed50")}


def test_fact_6_container_without_entries_is_registered_like_others(
    bench: Workbench, library: Path
) -> None:
    bench.link("librecorder.so", "-shared", source="recorder.c")
    empty = emptied(library, "libempty.so")
    _, _, content = section(empty, ".nv_fatbin")
    assert CONTAINER.unpack_from(content)[3] == 0
    said = bench.opened("librecorder.so", empty.name)
    assert said.count("register 466243b1 1 ba55ed50") == len(wrappers(empty))


@pytest.mark.nvcc
@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_fact_9_dry_run_is_understood_and_gives_nvccs_bytes(
    line: tuple[str, ...], bench: Workbench, tmp_path: Path
) -> None:
    source = bench.folder / "fact9.cu"
    source.write_text("__global__ void fill(int *x) { x[threadIdx.x] = 9; }\n")
    command: tuple[str | Path, ...] = (
        *WRAPPED,
        "--nvcc",
        bench.nvcc,
        "--",
        *line,
        source,
        "-o",
        str(tmp_path / "out"),
    )
    said = bench.run(*command, ARCHSPLIT_CACHE="off")
    assert "running nvcc" not in said, said


def test_fact_10_compilers_read_only_variables_in_keys(bench: Workbench, tmp_path: Path) -> None:
    bench.link("libvariables.so", "-shared", "-ldl", source="variables.c")
    source, names = bench.folder / "fact10.cu", tmp_path / "names"
    source.write_text("__global__ void fill(int *x) { x[threadIdx.x] = 10; }\n")
    bench.run(
        *(bench.nvcc, "-c", *TWO, source, "-o", tmp_path / "out.o"),
        LD_PRELOAD=str(bench.folder / "libvariables.so"),
        CANARY_NAMES=str(names),
    )
    read = {tuple(line.split(" ", 1)) for line in names.read_text().splitlines()}
    programs = {program for program, _ in read}
    assert {"nvcc", "cicc", "ptxas", "cudafe++"} <= programs
    unknown = sorted(
        f"{program} {name}"
        for program, name in read
        if program in OF_TOOLKIT
        and name not in HARMLESS
        and not hashed_variables({name: "1"}, driver=True)
    )
    assert unknown == [], "\n".join(unknown)


@pytest.mark.nvcc
@pytest.mark.parametrize("name", FILES)
def test_fact_12_device_code_of_g_is_the_same_in_each_folder(
    name: str, bench: Workbench, tmp_path: Path
) -> None:
    found = []
    for folder in (tmp_path / "one", tmp_path / "a longer name" / "two"):
        shutil.copytree(SOURCES, folder)
        (folder / "k.cu").write_text(f"{FILES[name]}\n")
        options = ("--reproducible", "--save", "saved", "--nvcc", bench.nvcc)
        # Names of units are archsplit's own, by the path from the working folder.
        here = replace(bench, folder=folder)
        command = (sys.executable, "-m", "archsplit", "nvcc", *options, "--")
        here.run(*command, "-g", "-O3", *TWO, "-c", "k.cu", "-o", "k.o", ARCHSPLIT_CACHE="off")
        made = [*folder.glob("saved/*.ptx"), *folder.glob("saved/*.cubin")]
        found.append({path.name: path.read_bytes() for path in made})
    assert len(found[0]) >= len(TWO)
    assert found[0] == found[1]
