"""Cache keys of steps and requests: the pure part."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from archsplit.cache import usage
from archsplit.cache.entry import KeyComponent
from archsplit.compiler.direct_cache import system_folders
from archsplit.compiler.file_resolver import (
    has_macro_in_assembly,
    has_moment_text,
    has_time_text,
    has_timestamp_text,
    join_continued_lines,
    reads_files,
)
from archsplit.compiler.include_scan import (
    HeaderFacts,
    ObservedReads,
    TextScans,
    _has_unlisted_reads,
    has_include_names,
)
from archsplit.compiler.invocation import expand_options
from archsplit.compiler.keys import (
    DEPFILE,
    OUTPUT,
    CompileRequest,
    StepKey,
    compile_request,
    has_unsupported_flags,
    line_info_flag,
    step_key,
    with_depfile,
)
from archsplit.compiler.tool_identity import identity_query, may_be_gnu
from archsplit.nvcc.cmdline import CommandLine
from archsplit.nvcc.module_id import module_id_seed
from archsplit.nvcc.preprocessed_text import (
    from_placeholder,
    include_markers,
    included_files,
    text_digest,
    to_placeholder,
    without_markers,
)
from archsplit.nvcc.variables import debug_folder, depfile_variable, hashed_variables
from archsplit.scheduler.graph import Step
from archsplit.system.process import Command

TEXT = b"""\
# 0 "k.cu"
# 1 "<built-in>" 1
# 1 "h.h" 1
int h;
# 2 "k.cu" 2
# 1 "a\\"b.h" 1 3 4

