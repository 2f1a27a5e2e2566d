"""The cache behind the stand-in for nvcc: what hits, and that nothing stale ever does."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from wrapper_project import (
    KNOWN,
    SOURCE,
    TWO,
    Project,
    copied,
    ran,
    settle,
    toolkit_of_links,
)

from archives import extract_tar
from archsplit.cache.cache import Cache
from archsplit.cache.config import Settings
from archsplit.cache.entry import decode_entry, encode_entry
from archsplit.cache.sealed_blob import DamagedError
from archsplit.compiler.keys import line_info_flag, step_key
from archsplit.compiler.wrapper_cache import WrapperCache
from cache_server import serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archsplit.compiler.step_cache import StepCache
    from archsplit.compiler.wrapper_graph import Compilation
    from archsplit.nvcc.toolkit import Toolkit
    from archsplit.scheduler.graph import Step
    from archsplit.scheduler.outcome import Outcome

pytestmark = pytest.mark.nvcc

ONE = "-arch=sm_80"
PLAIN, PTX, CUBIN = "-c n.cpp", "-ptx k.cu", "-cubin k.cu"


@pytest.fixture(scope="module", params=["", pytest.param("auto", marks=pytest.mark.stress)])
def begun(
    tmp_path_factory: pytest.TempPathFactory, toolkit: Toolkit, request: pytest.FixtureRequest
) -> Project:
    """A project that was compiled, once for two targets and once for one; not to be changed."""
    folder = tmp_path_factory.mktemp("begun")
    made = Project(
        folder=folder / "one",
        store=folder / "store",
        nvcc=toolkit.nvcc,
        extra={"ARCHSPLIT_CACHE_BASE_DIR": request.param},
    )
    made.write(".git/HEAD", "ref: refs/heads/main\n")
    made.write("k.cu", SOURCE)
    made.write("h.h", "#define VALUE 1\n")
    made.compile(*TWO)
    made.compile("-arch=sm_80")
    return made


@pytest.fixture
def project(begun: Project, tmp_path: Path) -> Project:
    """A copy of it, elsewhere, that can be changed."""
    return copied(begun, tmp_path)


@pytest.fixture
def empty(project: Project, tmp_path: Path) -> Project:
    """The same with a store that has nothing in it."""
    return replace(project, store=tmp_path / "empty")


def test_irrelevant_change_is_a_hit(empty: Project, tmp_path: Path) -> None:
    project = empty
    assert len(ran(project.compile("-MD", *TWO))) == 6
    first = (project.folder / "k.o").read_bytes()
    rule = (project.folder / "k.d").read_text()
    (project.folder / "k.d").unlink()
    assert project.compile("-MD", *TWO) == KNOWN
    assert (project.folder / "k.o").read_bytes() == first
    assert (project.folder / "k.d").read_text() == rule
    assert project.compile("-MD", *TWO, output="other.o") == KNOWN
    assert (project.folder / "other.d").read_text() == rule.replace("k.o", "other.o", 1)
    (project.folder / "h.h").touch()
    assert project.compile("-MD", *TWO, "-t", "4") == KNOWN
    # Elsewhere, out of an archive whose members are in another order.
    archive = tmp_path / "a.tar"
    with tarfile.open(archive, "w") as tar:
        for name in ("k.cu", "h.h", ".git/HEAD"):
            tar.add(project.folder / name, name)
    other = replace(project, folder=tmp_path / "other" / "place")
    with tarfile.open(archive) as tar:
        extract_tar(tar, other.folder)
    assert other.compile("-MD", *TWO) == KNOWN
    assert (other.folder / "k.o").read_bytes() == first


def unawaited(compilation: Compilation) -> Iterator[tuple[str, str]]:
    """Steps, and files that would be in their keys if other steps happened to be done already.

    All steps are done: whatever may be there is there.
    """
    makers = {path: step for step in compilation.graph.steps for path in step.writes}

    def awaited(step: Step) -> set[Path]:
        before = [makers[path] for path in step.reads if path in makers]
        return set(step.reads).union(*map(awaited, before), *(each.writes for each in before))

    words = (word for step in compilation.graph.steps for word in step.command.argv)
    debug = bool(line_info_flag(words))
    for step in compilation.graph.steps:
        found = step_key(step, compilation.folder, debug=debug)
        for path in () if found is None else found.inputs:
            if path not in awaited(step) and path not in compilation.texts:
                yield step.name, path.name


@pytest.mark.parametrize("flags", [("-MD", *TWO), ("-rdc=true", "-G", ONE)])
def test_a_key_is_the_same_whichever_step_is_done_first(
    empty: Project, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]
) -> None:
    found: list[tuple[str, str]] = []
    looked: list[str] = []

    def look(
        cache: WrapperCache, compilation: Compilation, outcome: Outcome, steps: StepCache
    ) -> None:
        del cache, steps
        looked.extend(done.name for done in outcome.finished)
        found.extend(unawaited(compilation))

    monkeypatch.setattr(WrapperCache, "store", look)
    empty.compile(*flags)
    assert len(looked) > 5
    assert found == []


def test_another_checkout_with_absolute_paths_runs_no_step(
    project: Project, tmp_path: Path
) -> None:
    project.compile("-I", str(project.folder), *TWO)
    other = replace(project, folder=tmp_path / "two")
    shutil.copytree(project.folder, other.folder)
    settle()
    assert ran(other.compile("-I", str(other.folder), *TWO)) == []
    assert other.is_fresh("-I", str(other.folder), *TWO)


def test_a_comment_on_top_runs_no_device_step(project: Project) -> None:
    project.write("k.cu", "// a comment\n" + SOURCE)
    lines = project.compile(*TWO)
    assert lines[0] == "k.cu has changed"
    assert ran(lines) == ["cudafe++", "host compile to assembly"]
    assert project.is_fresh(*TWO)


def test_unused_definition_runs_no_step(project: Project) -> None:
    assert ran(project.compile(*TWO, "-DUNUSED=1")) == []
    assert ran(project.compile(*TWO, "-DUNUSED=2", "-DOTHER")) == []
    assert project.is_fresh(*TWO, "-DUNUSED=2", "-DOTHER")
    project.write("h.h", "#ifndef OTHER\n#define OTHER 1\n#endif\n#define VALUE OTHER\n")
    project.compile(*TWO)
    assert "cicc compute_80" in ran(project.compile(*TWO, "-DOTHER=2"))
    assert project.is_fresh(*TWO, "-DOTHER=2")


def test_a_change_of_host_code_runs_no_ptxas(project: Project) -> None:
    more = "#ifndef __CUDA_ARCH__\nint helper(int n) { return n; }\n#endif\n"
    project.write("k.cu", SOURCE + more)
    steps = ["cicc compute_80", "cudafe++", "host compile to assembly"]
    assert ran(project.compile(ONE)) == steps
    project.write("k.cu", SOURCE.replace("1, 32", "2, 32") + more)
    names = ran(project.compile(ONE))
    assert not [name for name in names if name.startswith("ptxas")]
    assert project.is_fresh(ONE)


def test_equal_ptx_of_another_source_runs_no_ptxas(project: Project) -> None:
    project.write("other.cu", SOURCE)
    for make in ("-c other.cu", "-cubin k.cu", "-cubin other.cu"):
        names = ran(project.compile(ONE, make=make))
        assert ("cicc compute_80" in names) == (make == "-c other.cu")
        assert "ptxas sm_80" not in names
        assert project.is_fresh(ONE, make=make)


@pytest.mark.parametrize(
    "make", ["-ptx k.cu -arch=sm_80", "-cubin k.cu -arch=sm_80", "-fatbin k.cu"]
)
def test_compilation_of_only_device_code_is_cached_too(project: Project, make: str) -> None:
    flags = TWO if "fatbin" in make else ("-Xcompiler", "-imacros,m.h")
    project.write("m.h", "#define UNUSED 1\n")
    project.compile(*flags, make=make)
    assert project.compile(*flags, make=make) == KNOWN
    project.write("h.h", "#define VALUE 2\n")
    project.compile(*flags, make=make)
    assert project.is_fresh(*flags, make=make)
    if "fatbin" not in make:
        project.write("m.h", "#define UNUSED 2\n")
        assert "m.h has changed" in project.compile(*flags, make=make)


@pytest.mark.parametrize("name", ["n.cpp", "n.c"])
def test_host_source_is_a_hit(project: Project, name: str) -> None:
    project.write(name, '#include "h.h"\nint n() { return VALUE; }\n')
    make = f"-c {name}"
    project.compile(make=make)
    assert project.compile(make=make) == KNOWN
    project.write("h.h", "#define VALUE 2\n")
    assert project.compile(make=make)[0] == "h.h has changed"
    assert project.is_fresh(make=make)


def test_options_in_a_file_count_by_content(project: Project) -> None:
    project.write("n.cpp", "int n() { return MORE; }\n")
    project.write("options.txt", "-DMORE=1\n")
    flags = ("--options-file", "options.txt")
    project.compile(*flags, make=PLAIN)
    assert project.compile(*flags, make=PLAIN) == KNOWN
    project.write("options.txt", "-DMORE=2\n")
    assert "-DMORE=2" in project.compile(*flags, make=PLAIN)[0]
    assert project.is_fresh(*flags, make=PLAIN)
    more = {"NVCC_APPEND_FLAGS": "-optf options.txt"}
    appended = replace(project, extra={**project.extra, **more})
    appended.compile(make=PLAIN)
    assert appended.compile(make=PLAIN) == KNOWN
    project.write("options.txt", "-DMORE=3\n")
    assert appended.compile(make=PLAIN) != KNOWN
    assert appended.is_fresh(make=PLAIN)


def test_march_native_is_a_hit_on_an_equal_machine(project: Project) -> None:
    flags = ("-arch=sm_80", "-Xcompiler", "-march=native")
    project.compile(*flags)
    assert project.compile(*flags) == KNOWN
    strict = replace(project, extra={**project.extra, "ARCHSPLIT_CACHE_STRICT": "yes"})
    assert ran(strict.compile(*flags)) == []
    assert project.is_fresh(*flags)


def test_debug_information_is_known_step_by_step(project: Project, tmp_path: Path) -> None:
    flags = ("-arch=sm_80", "-g", "-lineinfo")
    project.compile(*flags)
    strict = replace(project, extra={**project.extra, "ARCHSPLIT_CACHE_STRICT": "yes"})
    # A step whose object names the base is known only with the whole compilation.
    has_base = bool(project.extra["ARCHSPLIT_CACHE_BASE_DIR"])
    assert ran(strict.compile(*flags)) == ["host compile"] * has_base
    # A debugger looks for the sources where they were compiled.
    other = replace(project, folder=tmp_path / "two")
    shutil.copytree(project.folder, other.folder)
    settle()
    other.compile(*flags)
    content = (other.folder / "k.o").read_bytes()
    # By -lineinfo, with and without the setting.
    assert str(other.folder).encode() in content
    assert str(project.folder).encode() not in content


def test_debug_information_of_the_host_leaves_device_steps_to_other_folders(
    project: Project, tmp_path: Path
) -> None:
    flags = ("-arch=sm_80", "-O3", "-g")
    project.compile(*flags)
    other = replace(project, folder=tmp_path / "two")
    shutil.copytree(project.folder, other.folder)
    settle()
    lines = other.compile(*flags)
    # Debug information has the folder. Device code has not, so that its steps are found.
    if has_base := bool(project.extra["ARCHSPLIT_CACHE_BASE_DIR"]):
        assert lines == KNOWN
    else:
        assert ran(lines) == ["host compile"], lines
    assert any(line.startswith("folder (-g)") for line in lines) is not has_base, lines
    assert other.is_fresh(*flags)


def test_source_date_counts_only_for_sources_using_it(project: Project) -> None:
    def of(day: int) -> Project:
        return replace(project, extra={**project.extra, "SOURCE_DATE_EPOCH": str(day)})

    assert of(1_700_086_400).compile(ONE) == KNOWN
    project.write("n.cpp", "const char *day() { return __DATE__; }\n")
    of(1_700_000_000).compile(make=PLAIN)
    assert of(1_700_000_000).compile(make=PLAIN) == KNOWN
    lines = of(1_700_086_400).compile(make=PLAIN)
    assert lines[0] == "environment SOURCE_DATE_EPOCH: 1700086400, before 1700000000"
    assert of(1_700_086_400).is_fresh(make=PLAIN)


def test_miss_is_explained_by_its_differences(empty: Project, tmp_path: Path) -> None:
    wrapper = tmp_path / "bin" / "gcc"
    wrapper.parent.mkdir()
    # Without base-dir, which would be the first difference.
    here = replace(empty, extra={"PATH": f"{wrapper.parent}:{os.environ['PATH']}"})
    here.write("n.cpp", '#include "h.h"\nint n() { return VALUE; }\n')

    def of_version(version: str) -> None:
        wrapper.write_text(
            f'#!/bin/sh\n[ "$1" = --version ] && echo "gcc {version}" && exit\n'
            f'exec {shutil.which("gcc")} "$@"\n'
        )
        wrapper.chmod(0o755)
        settle()

    of_version("98.1")
    here.compile(ONE)
    assert here.compile(make=PLAIN)[0] == "nothing similar was compiled before"
    here.write("h.h", "#pragma once\n#define VALUE 1\n#define OTHER 1\n")
    assert here.compile(make=PLAIN)[0] == "h.h has changed"
    assert here.compile("-DMORE", make=PLAIN)[0] == "flag is new: -DMORE"
    there = replace(here, extra={**here.extra, "CPATH": "include"})
    assert there.compile(make=PLAIN)[0] == "environment CPATH is new: include"
    of_version("99.2")
    lines = here.compile(make=PLAIN)
    assert "gcc has changed" in lines
    lines = here.compile(ONE)
    run = next(line for line in lines if line.startswith("host compile to assembly: cache miss"))
    assert re.search("program gcc: [0-9a-f]{12}, before [0-9a-f]{12}", run)


def test_additional_target_runs_only_its_own_steps(project: Project) -> None:
    three = (*TWO, "-gencode", "arch=compute_86,code=sm_86")
    device = [name for name in ran(project.compile(*three)) if re.match("cicc|ptxas", name)]
    assert device == ["cicc compute_86", "ptxas sm_86"]
    assert project.is_fresh(*three)


EDITS = {
    "only on the host": "#ifndef __CUDA_ARCH__\nint host() { return 1; }\n#endif\n",
    "only for one target": "#if __CUDA_ARCH__ >= 900\n#undef VALUE\n#define VALUE 1\n#endif\n",
    "in a header of one target": '#if __CUDA_ARCH__ >= 900\n#include "deep.h"\n#endif\n',
}
FATBIN = "-fatbin k.cu"


@pytest.mark.parametrize("name", EDITS)
def test_no_edit_is_missed(project: Project, name: str) -> None:
    include, rest = SOURCE.split("\n", 1)
    flags, make = ((ONE,), "-c k.cu") if name == "only on the host" else (TWO, FATBIN)
    for value in ("1", "2"):
        project.write("deep.h", f"#undef VALUE\n#define VALUE {value}\n")
        text = EDITS[name].replace(" 1", f" {value}")
        project.write("k.cu", f"{include}\n{text}{rest}")
        assert ran(project.compile(*flags, make=make))
    assert project.is_fresh(*flags, make=make)


def test_new_header_earlier_in_the_search_is_a_miss(project: Project) -> None:
    (project.folder / "h.h").unlink()
    project.write("late/h.h", "#define VALUE 1\n")
    flags = ("-I", "early", "-I", "late", ONE)
    project.compile(*flags, make=PTX)
    assert project.compile(*flags, make=PTX) == KNOWN
    project.write("early/h.h", "#define VALUE 2\n")
    lines = project.compile(*flags, make=PTX)
    assert "early/h.h" in lines[0]
    assert project.is_fresh(*flags, make=PTX)
    project.write("h.h", "#define VALUE 3\n")
    assert ran(project.compile(*flags, make=PTX))
    assert project.is_fresh(*flags, make=PTX)
    (project.folder / "h.h").unlink()
    assert project.compile(*flags, make=PTX) == KNOWN


def test_new_header_of_has_include_is_a_miss(project: Project) -> None:
    asking = '#if __has_include("maybe.h")\n#include "maybe.h"\n#endif\n'
    project.write("k.cu", asking + SOURCE)
    project.compile(ONE, make=PTX)
    assert project.compile(ONE, make=PTX) == KNOWN
    project.write("maybe.h", "__device__ int maybe = 2;\n")
    assert ran(project.compile(ONE, make=PTX))
    assert project.is_fresh(ONE, make=PTX)


def test_a_forced_include_is_seen(project: Project) -> None:
    project.write("forced.h", "__device__ int forced = 1;\n")
    flags = ("-include", "forced.h", ONE)
    project.compile(*flags)
    project.write("forced.h", "__device__ int forced = 2;\n")
    assert project.compile(*flags)[0] == "forced.h has changed"
    assert project.is_fresh(*flags)


def test_another_host_compiler_is_seen(project: Project, tmp_path: Path) -> None:
    real = shutil.which("gcc")
    wrapper = tmp_path / "bin" / "gcc"
    wrapper.parent.mkdir()
    here = replace(
        project, extra={**project.extra, "PATH": f"{wrapper.parent}:{os.environ['PATH']}"}
    )
    wrapper.write_text(f'#!/bin/sh\nexec {real} "$@"\n')
    wrapper.chmod(0o755)
    settle()
    here.compile(ONE)
    assert here.compile(ONE) == KNOWN
    wrapper.write_text(f'#!/bin/sh\nexec {real} -fno-plt "$@"\n')
    lines = here.compile(ONE)
    assert "gcc" in lines[0]
    assert "host compile to assembly" in ran(lines)


def test_another_libdevice_or_cicc_is_seen(project: Project, tmp_path: Path) -> None:
    root = tmp_path / "toolkit"
    here = replace(project, nvcc=toolkit_of_links(project.nvcc, root))
    here.compile("-arch=sm_80")
    assert here.compile("-arch=sm_80") == KNOWN
    for name in ("nvvm/libdevice/libdevice.10.bc", "nvvm/bin/cicc"):
        with (root / name).open("ab") as file:
            file.write(b"\0")
        lines = here.compile("-arch=sm_80")
        assert Path(name).name in lines[0]
        assert "cicc compute_80" in ran(lines)
        assert here.is_fresh("-arch=sm_80")


def test_warnings_come_back_and_with_their_lines(project: Project) -> None:
    project.write("k.cu", SOURCE + "__global__ void warns() { int unused; }\n")
    first = [line for line in project.compile(ONE, make=CUBIN) if "unused" in line]
    assert [line for line in project.compile(ONE, make=CUBIN) if "unused" in line] == first
    number = 0
    for above in range(1, 6):
        project.write("k.cu", "\n" * above + SOURCE + "__global__ void warns() { int unused; }\n")
        later = [line for line in project.compile(ONE, make=CUBIN) if "unused" in line]
        number = SOURCE.count("\n") + 1 + above
        assert any(f"k.cu({number})" in line for line in later), (above, later)
    # Another request, and the same text and lines for cicc.
    lines = project.compile(ONE, "-DUNUSED=1", make=CUBIN)
    assert not [name for name in ran(lines) if name.startswith("cicc")], lines
    assert any(f"k.cu({number})" in line for line in lines)


def test_warning_about_output_names_is_not_replayed_for_another_call(project: Project) -> None:
    def warned(*arguments: str) -> bool:
        said = project.compile(ONE, *arguments, make=CUBIN)
        return any("redefinition for option 'output-file'" in line for line in said)

    assert warned("-o", "other.cubin")
    assert not warned()
    assert warned("-o", "third.cubin")


def test_lines_count_with_line_information(project: Project) -> None:
    project.compile("-arch=sm_80", "-lineinfo", make=CUBIN)
    project.write("k.cu", "// a comment\n" + SOURCE)
    assert "cicc compute_80" in ran(project.compile("-arch=sm_80", "-lineinfo", make=CUBIN))
    assert project.is_fresh("-arch=sm_80", "-lineinfo", make=CUBIN)


def test_strict_preprocesses_and_runs_no_step(project: Project) -> None:
    strict = replace(project, extra={**project.extra, "ARCHSPLIT_CACHE_STRICT": "yes"})
    lines = strict.compile(*TWO)
    assert lines != KNOWN
    assert ran(lines) == []


def test_a_failure_is_never_known(project: Project) -> None:
    project.write("k.cu", "#error no\n")
    for _ in range(2):
        with pytest.raises(AssertionError, match="#error no"):
            project.compile("-arch=sm_80")


def test_verify_runs_everything_and_names_differences(empty: Project) -> None:
    project = empty
    project.compile(ONE, make=CUBIN)
    checking = replace(project, extra={**project.extra, "ARCHSPLIT_CACHE": "verify"})
    assert len(ran(checking.compile(ONE, make=CUBIN))) == 2
    damaged = 0
    cache = Cache(Settings(folder=project.store), warn=pytest.fail)
    for key in list(cache.local.all_keys()):
        with contextlib.suppress(DamagedError):
            blob = cache.local.get(key)
            entry = decode_entry(blob or b"")
            if any(name.endswith(".ptx") for name in entry.files):
                files = {name: text + b"\n" for name, text in entry.files.items()}
                cache.local.put(key, encode_entry(entry._replace(files=files)))
                damaged += 1
    assert damaged == 1
    with pytest.raises(
        AssertionError, match=r"(?s)steps differ from what the cache has.*cicc compute_80"
    ):
        checking.compile(ONE, make=CUBIN)


def test_a_second_machine_has_it_from_a_server(empty: Project, tmp_path: Path) -> None:
    project = empty
    with serving() as server:
        remote = {"ARCHSPLIT_CACHE_REMOTE": server.address, "ARCHSPLIT_CACHE_REMOTE_SECONDS": "2"}
        remote |= project.extra
        replace(project, extra=remote).compile(ONE, make=CUBIN)
        second = replace(project, extra=remote, store=tmp_path / "second")
        assert second.compile(ONE, make=CUBIN) == (f"cache hit ({server.address})",)
        assert replace(second, extra=project.extra).compile(ONE, make=CUBIN) == KNOWN
        server.mood = "hangs"
        third = replace(project, extra=remote, store=tmp_path / "third")
        assert any("is not used" in line for line in third.compile(ONE, make=CUBIN))
        assert third.is_fresh(ONE, make=CUBIN)
