"""What steps and requests are known by: the pure part."""

from __future__ import annotations

from pathlib import Path

import pytest

from splitter.drop_in.naming import unit_seed
from splitter.engine.graph import Step
from splitter.reuse.changes import changed_lines
from splitter.reuse.commands import is_odd, is_precise, known, with_listing
from splitter.reuse.requests import OUTPUT, RULES, Request, request
from splitter.reuse.surroundings import environment_parts, writes_elsewhere
from splitter.reuse.texts import (
    anonymous,
    digest_of,
    entered,
    named,
    names_in,
    reads_more,
    without_markers,
)
from splitter.system.run import Command

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
    assert names_in(entered(TEXT)) == ("k.cu", "h.h", 'a"b.h')
    assert entered(b"int x;\n") == b""
    assert names_in(b'# 1 "a\\303\\251.h" 1\n') == ("a\u00e9.h",)


def test_a_folders_name_is_taken_out_and_put_in() -> None:
    text = b'.incbin "/tmp/x/k.fatbin"'
    assert named(anonymous(text, "/tmp/x"), "/var/y") == b'.incbin "/var/y/k.fatbin"'
    assert reads_more(text)


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        (b"a\nb\nc", b"a\nx\nc", (2, 2)),
        (b"a\nb\nc", b"x\na\nb\nc", (1, 1)),
        (b"a\nb\nc", b"a\nc", (2, 2)),
        (b"a\nb\nc\nd", b"a\nx\ny\nd", (2, 3)),
        (b"a", b"a", (2, 2)),
    ],
)
def test_changed_lines(old: bytes, new: bytes, lines: tuple[int, int]) -> None:
    assert changed_lines(old, new) == lines


def test_only_variables_that_count_are_parts() -> None:
    names = ("CPATH", "C_INCLUDE_PATH", "LANG", "LC_ALL", "SOURCE_DATE_EPOCH", "NVCC_CCBIN")
    others = ("HOME", "USER", "PATH", "TMPDIR", "LC_TIME", "SCCACHE_DIR", "CCACHE_DIR")
    found = environment_parts(dict.fromkeys([*names, *others], "x"))
    assert {part.name.split()[1] for part in found} == set(names)
    assert writes_elsewhere({"DEPENDENCIES_OUTPUT": "f"})
    assert not writes_elsewhere({})


@pytest.mark.parametrize("word", ["-g", "-G", "-lineinfo", "--generate-line-info", "-ggdb3", "-pg"])
def test_what_names_lines_is_precise(word: str) -> None:
    assert is_precise([word])


@pytest.mark.parametrize("word", ["-gencode", "-O3", "-gencode=arch=compute_80,code=sm_80"])
def test_what_names_no_lines_is_not(word: str) -> None:
    assert not is_precise([word])


@pytest.mark.parametrize("word", ["-save-temps", "-march=native", "-fprofile-arcs", "-MMD", "@f"])
def test_what_reads_or_writes_more_is_odd(word: str) -> None:
    assert is_odd(("gcc", word))
    assert not is_odd(("gcc", "-march=znver3", "-MD", "-MF", "x.d", "-Wall"))