int k;
# 1 "h.h" 1
"""


def test_markers_and_empty_lines_dont_count() -> None:
    assert without_markers(TEXT) == b"int h;\nint k;\n"
    assert without_markers(b"#pragma once\n") == b"#pragma once\n"


def test_the_files_of_a_text_are_named_once() -> None:
    assert included_files(include_markers(TEXT)) == ("k.cu", "h.h", 'a"b.h')
    assert include_markers(b"int x;\n") == b""
    assert included_files(b'# 1 "a\\303\\251.h" 1\n') == ("a\u00e9.h",)


def test_a_folders_name_is_taken_out_and_put_in() -> None:
    text = b'.incbin "/tmp/x/k.fatbin"'
    assert (
        from_placeholder(to_placeholder(text, "/tmp/x"), "/var/y") == b'.incbin "/var/y/k.fatbin"'
    )
    assert reads_files(text)
    assert not reads_files(text, "/tmp/x/")
    assert reads_files(text, "/tmp/y/")


@pytest.mark.parametrize(
    "text",
    [
        b'asm(".INCBIN \\"a\\"");',
        b'asm(".in" u8"c" R"(bin "a")");',
        b'asm(".in"\n# 3 "k.cu"\n"cbin \\"a\\"");',
        b'asm("\\x2ein\\143\\u0062in \\U00000022a\\042");',
        b'asm(".ir" "p x, inc");',
        b'asm(".include\\t\\"a\\"");',
        b'asm(".include\\11\\"a\\"");',
        b'asm(".include \\042a\\042");',
        b'asm(".include/* x */\\"a\\"");',
        b'asm(".include" "\\v\\"a\\"");',
        b'asm("\\x{2e}incbin \\"a\\"");',
        b"\t.macro d x\n",
    ],
)
def test_a_directive_may_be_put_together(text: bytes) -> None:
    assert reads_files(text)


def test_other_assembly_reads_nothing_more() -> None:
    assert not reads_files(b'asm volatile("mov.u32 %0, %%tid.x;\\n\\t" : "=r"(x)); a.include(b);')
    assert not reads_files(b'asm(".asciz \\"\\303\\x22;\\"");')
    assert not reads_files(b'asm(".in" "cbin \\"/tmp/x/k.fatbin\\"");', "/tmp/x/")


@pytest.mark.parametrize(
    ("text", "has"),
    [
        (b"int k;", False),
        (b'// an asm(X)\nasm volatile("nop" : : "r"(x));', False),
        (b'/* asm(X) */ __asm__ __volatile__("no" "p");', False),
        (b'asm(".inc" BIN);', True),
        (b"__asm__ goto (S(nop));", True),
    ],
)
def test_macros_in_inline_assembly_are_seen(text: bytes, has: bool) -> None:
    assert has_macro_in_assembly(text) == has


@pytest.mark.parametrize(
    ("text", "is_told"),
    [
        (b'"Nov 22 2023"', True),
        (b'"22:13:20"', True),
        (b'"Nov 22 2024"', False),
        (b'"23:13:20"', False),
    ],
)
def test_the_time_of_a_compilation_is_found_in_its_text(text: bytes, is_told: bool) -> None:
    for epoch in ("1700691200", " +01700691200"):
        assert has_time_text([b"", text], since=time.time_ns(), epoch=epoch) == is_told
    assert has_moment_text(text)


@pytest.mark.parametrize("epoch", ["\N{SUPERSCRIPT TWO}", "9" * 30])
def test_wrong_epoch_is_none(epoch: str) -> None:
    told = time.strftime('"%H:%M:').encode()
    assert has_time_text([told], since=time.time_ns(), epoch=epoch)


@pytest.mark.parametrize("name", [b"Nov 22 2023", b"22:13:20"])
def test_a_date_as_the_name_of_a_header_is_seen(name: bytes, tmp_path: Path) -> None:
    text = b'# 1 "k.cu"\n# 1 "folder/%s" 1\nint a;\n' % name
    path = tmp_path / "k.ii"
    path.write_bytes(text)
    assert TextScans().preprocessed_file(path).has_moment
    assert has_time_text([text], since=0, epoch="1700691200")


@pytest.mark.parametrize(
    ("text", "has"),
    [
        (b'char *t = "Sun Nov  5 10:50:27 2026";', True),
        (b'char *t = L"Nov  5 2026";', True),
        (rb'char *t = "\"10:50:27\"";', True),
        (b'char *t = "v" "10:50:27";', True),
        (b'char *t = "Nov 2026", *u = "10:50", *v = "at 10:50:27";', False),
    ],
)
def test_a_date_or_time_at_the_start_of_a_string_is_seen(text: bytes, has: bool) -> None:
    assert has_moment_text(text) == has


def test_the_clocks_time_is_found_too() -> None:
    now = time.time_ns()
    told = time.strftime('"%H:%M:%S"').encode()
    assert has_time_text([told], since=now, epoch=None)
    assert not has_time_text([b'"24:00:00"'], since=now, epoch=None)
    start = now // 10**9 // 60 * 60 - 600
    for second in range(start, start + 600, 60):
        told = time.strftime('"%H:%M:30"', time.localtime(second)).encode()
        assert has_time_text([told], since=start * 10**9, epoch=None)
    assert has_timestamp_text(b'char *t = "Sun Nov  5 10:50:27 2026";')
    assert not has_timestamp_text(b'char *t = "Sun Nov 5";')


def test_source_with_the_time_of_its_change_may_have_unlisted_reads() -> None:
    reading = ObservedReads((), (), (), (), since=0, epoch=None, has_unlisted=False)
    dated = reading._replace(preprocessed=(b'char *t = "Sun Nov  5 10:50:27 2026";',))
    assert not _has_unlisted_reads(reading, [], [])
    assert _has_unlisted_reads(dated, [], [])


def test_source_without_a_text_may_have_unlisted_reads_by_a_macro() -> None:
    reading = ObservedReads((), (), (), (), since=0, epoch=None)
    pasted = TextScans().source(b"#define A(x) __##x##__\nchar *t = A(TIME);\n")
    assert not _has_unlisted_reads(reading, [], [b"int k;"])
    assert _has_unlisted_reads(reading, [], [b'asm(".inc" BIN);'])
    assert _has_unlisted_reads(reading, [pasted], [])


def test_folders_of_the_toolkit_are_above_its_cicc() -> None:
    commands = (("gcc", "-c"), ("/cuda/bin/../nvvm/bin/cicc", "k.ii"))
    assert {*system_folders(commands)} == {"/usr/", "/cuda"}


@pytest.mark.parametrize(
    "text", [b'asm(".include \\"a\\"");', b'asm(".inc" "bin \\"a\\"");', b'asm(".incbin " NAME);']
)
def test_the_assembler_may_read_more(text: bytes) -> None:
    assert reads_files(text)
    assert not reads_files(b"list.include(a); // .inc")
    assert not reads_files(b"bool b = list.include ? list.include(a) : false;")
    assert not reads_files(b"int k;")


@pytest.mark.parametrize(
    ("text", "joined"),
    [
        (b"#define X a \\\n b\n", b"#define X a  b\n"),
        (b"__TI\\ \t\r\nME__", b"__TIME__"),
        (b"__TI??/\nME__", b"__TIME__"),
        # A backslash that is left over joins nothing: gcc sees a directive here.
        (b"#define X a\\\\\n\r\n#include <k.h>\n", b"#define X a\\\r\n#include <k.h>\n"),
        (b"#define X a\\ \\\n\n#include <k.h>\n", b"#define X a\\ \n#include <k.h>\n"),
    ],
)
def test_continued_lines_are_joined_once(text: bytes, joined: bytes) -> None:
    assert join_continued_lines(text) == joined


def test_directive_in_two_strings_counts_beside_other_statements() -> None:
    plain = b'asm("" "name"); asm(".ap" "x"); asm("mov.u32 %0, %1;" : "=r"(x));'
    assert not reads_files(plain)
    assert reads_files(plain + b'asm(".in" "cbin \\"k\\"");' + plain)
    assert reads_files(plain + b'asm("\\x2eINCBIN \\"k\\"");')


def test_only_hashed_variables_are_components() -> None:
    names = (
        *("CPATH", "C_INCLUDE_PATH", "LANG", "LC_ALL", "SOURCE_DATE_EPOCH", "G++_ROOT"),
        *("LD_PRELOAD", "GCC_EXEC_PREFIX", "COMPILER_PATH", "NVVMCCWIZ", "EDG_BASE"),
    )
    drivers = (
        *("NVCC_CCBIN", "INCLUDES", "SYSTEM_INCLUDES", "CUDAFE_FLAGS", "PTXAS_FLAGS"),
        *("compiler-bindir", "_TARGET_DIR_", "_HERE_", "TOP", "CICC_PATH"),
    )
    others = ("HOME", "USER", "PATH", "TMPDIR", "LC_TIME", "SCCACHE_DIR", "CCACHE_DIR", "_")
    everything = dict.fromkeys([*names, *drivers, *others], "x")
    assert hashed_variables(everything) == sorted(names)
    assert hashed_variables(everything, driver=True) == sorted([*names, *drivers])
    undated = hashed_variables(dict.fromkeys(names, "x"), epoch=False)
    assert set(undated) == set(names) - {"SOURCE_DATE_EPOCH"}
    assert depfile_variable({"DEPENDENCIES_OUTPUT": "f"}) == "DEPENDENCIES_OUTPUT"
    assert depfile_variable({"SUNPRO_DEPENDENCIES": ""}) == ""


@pytest.mark.parametrize("word", ["-g", "-G", "-lineinfo", "--generate-line-info", "-ggdb3", "-pg"])
def test_flag_for_line_numbers_is_recognized(word: str) -> None:
    assert line_info_flag([word])


@pytest.mark.parametrize("word", ["-gencode", "-O3", "-gencode=arch=compute_80,code=sm_80"])
def test_flag_without_line_numbers_is_not_recognized(word: str) -> None:
    assert not line_info_flag([word])


@pytest.mark.parametrize(
    "word",
    [
        "-save-temps",
        "-fprofile-arcs",
        "-MMD",
        "-MD",
        "@f",
        "-P",
        "-Wp,-MD,x.d",
        "-gsplit-dwarf",
        "-gz",
        "--preinclude",
        "--preinclude=x.h",
        "-fsave-optimization-record",
        "-show-src",
    ],
)
def test_flag_with_unknown_inputs_or_outputs_is_unsupported(word: str) -> None:
    assert has_unsupported_flags(("gcc", word))
    assert not has_unsupported_flags(("gcc", "-march=native", "-Wall", "-MD", "-MF", "x.d"))


def asked(*words: str, cwd: str = "/project", **environment: str) -> CompileRequest | None:
    return compile_request(
        CommandLine(words),
        nvcc="/cuda/bin/nvcc",
        driver=(KeyComponent("program nvcc", "ab"),),
        cwd=Path(cwd),
        environment=environment,
        salt="",
        version="1",
    )


def key(*words: str, cwd: str = "/project", **environment: str) -> str:
    found = asked(*words, cwd=cwd, **environment)
    assert found is not None
    return found.key


def test_names_of_outputs_and_folders_dont_count() -> None:
    one = key("-c", "k.cu", "-o", "a.o", "-MD", "-MF", "a.d", "-MT", "x")
    assert one == key("-c", "k.cu", "-o", "b/c.o", "-MD", "-MF=d.d", "-MT", "y", cwd="/other")
    assert one != key("-c", "k.cu", "-o", "a.o", "-MD")
    assert key("-c", "k.cu") != key("-c", "k.cu", CPATH="x")
    assert key("-c", "k.cu", HOME="a") == key("-c", "k.cu", HOME="b")


@pytest.mark.parametrize(("option", "long"), [("-o", "--output-file"), ("-MF", "-MF")])
def test_a_second_name_of_an_output_counts(option: str, long: str) -> None:
    once = key("-c", "k.cu", "-MD", option, "a")
    # nvcc warns only about another name.
    assert key("-c", "k.cu", "-MD", option, "a", option, "a") == once
    twice = key("-c", "k.cu", "-MD", option, "a", long, "b")
    assert twice != once
    assert key("-c", "k.cu", "-MD", option, "c", option, "d") == twice


@pytest.mark.parametrize("flags", [("-g",), ("-Xcompiler", "-O2,-g"), ("-Xcompiler=-g",)])
def test_folder_counts_with_debug_information(flags: tuple[str, ...]) -> None:
    assert key("-c", "k.cu", *flags) != key("-c", "k.cu", *flags, cwd="/other")


@pytest.mark.parametrize("flag", ["-dc", "-rdc=true", "--relocatable-device-code=true"])
def test_folder_counts_for_relocatable_units(flag: str) -> None:
    assert key("-c", "k.cu", flag) == key("-c", "k.cu", flag)
    assert key("-c", "k.cu", flag) != key("-c", "k.cu", flag, cwd="/other")


@pytest.mark.parametrize("words", [("@file",), ("-arch=native",), ("-arch", "native")])
def test_indirect_words_have_no_request(words: tuple[str, ...]) -> None:
    assert asked("-c", "k.cu", *words) is None


def test_quoted_flags_of_variables_have_no_key() -> None:
    assert asked("-c", "k.cu", NVCC_APPEND_FLAGS="") is not None
    assert asked("-c", "k.cu", NVCC_APPEND_FLAGS='-DNAME="a b"') is None


def test_variables_in_paths_are_part_of_the_key() -> None:
    words = ("-c", "k.cu", "-I$where/${more}")
    assert key(*words) == key(*words, other="1")
    assert len({key(*words), key(*words, where="1"), key(*words, more="1")}) == 3
    assert key("-c", "k.cu", cwd="/a$b") != key("-c", "k.cu", cwd="/a$b", b="1")
    assert key("-c", "k.cu") == key("-c", "k.cu", b="1")


@pytest.mark.parametrize(
    ("path", "role"),
    [
        ("/project/a.o", OUTPUT),
        ("/project/a.d", f"{OUTPUT}.d"),
        ("/project/r.d", DEPFILE),
        ("/project/other.o", "other.o"),
        ("/else/x.o", "../else/x.o"),
    ],
)
@pytest.mark.parametrize("swapped", [False, True])
def test_a_file_keeps_its_role(path: str, role: str, swapped: bool) -> None:
    pairs = [("-o", "a.o"), ("-MF", "r.d")]
    words = [word for pair in (reversed(pairs) if swapped else pairs) for word in pair]
    found = asked("-c", "k.cu", *words)
    assert found is not None
    assert found.role(Path(path)) == role
    assert found.path(role) == Path(path)
    assert found.subject == "k.cu"


def step(folder: Path, *argv: str, writes: str = "k.ptx") -> Step:
    (folder / "k.ii").write_text("int k;")
    return Step(
        name="s",
        command=Command(argv=argv, cwd=folder, env={}),
        reads=(folder / "k.ii",),
        writes=(folder / writes,),
    )


def cicc(folder: Path) -> Step:
    folder.mkdir(parents=True)
    flags = ("--orig_src_path_name", f"{folder.parent.name}/k.cu", "-arch", "compute_80")
    return step(folder, "/x/cicc", *flags, str(folder / "k.ii"), "-o", str(folder / "k.ptx"))


def test_a_command_is_known_without_its_folders(tmp_path: Path) -> None:
    one, two = (cicc(tmp_path / name / "000-k") for name in ("one", "two"))
    first = step_key(one, tmp_path / "one", debug=False)
    second = step_key(two, tmp_path / "two", debug=False)
    assert first is not None
    assert second is not None
    assert first.flags == second.flags
    assert first.label == "cicc compute_80"
    assert step_key(two, tmp_path / "two", debug=True) != second


def test_unknown_step_has_no_key(tmp_path: Path) -> None:
    odd = step(tmp_path, "ptxas", "--keep", str(tmp_path / "k.ii"))
    other = step(tmp_path, "objcopy", str(tmp_path / "k.ii"))
    link = step(tmp_path, "g++", "-o", "x", str(tmp_path / "k.ii"))
    unlisted = step(tmp_path, "gcc", "-c", str(tmp_path / "k.ii"), "-o", "k.o")
    outside = step(tmp_path, "ptxas", str(tmp_path / "k.ii"))
    for each in (odd, other, link, unlisted):
        assert step_key(each, tmp_path, debug=False) is None
    assert step_key(outside, tmp_path / "else", debug=False) is None


def test_host_compile_gets_depfile_flags(tmp_path: Path) -> None:
    plain = step(tmp_path, "gcc", "-c", str(tmp_path / "k.ii"), "-o", "k.o", writes="k.o")
    listed = with_depfile(plain, tmp_path)
    assert listed.command.argv[-3:-1] == ("-MD", "-MF")
    found = step_key(listed, tmp_path, debug=False)
    assert found is not None
    assert found.host_depfile == Path(listed.command.argv[-1])
    assert found.host_depfile.parent == tmp_path
    assembler = step(tmp_path, "gcc", "-c", "-x", "assembler", str(tmp_path / "k.ii"))
    own = step(tmp_path, "gcc", "-c", "-MMD", str(tmp_path / "k.ii"))
    for each in (assembler, own, step(tmp_path, "ptxas", str(tmp_path / "k.ii"))):
        assert with_depfile(each, tmp_path) is each
    # What reads nothing private has its list beside everything.
    own = with_depfile(plain._replace(reads=()), tmp_path / "else")
    assert Path(own.command.argv[-1]).parent == tmp_path / "else"


def test_key_of_a_host_compile_has_the_included_stub(tmp_path: Path) -> None:
    for name in ("k.compute_80.cudafe1.cpp", "k.fatbin.c", "other.fatbin.c"):
        (tmp_path / name).write_text("x")
    source = str(tmp_path / "k.compute_80.cudafe1.cpp")
    flags = ("-isystem", "/x", "-I/y", "-o", str(tmp_path / "k.ptx"), "-MD", "-MF", "x.d")
    found = step_key(step(tmp_path, "gcc", "-S", source, *flags), tmp_path, debug=False)
    assert found is not None
    names = [path.name for path in found.inputs]
    assert names == ["k.ii", "k.compute_80.cudafe1.cpp", "k.fatbin.c"]
    assert found.label == "host compile to assembly"


@pytest.mark.parametrize("debug", [True, False])
def test_only_debug_information_of_a_host_compile_is_marked(tmp_path: Path, *, debug: bool) -> None:
    """A mark is as long as the private folder's name, which it replaces in the object."""
    source = str(tmp_path / "k.ii")
    flags = ("-o", str(tmp_path / "k.ptx"), "-MD", "-MF", "x.d")
    host = step_key(step(tmp_path, "gcc", "-c", source, *flags), tmp_path, debug=debug)
    device = step_key(step(tmp_path, "ptxas", source), tmp_path, debug=debug)
    assert host is not None
    assert device is not None
    assert len(host.placeholder) == (len(str(tmp_path)) if debug else 0)
    assert host.placeholder.startswith(b"\0archsplit:private" if debug else b"")
    assert device.placeholder == b""


