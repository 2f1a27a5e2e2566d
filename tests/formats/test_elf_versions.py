"""Symbols that a library takes from versions of others, held against readelf."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from archsplit.errors import BinaryFormatError
from archsplit.formats.elf import Elf
from archsplit.formats.elf_dynamic import Dynamic, NeededSymbol, Tag, needed_symbols, newer_symbols
from archsplit.formats.reader import open_file

if TYPE_CHECKING:
    from pathlib import Path

SOURCE = """
#include <dlfcn.h>
#include <math.h>
#include <sys/random.h>
double answer(double x) { char b; dlsym(0, "x"); return pow(x, getrandom(&b, 1, 0)); }
"""
MAP = "MINE_1 { global: answer; local: *; };\n"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that needs versions of two others, and has a version of its own."""
    folder: Path = tmp_path_factory.mktemp("versions")
    (folder / "a.c").write_text(SOURCE)
    (folder / "a.map").write_text(MAP)
    words = ["gcc", "-shared", "-fPIC", "-o", "liba.so", "a.c", "-Wl,--version-script=a.map", "-lm"]
    subprocess.run([*words, "-Wl,-z,now"], cwd=folder, check=True)
    return folder / "liba.so"


def needed(path: Path) -> list[NeededSymbol]:
    return list(needed_symbols(Elf(open_file(path))))


def test_symbols_match_readelf(library: Path) -> None:
    command = ["readelf", "--dyn-syms", "-W", str(library)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    expected = re.findall(r" UND (\w+)@(\w[\w.]*)", text)
    found = needed(library)
    assert [(one.name, one.version) for one in found] == expected
    names = {one.name: one.library for one in found}
    assert (names["getrandom"], names["pow"]) == ("libc.so.6", "libm.so.6")
    assert "answer" not in names


def test_file_without_versions_needs_none(tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text("int answer(void) { return 42; }\n")
    command = ["gcc", "-shared", "-nostdlib", "-o", "liba.so", "a.c"]
    subprocess.run(command, cwd=tmp_path, check=True)
    assert needed(tmp_path / "liba.so") == []


def test_damaged_tables_are_refused(library: Path, tmp_path: Path) -> None:
    elf = Elf(open_file(library))
    values = Dynamic(elf).values
    place = elf.from_address(values[Tag.VERNEED], "needed versions").start
    content = library.read_bytes()
    damaged = tmp_path / "damaged.so"
    for at in (4, 8):  # vn_file, vn_aux
        damaged.write_bytes(content[: place + at] + b"\xff" * 4 + content[place + at + 4 :])
        with pytest.raises(BinaryFormatError):
            needed(damaged)


def test_newer_symbols_are_named_by_their_version() -> None:
    pairs = (
        ("a", "GLIBC_2.17"),
        ("b", "GLIBC_2.34"),
        ("c", "GLIBC_2.34"),
        ("d", "GLIBC_PRIVATE"),
        ("e", "MINE_9.9"),
        ("f", "GLIBC_2.2.5"),
    )
    symbols = [
        NeededSymbol(name=name, version=version, library="libc.so.6") for name, version in pairs
    ]
    assert newer_symbols(iter(symbols), (2, 17)) == {"GLIBC_2.34": ("b", "c")}
    assert newer_symbols(iter(symbols), (2, 34)) == {}