def asked(*words: str, cwd: str = "/project", **environment: str) -> Request | None:
    return request(
        words,
        nvcc="/cuda/bin/nvcc",
        compiler="ab",
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


@pytest.mark.parametrize("flags", [("-g",), ("-Xcompiler", "-O2,-g"), ("-Xcompiler=-g",)])
def test_folders_count_where_they_are_written_down(flags: tuple[str, ...]) -> None:
    assert key("-c", "k.cu", *flags) != key("-c", "k.cu", *flags, cwd="/other")
    assert key("k.cu", NVCC_APPEND_FLAGS="-lineinfo") != key(
        "k.cu", NVCC_APPEND_FLAGS="-lineinfo", cwd="/other"
    )


@pytest.mark.parametrize("words", [("@file",), ("-arch=native",), ("-arch", "native")])
def test_words_that_stand_for_others_are_left_alone(words: tuple[str, ...]) -> None:
    assert asked("-c", "k.cu", *words) is None
    assert asked("-c", "k.cu", DEPENDENCIES_OUTPUT="x") is None


@pytest.mark.parametrize(
    ("path", "role"),
    [
        ("/project/a.o", OUTPUT),
        ("/project/a.d", f"{OUTPUT}.d"),
        ("/project/r.d", RULES),
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
    first = known(one, tmp_path / "one", precise=False)
    second = known(two, tmp_path / "two", precise=False)
    assert first is not None
    assert second is not None
    assert first.flags == second.flags
    assert first.label == "cicc compute_80"
    assert known(two, tmp_path / "two", precise=True) != second


def test_what_isnt_known(tmp_path: Path) -> None:
    odd = step(tmp_path, "ptxas", "--keep", str(tmp_path / "k.ii"))
    other = step(tmp_path, "objcopy", str(tmp_path / "k.ii"))
    link = step(tmp_path, "g++", "-o", "x", str(tmp_path / "k.ii"))
    unlisted = step(tmp_path, "gcc", "-c", str(tmp_path / "k.ii"), "-o", "k.o")
    outside = step(tmp_path, "ptxas", str(tmp_path / "k.ii"))
    for each in (odd, other, link, unlisted):
        assert known(each, tmp_path, precise=False) is None
    assert known(outside, tmp_path / "else", precise=False) is None


def test_a_compile_for_the_host_is_made_to_list_what_it_reads(tmp_path: Path) -> None:
    plain = step(tmp_path, "gcc", "-c", str(tmp_path / "k.ii"), "-o", "k.o", writes="k.o")
    listed = with_listing(plain, tmp_path)
    assert listed.command.argv[-3:] == ("-MD", "-MF", str(tmp_path / "k.o.d"))
    found = known(listed, tmp_path, precise=False)
    assert found is not None
    assert found.listing == tmp_path / "k.o.d"
    assembler = step(tmp_path, "gcc", "-c", "-x", "assembler", str(tmp_path / "k.ii"))
    own = step(tmp_path, "gcc", "-c", "-MMD", str(tmp_path / "k.ii"))
    for each in (assembler, own, step(tmp_path, "ptxas", str(tmp_path / "k.ii"))):
        assert with_listing(each, tmp_path) is each
    assert with_listing(plain, tmp_path / "else") is plain


def test_what_a_stub_includes_is_read_too(tmp_path: Path) -> None:
    for name in ("k.compute_80.cudafe1.cpp", "k.fatbin.c", "other.fatbin.c"):
        (tmp_path / name).write_text("x")
    source = str(tmp_path / "k.compute_80.cudafe1.cpp")
    flags = ("-isystem", "/x", "-I/y", "-MD", "-MF", "x.d", "-o", str(tmp_path / "k.ptx"))
    found = known(step(tmp_path, "gcc", "-S", source, *flags), tmp_path, precise=False)
    assert found is not None
    names = [path.name for path in found.inputs]
    assert names == ["k.ii", "k.compute_80.cudafe1.cpp", "k.fatbin.c"]
    assert found.label == "host compile to assembly"


def test_a_text_has_its_sha256() -> None:
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert digest_of(b"") == empty


def seed(
    folder: Path, *flags: str, text: str = '#include "h.h"\nint k;\n', header: str = ""
) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "k.cu").write_text(text)
    (folder / "h.h").write_text(f'#include "k.cu"\n{header}')
    return unit_seed(str(folder / "k.cu"), cwd=folder, flags=flags)


def test_a_unit_is_the_same_everywhere(tmp_path: Path) -> None:
    one = seed(tmp_path / "a", "-DX=1", "-I", "inc", "-I/abs/one", "-o", "a.o", "-include", "f.h")
    assert one == seed(
        tmp_path / "b", "-DX=1", "-I", "inc", "-I/abs/two", "-o", "b.o", "-include", "f.h"
    )
    commented = '// "quote\n#include "h.h"\n/* more */ int   k;\n'
    assert seed(tmp_path, text=commented) == seed(tmp_path)


def test_units_that_differ_have_other_names(tmp_path: Path) -> None:
    seeds = {
        seed(tmp_path),
        seed(tmp_path, "-DX=1"),
        seed(tmp_path, "-D", "X=2"),
        seed(tmp_path, text='#include "h.h"\nconst char *k = "//";\n'),
        seed(tmp_path, header="int h;"),
        unit_seed(str(tmp_path / "k.cu"), cwd=tmp_path.parent, flags=()),
        unit_seed(str(tmp_path / "none.cu"), cwd=tmp_path, flags=()),
    }
    assert len(seeds) == 7