@pytest.mark.parametrize("debug", [True, False])
def test_only_debug_information_names_the_source_of_machine_code(
    tmp_path: Path, *, debug: bool
) -> None:
    def key(name: str) -> StepKey:
        words = ("-arch=sm_90", str(tmp_path / "k.ii"), "-o", str(tmp_path / f"{name}.cubin"))
        listed = str(tmp_path / f"{name}.ptx")
        found = step_key(step(tmp_path, "ptxas", *words, listed), tmp_path, debug=debug)
        assert found is not None
        return found

    assert (key("one").flags == key("other").flags) is not debug
    assert key("one").ignores_names is not debug


def test_key_of_the_writer_lacks_the_included_stub(tmp_path: Path) -> None:
    # The device's side may be ready before the host's is begun, or after.
    (tmp_path / "k.fatbin.c").write_text("x")
    written = str(tmp_path / "k.compute_80.cudafe1.cpp")
    flags = ("--gen_c_file_name", written)
    made = step(tmp_path, "cudafe++", *flags)._replace(writes=(Path(written),))
    found = step_key(made, tmp_path, debug=False)
    assert found is not None
    assert [path.name for path in found.inputs] == ["k.ii"]


def test_a_text_has_its_sha256() -> None:
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert text_digest(b"") == empty


