"""Include folders with random names: hits by content, and none where the name counts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from wrapper_project import KNOWN, Project, ran, settle

from archsplit.cache.entry import ManifestRow
from archsplit.compiler.keys import compile_request
from archsplit.compiler.prefix_map import PrefixMap, find_prefix_map, map_options
from archsplit.nvcc.cmdline import CommandLine

ONE, TWO = "pip-build-env-abcd_012", "build-env-zyxwvuts"
NVCC = pytest.mark.nvcc
SITE = "overlay/lib/python3.11/site-packages"
SOURCE = """\
#include <bound.h>
static __global__ void kernel(int *p) { p[threadIdx.x] = VALUE; }
void run(int *p) { hidden::tables[0] = named([] { return 1; }); kernel<<<1, 32>>>(p); }
"""
# What compilers give names of their own, which must not come from the name of the file.
HEADER = """\
#pragma once
#define VALUE 1
namespace hidden {
namespace { int counter; __device__ int on_device; struct local { virtual ~local() {} } one; }
static __device__ int other = 3;
inline int tables[] = {2, 3};
enum { unnamed };
}
template <class T> __host__ __device__ int named(T call) {
  static auto again = [] (auto value) { return value; };
  struct inner { const char *name() { return __func__; } };
  return again(call()) + sizeof(__PRETTY_FUNCTION__);
}
template <class T> __global__ void kernel_of(T call) {
  if (__PRETTY_FUNCTION__[3] == 'x') hidden::on_device = call() + hidden::other;
}
inline void start() { hidden::counter++; kernel_of<<<1, 1>>>([] __device__ { return 2; }); }
"""
FLAGS = ("-arch=sm_80", "--extended-lambda", "-std=c++17")


@pytest.fixture(params=["", pytest.param("{folder}/one", marks=pytest.mark.stress)])
def project(tmp_path: Path, request: pytest.FixtureRequest) -> Project:
    toolkit = request.getfixturevalue("small_toolkit")
    made = Project(
        folder=tmp_path / "one",
        store=tmp_path / "store",
        nvcc=toolkit.nvcc,
        extra={"ARCHSPLIT_CACHE_BASE_DIR": request.param.format(folder=tmp_path)},
    )
    made.write("k.cu", SOURCE)
    made.write(f"../{ONE}/{SITE}/pkg/include/bound.h", HEADER)
    return made


def compile_with(project: Project, isolated: str, *flags: str) -> tuple[str, ...]:
    """Compile with the headers of an isolated environment."""
    folder = project.folder.parent / isolated / SITE / "pkg" / "include"
    return project.compile(*FLAGS, "-MD", *flags, "-isystem", str(folder))


def is_fresh(project: Project, isolated: str, *flags: str) -> bool:
    folder = project.folder.parent / isolated / SITE / "pkg" / "include"
    return project.is_fresh(*FLAGS, *flags, "-isystem", str(folder))


@NVCC
def test_another_environment_with_the_same_headers_is_a_hit(project: Project) -> None:
    root = project.folder.parent
    assert len(ran(compile_with(project, ONE))) == 4
    rule = (project.folder / "k.d").read_text()
    assert f"{ONE}/{SITE}/pkg/include/bound.h" in rule
    first = (project.folder / "k.o").read_bytes()
    (root / ONE).rename(root / TWO)
    (project.folder / "k.d").unlink()
    assert compile_with(project, TWO) == KNOWN
    # The rules for make name the headers where they are now, and the object is nvcc's.
    assert (project.folder / "k.d").read_text() == rule.replace(ONE, TWO)
    assert (project.folder / "k.o").read_bytes() == first
    assert is_fresh(project, TWO)
    # The second hit in one environment is by its direct record.
    assert compile_with(project, TWO) == KNOWN

    # A header that has changed, or that a new file replaces, is found to be another one.
    header = root / TWO / SITE / "pkg/include/bound.h"
    header.write_text(HEADER.replace("VALUE 1", "VALUE 2"))
    settle()
    assert ran(compile_with(project, TWO))
    assert is_fresh(project, TWO)
    assert (project.folder / "k.o").read_bytes() != first
    assert compile_with(project, TWO) == KNOWN
    # The same words with other links, of which compilers may leave out one.
    shutil.copytree(root / TWO, root / ONE)
    settle()
    (root / ONE / SITE / "pkg/include").rename(root / "elsewhere")
    (root / ONE / SITE / "pkg/include").symlink_to(root / "elsewhere")
    settle()
    assert ran(compile_with(project, ONE))


@NVCC
def test_code_with_the_folders_name_is_compiled_again(project: Project) -> None:
    root = project.folder.parent
    text = "constexpr char third = __FILE__[8];\ninline char it() { return third; }\n"
    project.write(f"../{ONE}/{SITE}/pkg/include/bound.h", HEADER + text)
    compile_with(project, ONE)
    (root / ONE).rename(root / TWO)
    assert compile_with(project, TWO) != KNOWN
    assert is_fresh(project, TWO)


@NVCC
def test_warning_names_the_headers_real_path(project: Project) -> None:
    root = project.folder.parent
    warning = "inline int loud() { int unused_here; return 1; }\n"
    project.write(f"../{ONE}/{SITE}/pkg/include/bound.h", HEADER + warning)
    where = root / ONE / SITE / "pkg/include"
    flags = (*FLAGS, "-Xcompiler=-Wall")
    assert any(f"{ONE}/" in line for line in project.compile(*flags, f"-I{where}"))
    (root / ONE).rename(root / TWO)
    again = project.compile(*flags, f"-I{root / TWO / SITE}/pkg/include")
    assert KNOWN[0] in again
    assert any(f"{TWO}/" in line for line in again)
    assert not any(ONE in line for line in again)


@NVCC
def test_a_source_without_preprocessed_text_keeps_the_name(project: Project) -> None:
    root = project.folder.parent
    project.write("n.cpp", "#include <plain.h>\nint one() { return VALUE; }\n")
    project.write(f"../{ONE}/plain/plain.h", "#define VALUE 1\n")
    make = "-c n.cpp"
    project.compile(f"-I{root / ONE}/plain", make=make)
    (root / ONE).rename(root / TWO)
    assert project.compile(f"-I{root / TWO}/plain", make=make) != KNOWN


def test_random_names_are_found_in_include_folders() -> None:
    env = "/tmp/pip-build-env-k2j_h3g4"
    uv = "/root/.cache/uv/builds-v0/.tmpAb3dE9"
    sdist = f"/tmp/pip-install-01234567/foo_{'0a' * 16}"
    words = (
        *(f"-I{env}/overlay/a", "-isystem", f"{env}/overlay/b", f"-isystem={uv}/c"),
        *("-I", f"{sdist}/include", "--include-path=/usr/include", "-I", "relative"),
        *(f"-I{env}", f"-I{env}/../b", f"-DPLACE={env}/b", "-include", f"{env}/b.h"),
        *("-I", "-I", f"{env}/b", "-I"),
    )
    options = CommandLine(words).options
    found = find_prefix_map(options, real_path=str)
    assert found.isolated == (env, uv, sdist)
    hidden = map_options(options, found)
    assert hidden[:6] == (
        *("-I<isolated 1>/overlay/a", "-isystem", "<isolated 1>/overlay/b"),
        *("-isystem=<isolated 2>/c", "-I", "<isolated 3>/include"),
    )
    # A macro's value may be code, and a forced include is a source like any other.
    assert hidden[6:] == words[6:]


@pytest.mark.parametrize(
    ("flags", "is_hidden"), [((), True), (("-lineinfo",), False), (("-dlto",), False)]
)
def test_names_count_with_line_information(flags: tuple[str, ...], is_hidden: bool) -> None:
    keys = set()
    for name in (ONE, TWO):
        command = CommandLine(("-c", "k.cu", "-I", f"/tmp/{name}/a", *flags))
        request = compile_request(
            command,
            nvcc="/cuda/bin/nvcc",
            driver=(),
            cwd=Path("/project"),
            environment={},
            salt="",
            version="1",
            prefixes=find_prefix_map(command.dryrun_options, real_path=str),
        )
        assert request is not None
        assert bool(request.prefixes.isolated) is is_hidden
        keys.add(request.key)
    assert len(keys) == (1 if is_hidden else 2)


def test_a_folder_with_a_link_in_it_keeps_its_name() -> None:
    words = ("-I/tmp/tmp01234567/a", "-I/tmp/tmp01234567/b", "-I/tmp/tmp76543210/c")
    links = {"/tmp/tmp01234567/b": "/usr/include"}
    options = CommandLine(words).options
    found = find_prefix_map(options, real_path=lambda path: links.get(path, path))
    assert found == PrefixMap(("/tmp/tmp76543210",))
    options = CommandLine(("-c", "k.cu")).options
    assert find_prefix_map(options, real_path=str) == PrefixMap()


def test_names_are_hidden_and_restored() -> None:
    # One folder may be below another one.
    one, two = "/tmp/tmp00000001", "/tmp/tmp00000001/build-env-00000002"
    isolated, later = PrefixMap((one, two)), PrefixMap(("/x/tmp1", "/y/tmp2"))
    entry = ManifestRow(
        files=((f"{two}/a.h", "d"), ("k.cu", "e"), (f"{one}/b.h", "f")),
        folders=(f"{two}", "", one),
        shadowing=(f"{one}/z.h", f"{two}/a.h"),
    )
    hidden = isolated.map_row(entry)
    assert [path for path, _ in hidden.files] == ["<isolated 2>/a.h", "k.cu", "<isolated 1>/b.h"]
    assert isolated.unmap_row(hidden) == entry._replace(shadowing=tuple(sorted(entry.shadowing)))
    assert later.unmap_row(hidden).shadowing == ("/x/tmp1/z.h", "/y/tmp2/a.h")
    text = f'# 1 "{two}/a.h" 1\n{one}/b.h(3): warning\n'.encode()
    found = isolated.map_text(text)
    assert found == b'# 1 "<isolated 2>/a.h" 1\n<isolated 1>/b.h(3): warning\n'
    assert later.unmap_text(found) == text.replace(two.encode(), b"/y/tmp2").replace(
        one.encode(), b"/x/tmp1"
    )
    # No way back, or a name that begins no path.
    assert isolated.map_text(b"<isolated 1>/a.h") is None
    assert isolated.map_text(f"/mnt{one}/a.h".encode()) is None


@pytest.mark.parametrize(
    ("text", "may"),
    [
        (b'#include "a.h"\n', False),
        (b"#include <a.h>\n", False),
        (b'#include "a.h"\n#include NAME\n', True),
        (b"#include <a.h>\n# include /* x */ NAME(a)\n", True),
        (b'#include "/work/top/a.h"\n', True),
        (b'#include "/work/topmost/a.h"\n', False),
        (b"int include = NAME;\n", False),
    ],
)
def test_includes_by_macros_and_absolute_names_are_found(text: bytes, *, may: bool) -> None:
    assert PrefixMap(bases=("/work/top",)).may_include_by_base(text) is may
    assert not PrefixMap().may_include_by_base(text)


def test_names_in_code_are_found() -> None:
    isolated = PrefixMap(("/tmp/tmp00000001",))
    marker = b'# 1 "/tmp/tmp00000001/a.h" 1\n'
    assert not isolated.has_folder_in_code(marker + b"int a;\n")
    assert isolated.has_folder_in_code(marker + b'const char *a = "/tmp/tmp00000001/a.h";\n')
    assert isolated.has_folder_in_code(marker + b"auto a = __builtin_FILE();\n")
    assert not PrefixMap().has_folder_in_code(b"auto a = __builtin_FILE();\n")
