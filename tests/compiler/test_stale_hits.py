"""Attacks on what a compilation is known by: whatever changes, no old object comes out.

Most compile plain C++ through nvcc, which is quick and takes the same way.
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from wrapper_project import KNOWN, SOURCE, Project, ran, settle, toolkit_of_links

from archsplit.cache import usage
from archsplit.cache.file_digests import FileDigests
from archsplit.compiler import machine_facts
from archsplit.compiler.tool_identity import ToolIdentities
from archsplit.system.process import SubprocessRunner

if TYPE_CHECKING:
    from collections.abc import Callable

    from archsplit.cache.entry import KeyComponent
    from archsplit.nvcc.toolkit import Toolkit
    from archsplit.system.process import Command, CompletedProcess

pytestmark = pytest.mark.nvcc

PLAIN = "-c src/n.cpp"
TEXT = "#include <v.h>\nint n() { return VALUE; }\n"


@pytest.fixture(params=["", pytest.param("{folder}/one", marks=pytest.mark.stress)])
def project(tmp_path: Path, toolkit: Toolkit, request: pytest.FixtureRequest) -> Project:
    """A source whose header is in one of several folders, also with ``base-dir``."""
    made = Project(
        folder=tmp_path / "one",
        store=tmp_path / "store",
        nvcc=toolkit.nvcc,
        extra={"ARCHSPLIT_CACHE_BASE_DIR": request.param.format(folder=tmp_path)},
    )
    made.write("src/n.cpp", TEXT)
    made.write("late/v.h", value(1))
    return made


def value(number: int) -> str:
    return f"#define VALUE {number}\n"


def known(project: Project, *flags: str, make: str = PLAIN) -> None:
    """Compile, and be sure that it is known from now on."""
    project.compile(*flags, make=make)
    assert KNOWN[0] in project.compile(*flags, make=make)


def is_new(project: Project, *flags: str, make: str = PLAIN) -> bool:
    """Return True if the object differs from the last one, and equals a fresh build's."""
    old = (project.folder / "k.o").read_bytes()
    lines = project.compile(*flags, make=make)
    assert KNOWN[0] not in lines
    return project.is_fresh(*flags, make=make) and (project.folder / "k.o").read_bytes() != old


def to_link(place: Path, to: str) -> None:
    place.unlink(missing_ok=True)
    place.symlink_to(to)
    settle()


def a_dangling_link(folder: Path) -> Callable[[], object]:
    (folder / "early").mkdir()
    (folder / "early/v.h").symlink_to("gone.h")
    return lambda: (folder / "early/gone.h").write_text(value(2))


def a_folder_of_that_name(folder: Path) -> Callable[[], object]:
    (folder / "early/v.h").mkdir(parents=True)

    def change() -> None:
        (folder / "early/v.h").rmdir()
        (folder / "early/v.h").write_text(value(2))

    return change


def a_file_instead_of_a_folder(folder: Path) -> Callable[[], object]:
    (folder / "early").write_text("")

    def change() -> None:
        (folder / "early").unlink()
        (folder / "early").mkdir()
        (folder / "early/v.h").write_text(value(2))

    return change


def a_link_to_a_folder_that_is_there_twice(folder: Path) -> Callable[[], object]:
    (folder / "other").mkdir()
    (folder / "other/v.h").write_text(value(2))
    (folder / "first").mkdir()
    (folder / "early").symlink_to("first")
    return lambda: to_link(folder / "early", "other")


def a_folder_above_one_behind_a_link(folder: Path) -> Callable[[], object]:
    (folder / "far/deep").mkdir(parents=True)
    (folder / "link").symlink_to("far/deep")
    return lambda: (folder / "far/v.h").write_text(value(2))


@pytest.mark.parametrize(
    "attack",
    [
        a_dangling_link,
        a_folder_of_that_name,
        a_file_instead_of_a_folder,
        a_link_to_a_folder_that_is_there_twice,
        a_folder_above_one_behind_a_link,
    ],
)
def test_newly_shadowing_header_is_a_miss(
    project: Project, attack: Callable[[Path], Callable[[], object]]
) -> None:
    change = attack(project.folder)
    flags = ("-Ifirst", "-Iearly", "-Ilink/..", "-Ilate")
    known(project, *flags)
    change()
    settle()
    assert is_new(project, *flags)


@pytest.mark.parametrize("suffix", ["cpp", "cu"])
@pytest.mark.parametrize("place", ["source", "header"])
@pytest.mark.parametrize("exists", [False, True])
def test_has_include_with_absolute_name_misses_after_change(
    project: Project, tmp_path: Path, suffix: str, place: str, *, exists: bool
) -> None:
    flag_file = tmp_path / "etc" / "flag.h"
    flag_file.parent.mkdir()
    name = f'"{flag_file}"'
    test = f"#if __has_include({name})\n#define FOUND 1\n#else\n#define FOUND 0\n#endif\n"
    project.write("late/asks.h", test if place == "header" else "")
    body = "" if place == "header" else test
    project.write(f"n.{suffix}", f"#include <asks.h>\n{body}int n() {{ return FOUND; }}\n")
    flags = ["-Ilate"]
    if exists:
        flag_file.write_text("")
        settle()
    known(project, *flags, make=f"-c n.{suffix}")
    if exists:
        flag_file.unlink()
    else:
        flag_file.write_text("")
    settle()
    assert is_new(project, *flags, make=f"-c n.{suffix}")


