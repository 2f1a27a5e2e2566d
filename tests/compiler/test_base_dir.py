"""``base-dir``: results don't have the checkout's name, and another checkout has hits."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from wrapper_project import KNOWN, Project, ran, settle

from archsplit.cache.entry import CacheEntry
from archsplit.compiler.direct_cache import (
    _DEPFILE,
    CompletedCompile,
    _mapped_entry,
    _target_cpu_seconds,
)
from archsplit.compiler.direct_hit import find_base_dirs
from archsplit.compiler.keys import compile_request
from archsplit.compiler.prefix_map import NO_PREFIXES, PrefixMap, find_prefix_map, map_options
from archsplit.nvcc.cmdline import CommandLine
from source_roots import SOURCE_PATH

if TYPE_CHECKING:
    from collections.abc import Iterator

NVCC = pytest.mark.nvcc
KERNEL = """\
#include <cassert>
#include "h.h"
static __global__ void kernel(int *p) { int unused; assert(p); p[threadIdx.x] = VALUE; }
const char *run(int *p) { kernel<<<1, 32>>>(p); return file(); }
"""
HEADER = """\
#pragma once
#define VALUE 1
inline const char *file() { return __FILE__; }
"""
ASSERT = """\
#pragma GCC system_header
#include_next <assert.h>
#undef assert
#define assert(expr) (static_cast <bool> (expr) ? void (0) : \\
    __assert_fail (#expr, __builtin_FILE (), __builtin_LINE (), __extension__ __PRETTY_FUNCTION__))
"""
"""Of glibc 2.38 and newer; older ones have ``__FILE__``."""
CHECK = "inline __host__ __device__ void check(int a) { assert(a); }\n"
PLAIN = "#include <h.h>\nconst char *run() { return file() + VALUE; }\n"


@pytest.fixture
def project(tmp_path: Path, request: pytest.FixtureRequest) -> Project:
    toolkit = request.getfixturevalue("toolkit")
    made = Project(
        folder=tmp_path / "one",
        store=tmp_path / "store",
        nvcc=toolkit.nvcc,
        extra={"ARCHSPLIT_CACHE_BASE_DIR": "auto"},
    )
    made.write(".git/HEAD", "ref: refs/heads/main\n")
    made.write("src/k.cu", KERNEL)
    made.write("src/n.cpp", PLAIN)
    made.write("inc/h.h", HEADER)
    return made


def checkout(project: Project, name: str) -> Project:
    """Copy the sources to another folder."""
    other = replace(project, folder=project.folder.parent / name)
    shutil.copytree(project.folder, other.folder, ignore=shutil.ignore_patterns("*.o", "*.d"))
    settle()
    return other


def compile_by_absolute_names(project: Project, source: str, *flags: str) -> tuple[str, ...]:
    make = f"-MD -MF {project.folder}/k.d -I{project.folder}/inc -c {project.folder}/src/{source}"
    return project.compile(*flags, make=make)


def made(project: Project) -> bytes:
    return (project.folder / "k.o").read_bytes()


def is_fresh(project: Project, source: str, *flags: str) -> bool:
    """Return True if the object is equal to one that an empty cache gives."""
    content = made(project)
    empty = replace(project, store=project.store.with_name("empty"))
    shutil.rmtree(empty.store, ignore_errors=True)
    lines = compile_by_absolute_names(empty, source, *flags)
    return made(project) == content and KNOWN[0] not in lines


@NVCC
@pytest.mark.parametrize("source", ["k.cu", "n.cpp"])
def test_another_checkout_has_hits_with_its_own_names_and_the_same_bytes(
    project: Project, source: str
) -> None:
    flags = ("-arch=sm_80", "-O2", "-g")
    first = compile_by_absolute_names(project, source, *flags)
    other = checkout(project, "another")
    second = compile_by_absolute_names(other, source, *flags)
    assert second[-1:] == KNOWN, second
    assert made(other) == made(project)
    assert str(project.folder).encode() not in made(other)
    # Rules for make and warnings are of this folder.
    assert f"{other.folder}/src/{source}" in (other.folder / "k.d").read_text()
    for text in ((other.folder / "k.d").read_text(), "\n".join(second)):
        assert str(project.folder) not in text
    assert any(f"{project.folder}/src/k.cu(3): warning" in line for line in first) is (
        source == "k.cu"
    )
    assert [line for line in first if "warning" in line] == [
        line.replace(str(other.folder), str(project.folder)) for line in second if "warning" in line
    ]
    assert is_fresh(other, source, *flags)


@NVCC
@pytest.mark.parametrize("flags", [("-O2", "-g"), ("-O2",)])
def test_asserts_of_new_glibc_are_shared(project: Project, flags: tuple[str, ...]) -> None:
    project.write("inc/assert.h", ASSERT)
    project.write("inc/check.h", CHECK)
    source = KERNEL.replace("<cassert>", "<assert.h>\n#include <check.h>")
    project.write("src/k.cu", source.replace("return file", "assert(p); check(*p); return file"))
    compile_by_absolute_names(project, "k.cu", "-arch=sm_80", *flags)
    other = checkout(project, "another")
    lines = compile_by_absolute_names(other, "k.cu", "-arch=sm_80", *flags)
    assert lines[-1:] == KNOWN, lines
    assert made(other) == made(project)
    assert b"src/k.cu\0" in made(other)
    assert str(project.folder).encode() not in made(other)
    assert is_fresh(other, "k.cu", "-arch=sm_80", *flags)


@NVCC
def test_another_checkout_reuses_steps_after_an_edit(project: Project) -> None:
    # A warning would have other line numbers.
    project.write("src/k.cu", KERNEL.replace("int unused;", ""))
    compile_by_absolute_names(project, "k.cu", "-arch=sm_80")
    other = checkout(project, "another")
    other.write("inc/h.h", HEADER.replace("#pragma", "// A comment.\n#pragma"))
    lines = compile_by_absolute_names(other, "k.cu", "-arch=sm_80")
    assert "cicc compute_80" not in ran(lines)
    assert "ptxas sm_80" not in ran(lines)
    assert any(line.startswith("inc/h.h") or "h.h has changed" in line for line in lines), lines
    assert is_fresh(other, "k.cu", "-arch=sm_80")


@NVCC
@pytest.mark.parametrize(
    ("text", "flags", "reason"),
    [
        ("#define ME __builtin_FILE()\n", (), "__builtin_FILE"),
        ('#define ME __FILE__\n#define H "h.h"\n#include H\n', (), "includes a file by a macro"),
        ("#define ME __FILE__\n", ("-lineinfo",), "cicc -generate-line-info writes file names"),
        ("#define ME __FILE__\n", ("-G",), "cicc"),
        ("#define ME __FILE__\n", ("-dlto", "-rdc=true"), "cicc"),
        ("#define ME __FILE__\n", ("-DROOT={folder}",), "flag"),
    ],
)
def test_result_with_the_folders_name_is_not_shared(
    project: Project, text: str, flags: tuple[str, ...], reason: str
) -> None:
    project.write("src/k.cu", f"{text}const char *own() {{ return ME; }}\n{KERNEL}")
    for each in (project, checkout(project, "another")):
        words = ("-arch=sm_80", *(flag.format(folder=each.folder) for flag in flags))
        lines = compile_by_absolute_names(each, "k.cu", *words)
        assert KNOWN[0] not in lines
        if reason != "flag" or each is not project:
            assert any(reason in line for line in lines), lines
        assert KNOWN[0] in compile_by_absolute_names(each, "k.cu", *words)
        assert is_fresh(each, "k.cu", *words)


@NVCC
def test_another_checkouts_own_files_count(project: Project) -> None:
    def compile_with_early(each: Project) -> tuple[str, ...]:
        folders = f"-I{each.folder}/early -I{each.folder}/inc"
        return each.compile(make=f"{folders} -c src/n.cpp")

    compile_with_early(project)
    other = checkout(project, "another")
    other.write("early/h.h", HEADER.replace("VALUE 1", "VALUE 2"))
    assert KNOWN[0] not in compile_with_early(other)
    assert made(other) != made(project)
    compile_by_absolute_names(project, "n.cpp")
    changed = checkout(project, "third")
    changed.write("inc/h.h", HEADER.replace("VALUE 1", "VALUE 3"))
    assert KNOWN[0] not in compile_by_absolute_names(changed, "n.cpp")
    assert made(changed) != made(project)


@NVCC
def test_linked_folder_in_another_checkout_is_a_miss(project: Project) -> None:
    # gcc leaves out a folder that it has twice, and then the other one comes first.
    for name, number in (("a", 1), ("b", 2), ("c", 1)):
        project.write(f"{name}/h.h", HEADER.replace("VALUE 1", f"VALUE {number}"))

    def compile_with_folders(each: Project) -> tuple[str, ...]:
        folders = (f"-I{each.folder}/a", "-isystem", f"{each.folder}/b", "-isystem")
        return each.compile(*folders, f"{each.folder}/c", make="-c src/n.cpp")

    compile_with_folders(project)
    other = checkout(project, "another")
    shutil.rmtree(other.folder / "c")
    (other.folder / "c").symlink_to("a")
    settle()
    assert KNOWN[0] not in compile_with_folders(other)
    assert made(other) != made(project)


@NVCC
def test_header_named_by_the_other_checkouts_path_is_a_miss(project: Project) -> None:
    project.write("src/n.cpp", PLAIN.replace("<h.h>", f'"{project.folder}/inc/h.h"'))
    compile_by_absolute_names(project, "n.cpp")
    other = checkout(project, "another")
    project.write("inc/h.h", HEADER.replace("VALUE 1", "VALUE 2"))
    assert KNOWN[0] not in compile_by_absolute_names(other, "n.cpp")
    assert is_fresh(other, "n.cpp")


@NVCC
def test_units_of_one_checkout_have_different_names(project: Project) -> None:
    """Equal sources in two folders, whose device code is linked, keep symbols apart."""
    for folder in ("x", "y"):
        project.write(f"{folder}/k.cu", "static __device__ int state; __global__ void k() {}\n")
    symbols = []
    for folder in ("x", "y"):
        project.compile("-arch=sm_80", make=f"-dc {project.folder}/{folder}/k.cu")
        symbols.append(made(project))
    assert symbols[0] != symbols[1]
    other = checkout(project, "another")
    for folder, content in zip(("x", "y"), symbols, strict=True):
        lines = other.compile("-arch=sm_80", make=f"-dc {other.folder}/{folder}/k.cu")
        assert lines[-1:] == KNOWN
        assert made(other) == content


@NVCC
@pytest.mark.skipif(shutil.which("gdb") is None, reason="needs gdb")
@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("n.cpp", "const char *run() { return file() + VALUE; }"),
        ("k.cu", "const char *run(int *p) { kernel<<<1, 32>>>(p); return file(); }"),
    ],
)
def test_debugger_finds_the_sources_of_a_hit(project: Project, source: str, line: str) -> None:
    flags = ("-g", "-arch=sm_80")
    compile_by_absolute_names(project, source, *flags)
    other = checkout(project, "another")
    assert compile_by_absolute_names(other, source, *flags)[-1:] == KNOWN
    shutil.rmtree(project.folder)
    header = "inline const char *file() { return __FILE__; }"
    for function, file, text in (("run", f"src/{source}", line), ("file", "inc/h.h", header)):
        argv = ["gdb", "-nx", "-batch", "-ex", f"list {function}", "-ex", "info source", "k.o"]
        done = subprocess.run(argv, cwd=other.folder, capture_output=True, text=True, check=True)
        assert text in done.stdout
        assert f"Located in {other.folder}/{file}" in done.stdout


OTHER_USER = 65534


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that all users can enter."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@NVCC
@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root, and setpriv"
)
def test_another_user_has_hits_and_changes_nothing_in_the_store(
    project: Project, public_folder: Path
) -> None:
    def compile_as(user: int, folder: Path) -> str:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, user, user)
        # Root's interpreter may be in a folder that others can't read: reading is allowed.
        rights = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
        switch = ("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", *rights)
        launch = (sys.executable, "-c", "from archsplit.cli.nvcc import launcher; launcher()")
        words = (str(project.nvcc), "-arch=sm_80", f"-I{folder}/inc", "-c", f"{folder}/src/k.cu")
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "TMPDIR": str(folder),
            "PYTHONPATH": SOURCE_PATH,
            "XDG_RUNTIME_DIR": str(folder),
            "ARCHSPLIT_CACHE_DIR": str(public_folder / "store"),
            "ARCHSPLIT_CACHE_BASE_DIR": "auto",
            "ARCHSPLIT_NVCC_OPTIONS": "--explain",
        }
        argv = (*switch, *launch, *words)
        done = subprocess.run(
            argv, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stderr

    one, two = public_folder / "one", public_folder / "two"
    for folder in (one, two):
        shutil.copytree(project.folder, folder)
    settle()
    assert KNOWN[0] not in compile_as(0, one)
    before = {path: path.stat().st_mtime_ns for path in (public_folder / "store").rglob("*")}
    assert KNOWN[0] in compile_as(OTHER_USER, two)
    assert (two / "k.o").read_bytes() == (one / "k.o").read_bytes()
    assert (two / "k.o").stat().st_uid == OTHER_USER
    # A miss is compiled, and can't be stored.
    (two / "inc/h.h").write_text(HEADER.replace("VALUE 1", "VALUE 2"))
    settle()
    for _ in range(2):
        assert KNOWN[0] not in compile_as(OTHER_USER, two)
        assert (two / "k.o").read_bytes() != (one / "k.o").read_bytes()
    after = {path: path.stat().st_mtime_ns for path in (public_folder / "store").rglob("*")}
    assert after == before


@NVCC
def test_moved_top_of_the_tree_is_a_miss(project: Project) -> None:
    compile_by_absolute_names(project, "n.cpp")
    assert KNOWN[0] in compile_by_absolute_names(project, "n.cpp")
    (project.folder / ".git").rename(project.folder.parent / ".git")
    assert KNOWN[0] not in compile_by_absolute_names(project, "n.cpp")
    assert b"one/inc/h.h" in made(project)


def test_base_is_the_source_tree_or_the_users_choice(tmp_path: Path) -> None:
    top, build = tmp_path / "top", tmp_path / "build"
    for folder in (top / "src/deep", top / "build/sub", build / "sub"):
        folder.mkdir(parents=True)

    def found(folder: Path) -> list[str]:
        return find_base_dirs("auto", (str(folder), str(folder)))

    assert found(top / "src/deep") == []
    # A build folder names its source folder; without git, that is the top.
    cache = f"// A comment.\nCMAKE_HOME_DIRECTORY:INTERNAL={top}/src\n"
    (build / "CMakeCache.txt").write_text(cache)
    assert found(build / "sub") == [f"{top}/src", str(build)]
    (top / ".git").write_text("gitdir: elsewhere\n")
    assert found(top / "src/deep") == [str(top)]
    assert found(build / "sub") == [str(top), str(build)]
    (top / "build/CMakeCache.txt").write_text(cache)
    assert found(top / "build/sub") == [str(top)]
    (build / "CMakeCache.txt").write_text("nothing\n")
    assert found(build / "sub") == []
    (tmp_path / "link").symlink_to("top")
    assert find_base_dirs(f"{tmp_path}/link", ("/", "/")) == [f"{tmp_path}/link", str(top)]
    assert find_base_dirs("", (str(top), str(top))) == []
    assert find_base_dirs("/a=b", ("/", "/")) == []


def test_arguments_lose_the_names_of_bases_but_macros_keep_them() -> None:
    hidden = PrefixMap(bases=("/w/a",))
    words = (
        *("-I/w/a/inc", "-I", "/w/a", "-isystem=/w/a/b", "-include", "/w/a/c.h", "/w/a/k.cu"),
        *("-Xcompiler", "-O2,-I/w/a/d,-ffile-prefix-map=/w/a/e=/x", "-Xcompiler=-I/w/a,-g"),
    )
    assert map_options(CommandLine(words).options, hidden) == tuple(
        word.replace("/w/a", "<base 1>") for word in words
    )
    kept = (
        *("-DR=/w/a/b", "-D", "R=/w/a", "-Xcompiler", "-DR=/w/a", "-I/w/ab", "-ccbin", "/w/a/g++"),
        *("-I.", "k.cu", "-I/x/w/a"),
    )
    assert map_options(CommandLine(kept).options, hidden) == kept
    assert hidden.map_argument("/w/a/k.cu", "--orig_src_file_name") == "<base 1>/k.cu"
    assert hidden.map_argument("/w/a/k.cu", "-o") == "/w/a/k.cu"
    assert PrefixMap().map_argument("-I/w/a") == "-I/w/a"


def test_keys_of_two_checkouts_are_equal_with_the_setting_only(tmp_path: Path) -> None:
    def key(base: Path, *flags: str, is_set: bool = True) -> str:
        command = CommandLine(("-c", f"{base}/k.cu", "-o", f"{base}/k.o", *flags))
        bases = (str(base),) if is_set else ()
        request = compile_request(
            command,
            nvcc=f"{base}/cuda/bin/nvcc",
            driver=(),
            cwd=base / "build",
            environment={},
            salt="",
            version="1",
            prefixes=find_prefix_map(command.dryrun_options, bases, real_path=str),
            bases=bases,
        )
        assert request is not None
        return request.key

    one, two = tmp_path / "one", tmp_path / "two"
    for flags in ((), ("-g",), ("-rdc=true",)):
        assert key(one, *flags) == key(two, *flags)
        assert key(one, *flags, is_set=False) != key(two, *flags, is_set=False)
        # Results have other names of files.
        assert key(one, *flags) != key(one, *flags, is_set=False)


@pytest.mark.parametrize(
    ("words", "is_hidden"),
    [
        (("-I/w/a/inc", "k.cu"), True),
        (("-I/w/a/inc/../b", "/w/a/k.cu"), True),
        # The unit's name has the path from the base.
        (("/w/k.cu",), False),
        (("../../k.cu",), False),
        # A link leads out of the base.
        (("-I/w/a/link", "k.cu"), False),
        (("-I/w/a/../b", "k.cu"), False),
    ],
)
def test_base_is_hidden_only_if_all_paths_are_below_it(
    words: tuple[str, ...], *, is_hidden: bool
) -> None:
    found = find_prefix_map(
        CommandLine(words).options,
        ("/w/a",),
        cwd="/w/a/build",
        real_path=lambda path: os.path.normpath(path).replace("/w/a/link", "/other"),
    )
    assert found.bases == (("/w/a",) if is_hidden else ())


def test_line_markers_lose_the_names_of_bases_and_get_them_back() -> None:
    hidden, later = PrefixMap(bases=("/w/a",)), PrefixMap(bases=("/b",))
    text = b'# 1 "/w/a/k.cu"\n# 0 "/w/ab/k.h"\n# 3 "/w/a" 2\nint a;\n'
    found = hidden.map_markers(text)
    assert found is not None
    assert later.unmap_markers(found) == text.replace(b'"/w/a/', b'"/b/').replace(
        b'"/w/a"', b'"/b"'
    )
    assert hidden.map_markers(b'# 1 "/w/a/k.cu"\nconst char *a = "/w/a";\n') is None
    assert hidden.map_markers(text + b"auto a = __builtin_FILE();\n") is None
    assert hidden.map_markers(text + b"void _GLOBAL__sub_I__w_a_n();\n") is None
    # What looks like a marker is printed by the code.
    assert hidden.map_markers(b'const char *a = R"(\n# 1 "/w/a/k.cu"\n)";\n') is None
    # Only the toolkit's own code asks.
    assert hidden.map_markers(b"int a = __builtin_FILE() ? 1 : 2;\n") is not None
    assert PrefixMap().map_markers(text) == text


def test_base_below_another_base_has_its_own_name() -> None:
    hidden, later = PrefixMap(bases=("/w", "/w/a")), PrefixMap(bases=("/b", "/c"))
    found = hidden.map_markers(b'# 1 "/w/a/k.cu"\n# 0 "/w/k.h"\n')
    assert found is not None
    assert later.unmap_markers(found) == b'# 1 "/c/k.cu"\n# 0 "/b/k.h"\n'


def test_include_by_an_absolute_name_is_detected() -> None:
    hidden = PrefixMap(bases=("/w/a",))
    for text in (
        b'#include "/w/a/h.h"\n',
        b"#include H\n",
        b"  %:  include_next H\n",
        b"# /* a */ import/* b */ H(x)\n",
        b"??=include H\n",
    ):
        assert hidden.may_include_by_base(text), text
        assert not PrefixMap().may_include_by_base(text)
    assert not hidden.may_include_by_base(b'#include <h.h>\n#  include "/w/b/h.h"\n#define a\n')


def test_names_of_bases_are_found_in_results_and_messages() -> None:
    hidden = PrefixMap(("/tmp/tmp00000001",), bases=("/w/a",))
    assert hidden.has_folder(b"..._GLOBAL__sub_I__w_a_n.cpp...")
    assert hidden.has_folder(b".../w/a/n.cpp...")
    assert not hidden.has_folder(b"a/w")
    message = "/w/a/k.cu(3): warning\n"
    found = hidden.map_message(message)
    assert found == "<base 1>/k.cu(3): warning\n"
    assert hidden.unmap_message(found) == message
    assert hidden.map_message("in /w/a: warning") is None
    assert hidden.map_path("/w/a") == "<base 1>"
    assert hidden.unmap_path("<base 1>") == "/w/a"
    assert hidden.gcc_name(b"/w/a/k.cu") == b"k.cu"
    assert hidden.gcc_name(b"/w/ab/k.cu") == b"/w/ab/k.cu"
    assert hidden.gcc_flags == ("-ffile-prefix-map=/w/a=.", "-ffile-prefix-map=/w/a/=")


def test_entry_loses_the_names_of_bases_in_rules_and_messages() -> None:
    entry = CacheEntry(
        components=(),
        files={"k.o": b"code", f"{_DEPFILE}k.d": b"k.o: /w/a/k.cu\n"},
        stdout="/w/a/k.cu\n",
        stderr="/w/a/k.cu(3): warning\n",
    )
    mapped = _mapped_entry(entry, PrefixMap(bases=("/w/a",)))
    assert mapped is not None
    assert dict(mapped.files) == {"k.o": b"code", f"{_DEPFILE}k.d": b"k.o: <base 1>/k.cu\n"}
    assert (mapped.stdout, mapped.stderr) == ("<base 1>/k.cu\n", "<base 1>/k.cu(3): warning\n")
    assert _mapped_entry(entry, NO_PREFIXES) is entry


@pytest.mark.parametrize(
    "named",
    [
        {"stdout": "in /w/a\n"},
        {"stderr": "in /w/a\n"},
        {"files": {"k.o": b"/w/a/k.cu"}},
        {"files": {"k.o": b"code", f"{_DEPFILE}k.d": b"/w/a"}},
    ],
)
def test_entry_with_a_base_in_it_is_not_shared(named: dict[str, object]) -> None:
    entry = CacheEntry(components=(), files={"k.o": b"code"})._replace(**named)  # type: ignore[arg-type] # by name
    assert _mapped_entry(entry, PrefixMap(bases=("/w/a",))) is None


@pytest.mark.parametrize(
    ("whole", "least", "share"), [(9.0, 1.0, 2.25), (9.0, 3.0, 3.0), (2.0, 3.0, 2.0)]
)
def test_seconds_of_a_compilation_are_shared_by_its_targets(
    whole: float, least: float, share: float
) -> None:
    done = CompletedCompile(
        outputs={target: {} for target in "abcd"},
        texts=(),
        host_depfiles=(),
        commands=(),
        environment={},
        private=Path(),
        began=0,
        stdout="",
        stderr="",
        cpu_seconds=whole,
    )
    assert _target_cpu_seconds(done, least) == share
