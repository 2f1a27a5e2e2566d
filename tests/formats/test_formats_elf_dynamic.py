from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING

import pytest
from elftools.elf.elffile import ELFFile
from formats_samples import pyelftools_symbols

from archsplit.errors import BinaryFormatError
from archsplit.formats.elf import Elf, SegmentType
from archsplit.formats.elf_dynamic import Dynamic, Tag, _relr_addresses
from archsplit.formats.reader import Window

if TYPE_CHECKING:
    from formats_samples import Samples

pytestmark = pytest.mark.nvcc
SOURCE = """
__attribute__((visibility("default"))) int shown(void) { return 1; }
__attribute__((visibility("default"), weak)) int weak(void) { return 2; }
__attribute__((visibility("protected"))) int protected_too(void) { return shown(); }
__attribute__((visibility("hidden"))) int hidden(void) { return weak(); }
static int local(void) { return hidden(); }
__attribute__((visibility("default"))) int (*pointer)(void) = local;
"""
SHOWN = {"shown", "weak", "protected_too", "pointer"}


def library(samples: Samples, name: str, *options: str) -> Elf:
    (samples.folder / "exports.c").write_text(SOURCE)
    samples.link(name, "-shared", "-fPIC", "-nostdlib", "exports.c", *options)
    return Elf(samples.window(name))


@pytest.mark.parametrize("style", ["gnu", "sysv", "both"])
def test_exported_symbols_are_found_by_every_hash_table(samples: Samples, style: str) -> None:
    dynamic = Dynamic(library(samples, f"lib{style}.so", f"-Wl,--hash-style={style}"))
    assert {symbol.name for symbol in dynamic.exported_symbols()} == SHOWN


def test_a_version_script_hides_the_rest(samples: Samples) -> None:
    (samples.folder / "only.map").write_text("{ global: shown; local: *; };")
    dynamic = Dynamic(library(samples, "libonly.so", "-Wl,--version-script=only.map"))
    assert [symbol.name for symbol in dynamic.exported_symbols()] == ["shown"]


def test_library_without_exports_has_no_symbols(samples: Samples) -> None:
    (samples.folder / "none.map").write_text("{ local: *; };")
    elf = library(samples, "libnone.so", "-Wl,--version-script=none.map")
    assert list(Dynamic(elf).exported_symbols()) == []


def test_only_initfirst_makes_constructors_run_first(samples: Samples) -> None:
    # Both are bits of DT_FLAGS_1.
    first = Dynamic(library(samples, "libfirst.so", "-Wl,-z,initfirst", "-Wl,-z,now"))
    now = Dynamic(library(samples, "libnow.so", "-Wl,-z,now"))
    plain = Dynamic(library(samples, "libplain.so", "-Wl,-z,lazy"))
    assert now.values[Tag.FLAGS_1] & 1
    assert [each.is_initialized_first for each in (first, now, plain)] == [True, False, False]


def test_soname_and_search_paths_are_read(samples: Samples) -> None:
    paths = "-Wl,-rpath,$ORIGIN/../lib"
    new = Dynamic(library(samples, "libnew.so", paths, "-Wl,--enable-new-dtags"))
    old = Dynamic(library(samples, "libold.so", paths, "-Wl,--disable-new-dtags"))
    assert (new.rpath, new.runpath, new.soname) == (None, "$ORIGIN/../lib", None)
    assert (old.rpath, old.runpath, old.soname) == ("$ORIGIN/../lib", None, None)
    assert Dynamic(Elf(samples.window("libkernels.so"))).soname == "libkernels.so.1"


@pytest.mark.parametrize("name", ["libkernels.so", "librdc.so", "librelr.so", "program"])
def test_agrees_with_readelf_and_pyelftools(samples: Samples, name: str) -> None:
    dynamic = Dynamic(Elf(samples.window(name)))
    text = samples.run("readelf", "-dW", name)
    assert list(dynamic.needed) == re.findall(r"Shared library: \[(.+)\]", text)
    with (samples.folder / name).open("rb") as file:
        exported = {
            symbol.name
            for symbol in pyelftools_symbols(ELFFile(file), ".dynsym")
            if symbol["st_shndx"] != "SHN_UNDEF" and symbol["st_info"]["bind"] != "STB_LOCAL"
        }
    assert {symbol.name for symbol in dynamic.exported_symbols()} == exported


def test_a_static_program_has_nothing(samples: Samples) -> None:
    samples.link("static", "-static", "-nostdlib", "exports.c", "-Wl,-e,shown")
    dynamic = Dynamic(Elf(samples.window("static")))
    assert (dynamic.values, dynamic.needed, list(dynamic.exported_symbols())) == ({}, (), [])


def with_tag(samples: Samples, name: str, old: Tag, new: int, value: int) -> Elf:
    """Return a library with one changed entry in its dynamic section."""
    data = bytearray(samples.bytes(name))
    elf = Elf(samples.window(name))
    dynamic = next(part for part in elf.segments if part.type == SegmentType.DYNAMIC)
    for at in range(dynamic.offset, dynamic.offset + dynamic.file_size, 16):
        if struct.unpack_from("<Q", data, at)[0] == old:
            struct.pack_into("<QQ", data, at, new, value)
    return Elf(Window(bytes(data), source="damaged"))


def test_refuses_symbols_without_a_hash_table(samples: Samples) -> None:
    dynamic = Dynamic(with_tag(samples, "libkernels.so", Tag.GNU_HASH, 0x12345, 0))
    with pytest.raises(BinaryFormatError, match="found no hash table"):
        dynamic.exported_symbols()


def test_refuses_names_outside_their_table(samples: Samples) -> None:
    with pytest.raises(BinaryFormatError, match="needed library"):
        Dynamic(with_tag(samples, "libkernels.so", Tag.NEEDED, Tag.NEEDED, 1 << 30))
    named = Dynamic(with_tag(samples, "libkernels.so", Tag.SONAME, Tag.SONAME, 1 << 30))
    with pytest.raises(BinaryFormatError, match="SONAME of the dynamic section"):
        _ = named.soname


def test_a_dynamic_section_may_lack_its_end(samples: Samples) -> None:
    data = bytearray(samples.bytes("libkernels.so"))
    elf = Elf(samples.window("libkernels.so"))
    index = next(at for at, part in enumerate(elf.segments) if part.type == SegmentType.DYNAMIC)
    start = elf.segments[index].offset
    size = next(at for at in range(0, len(data), 16) if not any(data[start + at :][:8]))
    struct.pack_into("<Q", data, 64 + 56 * index + 32, size)
    short = Dynamic(Elf(Window(bytes(data), source="short")))
    assert short.values == Dynamic(elf).values


def test_bitmap_of_packed_relocations_counts_from_the_word_after_the_address() -> None:
    # An address, a bitmap of its followers, one of the 63 words after those, and an address.
    words = (0x1000, 0b1101, 1 << 63 | 1, 0x4000, 0b11)
    assert [*_relr_addresses(iter(words))] == [0x1000, 0x1010, 0x1018, 0x13F0, 0x4000, 0x4008]