@pytest.mark.parametrize("suffix", ["cpp", "cu"])
@pytest.mark.parametrize("place", ["macro", "flag"])
def test_has_include_with_macro_is_never_a_hit(project: Project, suffix: str, place: str) -> None:
    define = "#define CFG <flag.h>\n" if place == "macro" else ""
    project.write(f"n.{suffix}", f"{define}#if __has_include(CFG)\nint n;\n#endif\n")
    flags = ["-Ilate", *(["-DCFG=<flag.h>"] if place == "flag" else [])]
    for _ in range(2):
        assert KNOWN[0] not in project.compile(*flags, make=f"-c n.{suffix}")


@pytest.mark.parametrize("make", [PLAIN, "-c k.cu -arch=sm_80"])
def test_debug_information_names_working_folder_of_this_call(
    project: Project, tmp_path: Path, make: str
) -> None:
    project.write("h.h", value(1))
    project.write("k.cu", SOURCE)
    (tmp_path / "link").symlink_to(project.folder)
    flags = ("-Ilate", "-g")
    known(replace(project, extra={**project.extra, "PWD": str(project.folder)}), *flags, make=make)
    other = replace(project, extra={**project.extra, "PWD": f"{tmp_path}/link"})
    assert is_new(other, *flags, make=make)
    assert f"{tmp_path}/link".encode() in (project.folder / "k.o").read_bytes()


def test_wrong_pwd_is_ignored(project: Project, tmp_path: Path) -> None:
    known(replace(project, extra={**project.extra, "PWD": str(project.folder)}), "-Ilate", "-g")
    other = replace(project, extra={**project.extra, "PWD": str(tmp_path)})
    assert other.compile("-Ilate", "-g", make=PLAIN) == KNOWN


def test_forced_include_is_searched_in_the_working_folder(project: Project) -> None:
    flags = ("-include", "v.h", "-Ilate")
    known(project, *flags)
    project.write("v.h", value(2))
    assert KNOWN[0] not in project.compile(*flags, make=PLAIN)
    # It is found first, but `#include <v.h>` isn't looked for there.
    project.write("src/n.cpp", "int n() { return VALUE; }\n")
    assert is_new(project, *flags)


def test_include_with_dots_is_searched_in_all_folders(project: Project) -> None:
    project.write("src/n.cpp", TEXT.replace("<v.h>", '"../common/v.h"'))
    project.write("x/common/v.h", value(1))
    project.write("x/inc/README", "")
    known(project, "-Ix/inc")
    project.write("common/v.h", value(2))
    assert is_new(project, "-Ix/inc")


def test_c_has_folders_of_its_own(project: Project) -> None:
    project.write("n.c", "#include <v.h>\nint n(void) { return VALUE; }\n")
    (project.folder / "early").mkdir()
    here = replace(project, extra={**project.extra, "C_INCLUDE_PATH": "early:late"})
    known(here, make="-c n.c")
    here.write("early/v.h", value(2))
    assert is_new(here, make="-c n.c")


def test_new_precompiled_header_is_a_miss(project: Project) -> None:
    known(project, "-Ilate")
    (project.folder / "late/v.h.gch").write_bytes(b"none that gcc could use")
    settle()
    for _ in range(2):
        assert KNOWN[0] not in project.compile("-Ilate", make=PLAIN)


def test_unread_header_in_another_checkout_keeps_the_hit(project: Project, tmp_path: Path) -> None:
    project.write("later/v.h", value(3))
    flags = ("-Ilate", "-Ilater")
    known(project, *flags)
    base = project.extra["ARCHSPLIT_CACHE_BASE_DIR"].replace("/one", "/elsewhere/two")
    extra = {"ARCHSPLIT_CACHE_BASE_DIR": base}
    other = replace(project, folder=tmp_path / "elsewhere" / "two", extra=extra)
    shutil.copytree(project.folder, other.folder)
    assert other.compile(*flags, make=PLAIN) == KNOWN


@pytest.mark.parametrize("name", ["INCLUDES", "SYSTEM_INCLUDES"])
def test_variable_of_nvccs_profile_counts(project: Project, name: str) -> None:
    project.write("early/v.h", value(2))
    known(replace(project, extra={**project.extra, name: "-Ilate"}))
    assert is_new(replace(project, extra={**project.extra, name: "-Iearly"}))


def test_nvccs_profile_is_seen_without_cuda(project: Project, tmp_path: Path) -> None:
    here = replace(project, nvcc=toolkit_of_links(project.nvcc, tmp_path / "toolkit"))
    profile = here.nvcc.with_name("nvcc.profile")
    text = profile.read_text()
    project.write("early/v.h", value(2))

    def include(folder: str) -> None:
        line = f'INCLUDES += "-I{project.folder}/{folder}" $(_SPACE_)\n'
        profile.write_text(text.replace("INCLUDES ", f"{line}INCLUDES ", 1))
        settle()

    include("late")
    known(here)
    include("early")
    assert is_new(here)