UNIT = '#include "h.h"\nint k;\n'


def seed(folder: Path, *flags: str, text: str = UNIT, header: str = "") -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "k.cu").write_text(text)
    (folder / "h.h").write_text(f'#include "k.cu"\n{header}')
    return module_id_seed(str(folder / "k.cu"), cwd=folder, flags=flags)


def test_a_unit_is_the_same_everywhere(tmp_path: Path) -> None:
    one = seed(tmp_path / "a", "-DX=1", "-I", "inc", "-I/abs/one", "-o", "a.o", "-include", "f.h")
    assert one == seed(
        tmp_path / "b", "-DX=1", "-I", "inc", "-I/abs/two", "-o", "b.o", "-include", "f.h"
    )
    commented = '// "quote\n#include "h.h"\n/* more */ int   k;\n'
    assert seed(tmp_path, text=commented) == seed(tmp_path)


def test_different_units_have_different_names(tmp_path: Path) -> None:
    uses = f"{UNIT}int x = X;\n"
    seeds = {
        seed(tmp_path, text=uses),
        seed(tmp_path, "-DX=1", text=uses),
        seed(tmp_path, "-D", "X=2", text=uses),
        seed(tmp_path, text='#include "h.h"\nconst char *k = "//";\n'),
        seed(tmp_path, header="int h;"),
        module_id_seed(str(tmp_path / "k.cu"), cwd=tmp_path.parent, flags=()),
        # The shell of nvcc made another path of a name with `$`.
        module_id_seed(str(tmp_path / "gone/k.cu"), cwd=tmp_path, flags=("-DX=1",)),
        module_id_seed(str(tmp_path / "gone/k.cu"), cwd=tmp_path, flags=("-DX=2",)),
        module_id_seed(str(tmp_path / "none.cu"), cwd=tmp_path, flags=()),
    }
    assert len(seeds) == 9


def test_unused_macro_is_left_out_of_a_units_name(tmp_path: Path) -> None:
    (tmp_path / "inc/deep").mkdir(parents=True)
    (tmp_path / "inc/far.h").write_text("#include <deep/deeper.h>\n")
    (tmp_path / "inc/deep/deeper.h").write_text("#ifdef DEEP\n#endif\n")
    text = f"{UNIT}#include <far.h>\nint x = X;\n"
    searched = ("-I", "inc")
    used = ("-DX=Y", "-DY=1")
    one = seed(tmp_path, *searched, *used, text=text)
    assert seed(tmp_path, *searched, *used, "-DUNUSED=1", "-UNEVER", text=text) == one
    assert seed(tmp_path, *searched, *used, "--define-macro", "A,B=2", text=text) == one
    others = {
        seed(tmp_path, *searched, "-DX=Y", "-DY=2", text=text),
        seed(tmp_path, *searched, *used, "-DDEEP", text=text),
        seed(tmp_path, *searched, *used, "--define-macro=A,DEEP", text=text),
        seed(tmp_path, *searched, *used, "-UDEEP", text=text),
    }
    assert len(others - {one}) == 4


def test_order_of_macros_and_folders_counts(tmp_path: Path) -> None:
    text = f"{UNIT}int x = X + Y;\n"
    twice = seed(tmp_path, "-DX=1", "-DX=2", text=text)
    assert seed(tmp_path, "-DX=2", "-DX=1", text=text) != twice
    assert seed(tmp_path, "-Ia", "-Ib", text=text) != seed(tmp_path, "-Ib", "-Ia", text=text)