def script(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
    settle()
    return path


def test_script_as_nvcc_may_start_another_nvcc(project: Project, tmp_path: Path) -> None:
    nvcc = script(tmp_path / "bin/nvcc", f'INCLUDES=-I$FOLDER exec "{project.nvcc}" "$@"')
    project.write("early/v.h", value(2))
    known(replace(project, nvcc=nvcc, extra={**project.extra, "FOLDER": "late"}))
    assert is_new(replace(project, nvcc=nvcc, extra={**project.extra, "FOLDER": "early"}))


def test_script_as_host_compiler_may_read_variables(project: Project, tmp_path: Path) -> None:
    gcc = script(tmp_path / "bin/gcc", f'exec {shutil.which("gcc")} $MORE "$@"')
    path = f"{gcc.parent}:{os.environ['PATH']}"
    known(replace(project, extra={**project.extra, "PATH": path}), "-Ilate")
    assert is_new(
        replace(project, extra={**project.extra, "PATH": path, "MORE": "-fno-pic -O2"}), "-Ilate"
    )


@pytest.mark.parametrize("by", ["COMPILER_PATH", "-B"])
def test_new_compiler_earlier_on_path_is_a_miss(project: Project, tmp_path: Path, by: str) -> None:
    asked = ["gcc", "-print-prog-name=cc1plus"]
    real = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    folder = tmp_path / "parts"
    folder.mkdir()
    flags = ("-Ilate", *(("-Xcompiler", f"-B{folder}/") if by == "-B" else ()))
    here = replace(project, extra={**project.extra, **({} if by == "-B" else {by: str(folder)})})
    known(here, *flags)
    script(folder / "cc1plus", f'exec {real} -O2 "$@"')
    assert is_new(here, *flags)


@pytest.mark.parametrize(
    ("text", "flag"),
    [
        ("const char *n() { return __TIME__; }\n", ""),
        ("const char *n() { return NOW; }\n", "-DNOW=__TIME__"),
        ("#define C(a, b) a##b\nconst char *C(__TI, ME)() { return C(__TI, ME__); }\n", ""),
        ("#define C(x) __##x##__\nconst char *n() { return C(TIME); }\n", ""),
        ("#define J(a, b, c) a##b##c\nconst char *n() { return J(__, DATE, __); }\n", ""),
        ("const char *n() { return __TIME\\\n__; }\n", ""),
        ("#define HAS __has_include\n#if HAS(<v.h>)\nint n;\n#endif\n", ""),
        ("%:/**/define HAS() __has_include\n#if HAS()(<v.h>)\nint n;\n#endif\n", ""),
        ('_Pragma("GCC dependency \\"../v.h\\"")\nint n;\n', ""),
        ("const char *n() { return __TIM\\ \nE\\\n__; }\n", ""),
        ('asm(".include \\"v.h\\"");\n', ""),
        ('#define DO "bin \\"v.h\\""\nasm(".inc" DO);\n', ""),
        ('#define S(x) #x\n#define T(x) S(.x "v.h")\nasm(T(incbin));\n', ""),
        ('asm(".i\\x6e" "cbin \\"v.h\\"");\n', ""),
        ('asm("\\56incbin \\"v.h\\"");\n', ""),
        ('asm(".macro d x\\n.\\\\x \\"v.h\\"\\n.endm\\nd incbin\\n");\n', ""),
        ('asm(".inc" "bin \\"v.h\\"");\n', ""),
    ],
)  # fmt: skip
def test_source_with_unlisted_reads_is_never_a_hit(project: Project, text: str, flag: str) -> None:
    project.write("src/n.cpp", text)
    project.write("v.h", "")
    flags = [flag] if flag else []
    for _ in range(2):
        assert KNOWN[0] not in project.compile(*flags, make=PLAIN)


@pytest.mark.parametrize(
    "text",
    [
        "#define C(x) __##x##__\nconst char *n() { return C(TIME); }\n",
        "const char *n() { return __DATE\\\n__; }\n",
        "#define J(a, b) a##b\n#define K(a, b) J(a, b)\n"
        "const char *n() { return K(K(_, _), K(TIMESTAMP, __)); }\n",
        '#define B "bin \\"v.h\\""\nasm(".in" "\\x63" B);\n',
    ],
)
def test_in_cuda_sources_they_are_never_known_either(project: Project, text: str) -> None:
    project.write("k.cu", text)
    project.write("v.h", "")
    flags = ("-arch=sm_80",)
    project.compile(*flags)
    assert KNOWN[0] not in project.compile(*flags)


def test_a_header_of_the_toolkit_may_begin_to_ask_the_time(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The age from which facts about a header are remembered.
    monkeypatch.setattr(usage, "TOO_NEW_NS", -(10**12))
    nvcc = toolkit_of_links(project.nvcc, project.folder.parent / "toolkit")
    include = nvcc.parent.parent / "include"
    include.unlink()
    include.mkdir()
    for path in (project.nvcc.parent.parent / "include").iterdir():
        (include / path.name).symlink_to(path)
    (include / "asks.h").write_text('#define ASKED "12:00"\n')
    project = replace(project, nvcc=nvcc)
    project.write("k.cu", "#include <asks.h>\n__device__ const char *k() { return ASKED; }\n")
    known(project, make="-c k.cu")
    (facts,) = project.store.glob("digests/*/headers-*")
    assert "/asks.h" in facts.read_text()
    (include / "asks.h").write_text("#define ASKED  __TIME__\n")
    settle()
    project.compile(make="-c k.cu")
    assert KNOWN[0] not in project.compile(make="-c k.cu")


def test_source_with_similar_macros_is_a_hit(project: Project) -> None:
    text = (
        'enum { TIME = 1, DATE };\nint n() { return TIME; }\nvoid *p() { asm("nop"); return 0; }\n'
    )
    project.write("src/n.cpp", text)
    known(project)
    project.write("k.cu", text)
    project.compile("-arch=sm_80")
    assert KNOWN[0] in project.compile("-arch=sm_80")


def edit_in_place(header: Path) -> None:
    header.write_text(value(2))


def rename_over(header: Path) -> None:
    new = header.with_name("new")
    new.write_text(value(2))
    new.rename(header)


def edit_by_another_name(header: Path) -> None:
    name = header.with_name("name")
    os.link(header, name)
    name.write_text(value(2))


def edit_mapped_memory(header: Path) -> None:
    with header.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        memory[:] = value(2).encode()


@pytest.mark.parametrize(
    "edit", [edit_in_place, rename_over, edit_by_another_name, edit_mapped_memory]
)
def test_header_with_its_old_size_and_time_is_a_miss(
    project: Project, edit: Callable[[Path], None]
) -> None:
    header = project.folder / "late/v.h"
    known(project, "-Ilate")
    before = header.stat()
    edit(header)
    os.utime(header, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert header.stat().st_size == before.st_size
    assert is_new(project, "-Ilate")


@pytest.mark.parametrize(
    ("flags", "swapped"),
    [
        ("-Iearly -Ilate", "-Ilate -Iearly"),
        ("-isystem early -Ilate", "-Iearly -isystem late"),
        ("-Xcompiler -idirafter,early -Ilate", "-Iearly -Xcompiler -idirafter,late"),
    ],
)
def test_another_order_of_include_folders_is_a_miss(
    project: Project, flags: str, swapped: str
) -> None:
    project.write("early/v.h", value(2))
    known(project, *flags.split())
    assert is_new(project, *swapped.split())


@pytest.mark.parametrize("name", ["CPATH", "CPLUS_INCLUDE_PATH"])
def test_header_in_a_folder_of_a_variable_is_a_miss(project: Project, name: str) -> None:
    (project.folder / "early").mkdir()
    here = replace(project, extra={**project.extra, name: "early:late"})
    known(here)
    here.write("early/v.h", value(2))
    assert is_new(here)


@pytest.mark.parametrize("makes_folder", [False, True])
@pytest.mark.parametrize("suffix", ["cpp", "cu"])
def test_retargeted_link_to_a_system_header_is_a_miss(
    project: Project, suffix: str, *, makes_folder: bool
) -> None:
    # GCC names the header by the link's target, because that is shorter.
    farm = project.folder / "farm" / "of_links"
    project.write("one/v.h", value(1))
    project.write("two/v.h", value(2))
    project.write(f"n.{suffix}", TEXT)
    farm.parent.mkdir()
    link = farm if makes_folder else farm / "v.h"
    link.parent.mkdir(exist_ok=True)
    targets = [f"{project.folder}/{name}" for name in ("one", "two")]
    first, second = targets if makes_folder else [f"{each}/v.h" for each in targets]
    to_link(link, first)
    flags = ("-isystem", str(farm))
    known(project, *flags, make=f"-c n.{suffix}")
    to_link(link, second)
    assert is_new(project, *flags, make=f"-c n.{suffix}")


def test_new_header_before_a_link_to_a_system_header_is_a_miss(project: Project) -> None:
    (project.folder / "early").mkdir()
    to_link(project.folder / "a_folder_of_links", f"{project.folder}/late")
    flags = ("-isystem", "early", "-isystem", f"{project.folder}/a_folder_of_links")
    known(project, *flags)
    project.write("early/v.h", value(2))
    assert is_new(project, *flags)


@pytest.mark.parametrize("flag", ["-imacros", "-include"])
def test_host_compile_misses_after_a_new_forced_include(project: Project, flag: str) -> None:
    project.write("h.h", value(1))
    project.write("k.cu", SOURCE)
    project.write("late/m.h", "")
    flags = ("-arch=sm_80", "-Ilate", "-Xcompiler", f"{flag},m.h")
    known(project, *flags, make="-c k.cu")
    project.write("m.h", "#ifndef __CUDACC__\n#define UNUSED 2\n#endif\n")
    assert "host compile to assembly" in ran(project.compile(*flags))


@pytest.mark.parametrize(
    "once",
    [
        "#define P(x) _Pragma(#x)\nP(once)\n",
        '#define ONCE "once"\n_Pragma(ONCE)\n',
        "# /*\n*/ pragma once\n",
        "#pragma \\\n once\n",
        "#pragma\fonce\n",
        '_Pragma(L"once")\n',
        "ONCE\n",
    ],
)
def test_touch_of_equal_headers_with_any_form_of_once_is_a_miss(
    project: Project, once: str
) -> None:
    lines = ['#define ONCE _Pragma("once")'] if once == "ONCE\n" else []
    lines += ['#include "one/v.h"', '#include "two/v.h"']
    project.write("src/n.cpp", "\n".join([*lines, "int n() { return COUNT; }\n"]))
    again = "#else\n#undef COUNT\n#define COUNT 2\n#endif\n"
    for name in ("one", "two"):
        project.write(f"late/{name}/v.h", f"{once}#ifndef COUNT\n#define COUNT 1\n{again}")
        os.utime(project.folder / f"late/{name}/v.h", (1000, 1000))
    settle()
    project.compile("-Ilate", make=PLAIN)
    project.compile("-Ilate", make=PLAIN)
    os.utime(project.folder / "late/two/v.h", (2000, 2000))
    settle()
    assert is_new(project, "-Ilate")


@pytest.mark.parametrize(
    "test",
    [
        "__has_include /* a comment */ (<maybe.h>)",
        "__has_include /* a\ncomment */ (<maybe.h>)",
        "__has_include\f(<maybe.h>)",
    ],
)
def test_new_header_is_a_miss_however_its_test_is_written(project: Project, test: str) -> None:
    project.write("src/n.cpp", f"#if {test}\nint n;\n#else\nint m;\n#endif\n")
    known(project, "-Ilate")
    project.write("late/maybe.h", "")
    assert is_new(project, "-Ilate")


def test_source_with_another_charset_is_never_a_hit(project: Project) -> None:
    text = '#if __has_include("maybe.h")\nint n;\n#else\nint m;\n#endif\n'
    (project.folder / "src/n.cpp").write_bytes(text.encode("UTF-16LE"))
    settle()
    for _ in range(2):
        flags = ("-Xcompiler", "-finput-charset=UTF-16LE,-ffreestanding")
        assert KNOWN[0] not in project.compile(*flags, make=PLAIN)
    project.write("src/n.cpp", TEXT)
    known(project, "-Ilate", "-Xcompiler", "-finput-charset=UTF-8")


@pytest.mark.parametrize("makes_equal", [False, True])
@pytest.mark.parametrize(
    ("directive", "once"),
    [
        ("#include", "#pragma once\n"),
        ("#import", ""),
        ("%: include", "/**/%:/**/pragma/**/once\n"),
    ],
)
def test_touch_of_equal_pragma_once_headers_is_a_miss(
    project: Project, directive: str, once: str, *, makes_equal: bool
) -> None:
    lines = [f'{directive} "{name}/v.h"' for name in ("one", "two")]
    project.write("src/n.cpp", "\n".join([*lines, "int n() { return COUNT; }\n"]))
    again = "#else\n#undef COUNT\n#define COUNT 2\n#endif\n"
    text = f"{once}#ifndef COUNT\n#define COUNT 1\n{again}"
    for name in ("one", "two"):
        project.write(f"late/{name}/v.h", text)

    def touch(seconds: int) -> None:
        os.utime(project.folder / "late/two/v.h", (seconds, seconds))
        settle()

    os.utime(project.folder / "late/one/v.h", (1000, 1000))
    touch(2000 if makes_equal else 1000)
    project.compile("-Ilate", make=PLAIN)
    project.compile("-Ilate", make=PLAIN)
    touch(1000 if makes_equal else 2000)
    assert is_new(project, "-Ilate")


def test_unsearched_copy_of_a_header_is_a_hit(project: Project) -> None:
    project.write("src/n.cpp", TEXT)
    for name in ("late", "build"):
        project.write(f"{name}/v.h", f"#pragma once\n{value(1)}")
    known(project, "-Ilate", "-Ibuild")


def test_a_flag_may_ask_for_a_header(project: Project) -> None:
    include, rest = TEXT.split("\n", 1)
    project.write("src/n.cpp", f"#if HAS\n#define VALUE 2\n#else\n{include}\n#endif\n{rest}")
    flags = ("-DHAS=__has_include(<maybe.h>)", "-I.", "-Ilate")
    known(project, *flags)
    project.write("maybe.h", "")
    assert is_new(project, *flags)


@pytest.mark.parametrize(
    ("text", "make"),
    [
        (SOURCE.replace("= VALUE", "= __builtin_LINE()"), "-ptx k.cu -arch=sm_80"),
        # What is compiled when it is linked keeps its lines.
        (SOURCE, "-dc k.cu -gencode arch=compute_80,code=lto_80"),
    ],
)
def test_device_code_with_its_line_number_is_a_miss(project: Project, text: str, make: str) -> None:
    project.write("h.h", value(1))
    project.write("k.cu", text)
    project.compile(make=make)
    project.write("k.cu", f"// a comment\n{text}")
    assert is_new(project, make=make)


@pytest.mark.parametrize(("old", "new"), [("a\n\nb", "a\nb"), ('# 1 "a"\n', '# 2 "a"\n')])
def test_edit_of_lines_in_a_raw_string_is_a_miss(project: Project, old: str, new: str) -> None:
    project.write("h.h", "")
    for lines in (old, new):
        text = f'__device__ const char text[] = R"---(\n{lines})---";\n'
        project.write("k.cu", f"{text}__device__ const char *get() {{ return text; }}\n")
        assert KNOWN[0] not in project.compile(make="-cubin k.cu -arch=sm_80")
        assert lines.encode() in (project.folder / "k.o").read_bytes()


def test_ptx_with_sources_has_their_comments(project: Project) -> None:
    make = "-ptx k.cu -arch=sm_80 -lineinfo -src-in-ptx"
    project.write("h.h", value(1))
    lines = SOURCE.splitlines()
    for comment in ("one", "two"):
        project.write("k.cu", "\n".join(f"{line} // {comment}" for line in lines) + "\n")
        project.compile(make=make)
        assert f"// {comment}".encode() in (project.folder / "k.o").read_bytes()


def test_the_toolkit_may_ask_for_lines_of_its_own(project: Project) -> None:
    nvcc = toolkit_of_links(project.nvcc, project.folder.parent / "toolkit")
    include = nvcc.parent.parent / "include"
    include.unlink()
    include.mkdir()
    for path in (project.nvcc.parent.parent / "include").iterdir():
        (include / path.name).symlink_to(path)
    default = "int line = __builtin_LINE()"
    (include / "asks.h").write_text(f"inline __device__ int __asks({default}) {{ return line; }}\n")
    project = replace(project, nvcc=nvcc)
    text = f"#include <asks.h>\n{SOURCE}"
    project.write("h.h", value(1))
    project.write("k.cu", text)
    project.compile("-ptx", make="k.cu")
    project.write("k.cu", f"// a comment\n{text}")
    assert ran(project.compile("-ptx", make="k.cu")) == []
    assert project.is_fresh("-ptx", make="k.cu")
    asking = text.replace("= VALUE", "= __asks()")
    project.write("k.cu", asking)
    project.compile("-ptx", make="k.cu")
    project.write("k.cu", f"// a comment\n{asking}")
    assert is_new(project, "-ptx", make="k.cu")


@pytest.mark.parametrize("directive", ["incbin ", "include ", "include\\t"])
def test_file_read_by_the_assembler_is_never_stale(project: Project, directive: str) -> None:
    asm = f'asm(".section .rodata\\n.{directive}\\"data.s\\"\\n.text\\n");\n'
    project.write("h.h", value(1))
    project.write("k.cu", SOURCE + asm)
    for number in (1, 2):
        project.write("data.s", f".long {number}\n")
        project.compile("-arch=sm_80")
    assert project.is_fresh("-arch=sm_80")


def test_header_changed_during_the_host_compile_is_not_cached(
    project: Project, tmp_path: Path
) -> None:
    # The step that reads it has just ended when it changes.
    header = project.folder / "m.h"
    change = f"*cudafe1*) [ -e {tmp_path}/new.h ] && mv {tmp_path}/new.h {header} ;;"
    gcc = script(
        tmp_path / "bin/gcc",
        f'{shutil.which("gcc")} "$@" || exit',
        f'case "$*" in *" -E "*) ;; {change} esac; true',
    )
    project.write("h.h", value(1))
    project.write("k.cu", SOURCE)
    project.write("m.h", "#define UNUSED 1\n")
    (tmp_path / "new.h").write_text("#define UNUSED 2\n")
    here = replace(project, extra={**project.extra, "PATH": f"{gcc.parent}:{os.environ['PATH']}"})
    flags = ("-arch=sm_80", "-Xcompiler", "-imacros,m.h")
    here.compile(*flags)
    assert header.read_text() == "#define UNUSED 2\n"
    settle()
    assert "host compile to assembly" in ran(here.compile(*flags))


@pytest.mark.parametrize("changed", ["h.h", "m.h"])
def test_header_changed_while_the_last_tool_runs_is_never_stale(
    project: Project, tmp_path: Path, changed: str
) -> None:
    # The host compiler's usual headers are known: what was read is described while it runs.
    replaced = f"[ -e {tmp_path}/new.h ] && sleep 0.5 && mv {tmp_path}/new.h {project.folder}/"
    gcc = script(
        tmp_path / "bin/gcc",
        f'{shutil.which("gcc")} "$@" || exit',
        f'case "$*" in *" -E "*) ;; *cudafe1*) {replaced}{changed} ;; esac; true',
    )
    for name in ("h.h", "m.h"):
        project.write(name, value(1))
    project.write("k.cu", SOURCE)
    here = replace(project, extra={**project.extra, "PATH": f"{gcc.parent}:{os.environ['PATH']}"})
    flags = ("-arch=sm_80", "-Xcompiler", "-imacros,m.h")
    here.compile(*flags)
    project.write("k.cu", SOURCE + "int more;\n")
    (tmp_path / "new.h").write_text(f"#undef VALUE\n{value(2)}")
    here.compile(*flags)
    assert (project.folder / changed).read_text().endswith(value(2))
    settle()
    assert KNOWN[0] not in here.compile(*flags)
    assert here.is_fresh(*flags)
    assert KNOWN[0] in here.compile(*flags)


def test_the_usual_files_of_the_host_compiler_may_be_others_this_time(
    project: Project,
) -> None:
    text = '#ifndef __CUDACC__\n#include "only.h"\n#endif\n'
    project.write("h.h", value(1))
    project.write("only.h", value(3))
    for number, forced in enumerate(("a.h", "b.h")):
        project.write(forced, text if number else "")
        project.write("k.cu", f"{SOURCE}int more{number};\n")
        known(project, "-arch=sm_80", "-Xcompiler", f"-include,{forced}", make="-c k.cu")
    project.write("only.h", value(4))
    assert KNOWN[0] not in project.compile("-arch=sm_80", "-Xcompiler", "-include,b.h")


HOST_ONLY = ("-arch=sm_80", "-Xcompiler", "-Iinc", "-Xcompiler", "-include,only.h")
"""Flags by which only the host compiler reads a header: its step of the compilation, too."""


def write_host_only(project: Project, text: str) -> None:
    project.write("h.h", value(1))
    project.write("k.cu", SOURCE)
    project.write("inc/only.h", f"#ifndef __CUDACC__\n{text}#endif\n")


@pytest.mark.parametrize("quotes", ['""', "<>"])
@pytest.mark.parametrize("is_there", [False, True])
def test_host_compile_asks_again_for_a_header(
    project: Project, quotes: str, is_there: bool
) -> None:
    name = f"{quotes[0]}opt.h{quotes[1]}"
    write_host_only(project, f"#if __has_include({name})\nint with_opt;\n#endif\n")
    option = project.folder / "inc/opt.h"
    for now in (is_there, not is_there):
        option.write_text("") if now else option.unlink(missing_ok=True)
        settle()
        known(project, *HOST_ONLY, make="-c k.cu")
        assert project.is_fresh(*HOST_ONLY)


@pytest.mark.parametrize(
    ("change", "undo"),
    [
        ("mv inc inc3; mv inc2 inc", "mv inc inc2; mv inc3 inc"),
        ("touch inc/opt.h", "rm inc/opt.h"),
    ],
)
def test_change_before_the_host_compile_reads_a_header_again_is_never_stale(
    project: Project, tmp_path: Path, change: str, undo: str
) -> None:
    test = '#if __has_include("opt.h")\nint with_opt;\n#endif\n'
    write_host_only(project, f"int one;\n{test}")
    project.write("inc2/only.h", "#ifndef __CUDACC__\nint two;\n#endif\n")
    hook, here = tmp_path / "hook", shutil.which("gcc")
    gcc = script(
        tmp_path / "bin/gcc",
        f'case "$*" in *" -E "*) ;; *cudafe1*) [ -e {hook} ] && . {hook} ;; esac',
        f'exec {here} "$@"',
    )
    path = {"PATH": f"{gcc.parent}:{os.environ['PATH']}"}
    project = replace(project, extra={**project.extra, **path})
    # What the host compiler usually reads is known from now on.
    project.compile("-arch=sm_80")
    hook.write_text(f"sleep 0.5; cd {project.folder}; {change}; cd - > /dev/null\n")
    project.compile(*HOST_ONLY)
    hook.unlink()
    subprocess.run(undo, shell=True, check=True, cwd=project.folder)
    settle()
    project.compile(*HOST_ONLY)
    assert project.is_fresh(*HOST_ONLY)


def test_host_compile_with_the_time_is_not_cached(project: Project) -> None:
    write_host_only(project, "const char *the_time() { return __TIME__; }\n")
    for _ in range(2):
        assert "host compile to assembly" in ran(project.compile(*HOST_ONLY))
        time.sleep(1)


def test_only_the_toolkits_headers_are_expected_to_be_read_by_the_host_compiler(
    project: Project, tmp_path: Path
) -> None:
    write_host_only(project, '#include "/dev/stdin"\n')
    (tmp_path / "empty").write_text("")
    with (tmp_path / "empty").open() as empty:
        saved = os.dup(0)
        os.dup2(empty.fileno(), 0)
        try:
            project.compile(*HOST_ONLY)
        finally:
            os.dup2(saved, 0)
            os.close(saved)
    (headers,) = project.store.rglob("headers-3")
    rows = json.loads(headers.read_text())
    assert rows.get("host", []) == []
    project.compile("-arch=sm_80")
    rows = json.loads(headers.read_text())
    assert any(name.endswith("/host_runtime.h") for name in rows["host"])
    damages: tuple[object, ...] = (
        ["a\0b"],
        ["/usr/include/a\0b"],
        ["/usr/\ud800x"],
        ["/dev/zero"],
        [1],
        {},
    )
    for number, damaged in enumerate(damages):
        headers.write_text(json.dumps({**rows, "host": damaged}))
        project.write("k.cu", f"{SOURCE}int more{number};\n")
        project.compile("-arch=sm_80")
        assert project.is_fresh("-arch=sm_80")


TOOLS = {
    "nvvm/bin/cicc": "cicc compute_80",
    "nvvm/libdevice/libdevice.10.bc": "cicc compute_80",
    "bin/ptxas": "ptxas sm_80",
    "bin/cudafe++": "cudafe++",
    "bin/fatbinary": "",
    "bin/nvlink": "nvlink sm_80",
    "bin/nvcc.profile": "",
}


def toolkit_of_parts(nvcc: Path, root: Path) -> Path:
    """The nvcc of a toolkit whose tools are links to what lies elsewhere."""
    made = toolkit_of_links(nvcc, root)
    for name in TOOLS:
        part = root.parent / "parts" / Path(name).name
        part.parent.mkdir(exist_ok=True)
        shutil.copy(nvcc.parent.parent / name, part)
        (root / name).unlink()
        (root / name).symlink_to(part)
    settle()
    return made


def retarget(tool: Path) -> None:
    """Let a link lead to another tool, which is older than the one before."""
    after = tool.parent / "others" / tool.name
    after.parent.mkdir(exist_ok=True)
    shutil.copy(tool, after)
    with after.open("ab") as file:
        file.write(b"\n")
    os.utime(after, (0, 0))
    settle()
    tool.unlink()
    tool.symlink_to(after)
    settle()


def test_relinked_tool_is_a_miss(project: Project, tmp_path: Path) -> None:
    here = replace(project, nvcc=toolkit_of_parts(project.nvcc, tmp_path / "toolkit"))
    here.write("h.h", value(1))
    here.write("k.cu", SOURCE)
    known(here, "-arch=sm_80", make="-c k.cu")
    here.compile("-arch=sm_80", make="-c k.cu -dc", output="r.o")
    here.compile("-arch=sm_80", make="-dlink r.o", output="l.o")
    for name, step in TOOLS.items():
        retarget(here.nvcc.parent.parent / name)
        links = name == "bin/nvlink"
        compiled = here.compile("-arch=sm_80", make="-dlink r.o" if links else "-c k.cu")
        assert KNOWN[0] not in compiled, name
        assert links or Path(name).name in compiled[0]
        assert step in ran(compiled) or not step


def test_relinked_host_compiler_is_a_miss(project: Project, tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    for program in ("gcc", "cc1plus", "as"):
        asked = ["gcc", f"-print-prog-name={program}"]
        said = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
        to_link(folder / program, shutil.which(said) or said)
    here = replace(project, extra={**project.extra, "PATH": f"{folder}:{os.environ['PATH']}"})
    flags = ("-Ilate", "-Xcompiler", f"-B{folder}/")
    known(here, *flags)
    for program in ("gcc", "cc1plus", "as"):
        retarget(folder / program)
        assert KNOWN[0] not in here.compile(*flags, make=PLAIN), program


def test_preloaded_library_counts(tmp_path: Path) -> None:
    library = tmp_path / "lib.so"

    def parts(content: str) -> tuple[KeyComponent, ...] | None:
        library.write_text(content)
        digests = FileDigests(None)
        tools = ToolIdentities(runner=SubprocessRunner(), digests=digests, cwd=tmp_path)
        environment = {"PATH": os.environ["PATH"], "LD_PRELOAD": f"libfake.so:{library}"}
        return tools.parts((str(script(tmp_path / "ptxas")),), environment)

    assert parts("one") == parts("one") != parts("two")


class CountingRunner(SubprocessRunner):
    """A runner that keeps the commands that it has run."""

    def __init__(self) -> None:
        super().__init__()
        self.commands: list[tuple[str, ...]] = []

    def run(self, command: Command) -> CompletedProcess:
        self.commands.append(command.argv)
        return super().run(command)


def test_replies_about_folders_hold_while_the_folders_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The age from which the times of files and folders are believed.
    for module in (usage, machine_facts):
        monkeypatch.setattr(module, "TOO_NEW_NS", -(10**12))
    for name in ("there", "first", "second"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to("first")
    late = tmp_path / "late"
    argv = ("g++", "-Ithere", f"-I{late}", "-Ilink", "-Ifirst", "-c", "x.cpp", "-o", "x.o")
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}

    def ask() -> tuple[list[tuple[str, ...]], tuple[str, ...]]:
        runner = CountingRunner()
        digests = FileDigests(tmp_path / "store")
        tools = ToolIdentities(runner=runner, digests=digests, cwd=tmp_path)
        assert tools.parts(argv, environment)
        return runner.commands, tools.includes(argv, environment)

    asked, before = ask()
    assert {"-###", "-print-search-dirs", "-print-prog-name=as"} <= {w for a in asked for w in a}
    ask()
    assert ask() == ([], before), "a process after another asks nothing"

    def asks_for_includes() -> bool:
        commands, found = ask()
        quiet = ask()
        assert quiet == ([], found)
        return [argv[-2:] for argv in commands] == [("-v", "/dev/null")]

    late.mkdir()
    assert asks_for_includes()
    (late / "h.h").write_text("")
    assert ask()[0] == [], "what is in a folder makes no difference"
    to_link(tmp_path / "link", "second")
    assert asks_for_includes()
    (tmp_path / "there").rmdir()
    assert asks_for_includes()
    for path in tmp_path.glob("store/*/reply-*"):
        path.write_text("[]")
    assert ask()[1] == ask()[1]
    other = ToolIdentities(runner=SubprocessRunner(), digests=FileDigests(None), cwd=tmp_path)
    assert other.includes(argv, environment) == ask()[1]