def test_linkable_units_have_different_names(tmp_path: Path) -> None:
    # Neither has a function that the other one can't have, too.
    texts = [f"static __global__ void k() {{}}\nstatic int n() {{ return {n}; }}\n" for n in (1, 2)]
    names = {seed(tmp_path / name, text=text) for name, text in zip("ab", texts, strict=True)}
    assert len(names) == 2


def test_options_in_files_are_part_of_the_name(tmp_path: Path) -> None:
    def of(text: str) -> str:
        tmp_path.joinpath("options.txt").write_text(text)
        command, _ = expand_options(CommandLine(("-optf", "options.txt")), tmp_path)
        return seed(tmp_path, *command.argv, text=f"{UNIT}int a = A;\n")

    assert of("-DA=1 -O2 -I/abs/one") == of("-DA=1 -O3 -I/abs/two")
    assert of("-DA=1") != of("-DA=2")


@pytest.mark.parametrize(
    ("texts", "names"),
    [
        ((b'__has_include("a.h") __has_include (<b/c.h>)',), {"a.h", "b/c.h"}),
        ((b"__has_include_next(<a.h>) defined(__has_include)",), {"a.h"}),
        ((b"#define MY_HAS_INCLUDE(X) __has_include(X)\n#if MY_HAS_INCLUDE(<a.h>)",), {"a.h"}),
        ((b"#if __has_include(CONFIG)", b"#define CONFIG <b.h>"), None),
        ((b"#if __has_include(\\\n<a.h>)",), {"a.h"}),
        ((b"int has;",), set()),
        ((b"#define HAS(X) __has_include(X)\n#if HAS(<a.h>)",), None),
        ((b"#if __has_include(NAME(a))",), None),
    ],
)
def test_names_in_has_include_are_found(texts: tuple[bytes, ...], names: set[str] | None) -> None:
    assert has_include_names([*map(TextScans().source, texts)]) == names


def test_facts_of_a_header_hold_while_it_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header, other, facts = tmp_path / "sys/h.h", tmp_path / "own/h.h", tmp_path / "facts"
    plain = '#if __has_include("a.h")\n#endif\n'
    for path in (header, other):
        path.parent.mkdir()
        path.write_text(plain)

    def opened() -> HeaderFacts:
        return HeaderFacts(facts, system=(f"{tmp_path}/sys/",))

    def remember(path: Path = header) -> None:
        scans = TextScans(headers=opened())
        scans.facts(str(path))
        scans.save()

    remember()
    assert opened().find(str(header)) is None, "it has just been written, and may be again"
    os.utime(header, (0, 0))
    remember()
    assert opened().find(str(header)) is None, "its time is old, but not the change of its time"
    # From here on, a file's age is of no matter.
    monkeypatch.setattr(usage, "TOO_NEW_NS", -(10**12))
    remember(other)
    assert opened().find(str(other)) is None, "the user's own headers are read each time"
    remember()
    found = opened().find(str(header))
    assert found is not None
    assert (found[0].include_tests, found[1]) == ((b'"a.h"',), text_digest(plain.encode()))
    # A link has the stamp of the header that it leads to.
    moved = header.rename(tmp_path / "sys/a.h")
    (tmp_path / "sys/b.h").write_text("int b;\n")
    header.symlink_to(moved)
    remember()
    assert opened().find(str(header)) is not None
    header.unlink()
    header.symlink_to("b.h")
    assert opened().find(str(header)) is None
    remember()
    assert opened().find(str(header)) is not None
    for text in ("int a = __TIME__;", "__TIM", 'asm(".incbin");', "#if __has_include(A(b))\n"):
        (tmp_path / "sys/b.h").write_text(text)
        remember()
        assert opened().find(str(header)) is None, text
    for damaged in ("[", "[]", f'{{"{header}": [1]}}', f'{{"{header}": [[1], 2, 3]}}'):
        (facts / "headers-3").write_text(damaged)
        assert opened().find(str(header)) is None, damaged
        (tmp_path / "sys/b.h").write_text("int b;\n")
        remember()
        assert opened().find(str(header)) is not None


def test_usual_headers_of_the_host_compiler_are_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "TOO_NEW_NS", -(10**12))
    (tmp_path / "host_runtime.h").write_text("int a;\n")
    names = [f"{tmp_path}/host_runtime.h"]

    def opened() -> HeaderFacts:
        return HeaderFacts(tmp_path, system=(str(tmp_path),))

    scans = TextScans(headers=opened())
    headers = scans.headers
    assert headers is not None
    headers.usual_names = names
    assert headers.usual_names == [], "nothing is known of it yet"
    scans.facts(names[0])
    headers.usual_names = names
    headers.usual_names = [*names, "own.h"]
    assert headers.usual_names == names, "what a project reads isn't usual"
    scans.save()
    assert opened().usual_names == names
    (tmp_path / "host_runtime.h").write_text("int ab;\n")
    assert opened().usual_names == []
    for damaged in ("[", '{"host": 1}', '{"host": [1, "a"]}'):
        (tmp_path / "headers-3").write_text(damaged)
        assert opened().usual_names == []


def test_identity_query_asks_for_the_compilers_commands() -> None:
    assert identity_query(("/x/cicc", "-O2")) is None
    assert identity_query(("gcc", "-O2")) == "gcc '-###'"
    asked = ("/a b/g++-12", "-march=native", "-B/x", "-c", "-mtune=native")
    assert identity_query(asked) == ("'/a b/g++-12' '-###' -B/x -march=native -mtune=native")


def test_key_of_a_link_has_its_libraries_and_objects(tmp_path: Path) -> None:
    for name in ("libcudadevrt.a", "other.o"):
        (tmp_path / name).write_text("x")
    private = tmp_path / "private"
    private.mkdir()
    argv = ("nvlink", "-L", f"-L{tmp_path}", "-lcudadevrt", "-lnone", "other.o", "-o")
    for output in (private / "k.cubin", tmp_path / "k.cubin"):
        # What an earlier run has left there isn't.
        output.write_text("x")
        link = step(private, *argv, str(output), writes=str(output))
        found = step_key(
            link._replace(command=link.command._replace(cwd=tmp_path)),
            private,
            debug=False,
        )
        assert found is not None
        assert {path.name for path in found.inputs} == {"k.ii", "other.o", "libcudadevrt.a"}


def test_folder_in_debug_information_is_the_working_folder_by_any_of_its_names(
    tmp_path: Path,
) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    link, missing = f"{tmp_path}/link", f"{tmp_path}/missing"
    assert debug_folder(tmp_path, {"PWD": link}) == link
    for name in (missing, "/", "link", ""):
        assert debug_folder(tmp_path, {"PWD": name}) == str(tmp_path)


def test_machine_code_may_be_a_gnu_compiler_and_a_script_is_none(tmp_path: Path) -> None:
    script = tmp_path / "gcc"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    assert may_be_gnu(sys.executable, {})
    for program in ("gcc", "g++", str(script)):
        assert not may_be_gnu(program, {"PATH": str(tmp_path)})
