from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from elftools.elf.elffile import ELFFile
from formats_samples import pyelftools_symbols

from archsplit.errors import BinaryFormatError
from archsplit.formats.elf import Elf, FileType, Machine, SegmentType, read_notes
from archsplit.formats.elf_dynamic import Dynamic, section_symbols
from archsplit.formats.reader import Window, open_file

if TYPE_CHECKING:
    from formats_samples import Samples

pytestmark = pytest.mark.nvcc
HOST_FILES = (
    "kernels.o",
    "rdc.o",
    "libkernels.so",
    "librdc.so",
    "program",
    "aarch64.o",
    "libaarch64.so",
    "sm_90a.cubin",
)
SEGMENT, SECTION = struct.Struct("<IIQQQQQQ"), struct.Struct("<IIQQQQIIQQ")


def damaged(data: bytes, offset: int, layout: str, *values: int) -> Elf:
    changed = bytearray(data)
    struct.pack_into(layout, changed, offset, *values)
    return Elf(Window(bytes(changed), source="damaged"))


@pytest.mark.parametrize("name", HOST_FILES)
def test_agrees_with_pyelftools(samples: Samples, name: str) -> None:
    elf = Elf(samples.window(name))
    with (samples.folder / name).open("rb") as file:
        other = ELFFile(file)
        sections = [
            (part.name, part["sh_offset"], part["sh_size"]) for part in other.iter_sections()
        ]
        segments = [(part["p_offset"], part["p_vaddr"]) for part in other.iter_segments()]
        symbols = [
            (symbol.name, symbol["st_value"], symbol["st_size"])
            for symbol in pyelftools_symbols(other, ".symtab")
        ]
    assert [(part.name, part.offset, part.size) for part in elf.sections()] == sections
    assert [(part.offset, part.address) for part in elf.segments] == segments
    table = elf.section(".symtab")
    assert table is not None
    ours = [(symbol.name, symbol.value, symbol.size) for symbol in section_symbols(elf, table)]
    # pyelftools names the symbols of sections after them; the table itself has no names for them.
    assert [symbol for symbol in ours if symbol[0]] == [
        symbol for symbol, our in zip(symbols, ours, strict=True) if our[0]
    ]


def test_kind_and_machine_of_each_file_are_read(samples: Samples) -> None:
    found = {
        name: (Elf(samples.window(name)).header.type, Elf(samples.window(name)).header.machine)
        for name in ("kernels.o", "program", "libaarch64.so", "sm_75.cubin")
    }
    assert found == {
        "kernels.o": (FileType.OBJECT, Machine.X86_64),
        "program": (FileType.EXECUTABLE, Machine.X86_64),
        "libaarch64.so": (FileType.LIBRARY, Machine.AARCH64),
        "sm_75.cubin": (FileType.EXECUTABLE, Machine.CUDA),
    }


def test_sections_are_found_by_name_and_number(samples: Samples) -> None:
    elf = Elf(samples.window("libkernels.so"))
    text = elf.section(".text")
    assert text is not None
    assert elf.section_at(text.index) == text
    assert len(elf.content(text)) == text.size
    assert elf.section(".none") is None
    with pytest.raises(BinaryFormatError, match="header of section 999"):
        elf.section_at(999)


def test_sections_without_bytes_have_none(samples: Samples) -> None:
    elf = Elf(samples.window("libkernels.so"))
    bss = elf.section(".bss")
    assert bss is not None
    assert bss.size > 0
    assert len(elf.content(bss)) == 0


def test_bytes_at_a_mapped_address_are_found_and_others_refused(samples: Samples) -> None:
    elf = Elf(samples.window("libkernels.so"))
    data = elf.section(".nvFatBinSegment")
    assert data is not None
    assert data.address != data.offset
    assert elf.at_address(data.address, data.size, "wrapper").start == data.offset
    for address, size in ((1 << 40, 1), (data.address, 1 << 20), (-1, 1)):
        with pytest.raises(BinaryFormatError):
            elf.at_address(address, size, "wild")


def test_address_before_all_segments_is_refused(samples: Samples) -> None:
    elf = Elf(samples.window("program"))
    with pytest.raises(BinaryFormatError, match="found address 0x10, expected one that a PT_LOAD"):
        elf.from_address(0x10, "low")


def test_file_without_section_headers_is_still_read(samples: Samples) -> None:
    whole = samples.bytes("libkernels.so")
    elf = damaged(whole, 40, "<Q", 0)
    assert (elf.section_count, list(elf.sections())) == (0, [])
    dynamic = Dynamic(elf)
    assert dynamic.soname == "libkernels.so.1"
    assert "run" in {symbol.name for symbol in dynamic.exported_symbols()}
    assert [note.owner for note in read_notes(elf)] == ["GNU"]


def test_numbers_beyond_the_header_are_refused(samples: Samples) -> None:
    data = bytearray(samples.bytes("kernels.o"))
    (sections_at,) = struct.unpack_from("<Q", data, 40)
    count, names = struct.unpack_from("<HH", data, 60)
    first = (0, 0, 0, 0, 0, count, names, 0, 0, 0)
    SECTION.pack_into(data, sections_at, *first)
    struct.pack_into("<HH", data, 60, 0, 0xFFFF)
    elf = Elf(Window(bytes(data), source="many sections"))
    assert elf.section_count == count
    assert elf.section(".nv_fatbin") is not None


@pytest.mark.parametrize(
    ("offset", "layout", "value", "what"),
    [
        (0, "<I", 0x464C457E, "ELF magic"),
        (4, "<B", 1, "ELF class"),
        (5, "<B", 2, "ELF byte order"),
        (6, "<B", 0, "ELF version"),
        (54, "<H", 32, "size of a program header"),
        (56, "<H", 0xFFFF, "number of segments"),
        (56, "<H", 0xFFFE, "program headers"),
        (32, "<Q", 1 << 63, "program headers"),
        (58, "<H", 40, "size of a section header"),
        (40, "<Q", 1 << 63, "first section header"),
        (60, "<H", 0xFFFF, "section headers"),
        (62, "<H", 0xFF00, "header of the section of names"),
        (64 + 32, "<Q", 1 << 40, "PT_LOAD segment"),
        (64 + 8, "<Q", (1 << 64) - 8, "PT_LOAD segment"),
    ],
)
def test_refuses_damage(samples: Samples, offset: int, layout: str, value: int, what: str) -> None:
    data = samples.bytes("libkernels.so")
    with pytest.raises(BinaryFormatError, match=f"damaged: {what} at offset"):
        damaged(data, offset, layout, value)


def test_non_elf_file_is_refused() -> None:
    for content in (b"", b"\x7fELF", b"MZ" + bytes(100)):
        with pytest.raises(BinaryFormatError):
            Elf(Window(content, source="other"))


def test_refuses_a_library_cut_anywhere(samples: Samples) -> None:
    data = samples.bytes("libkernels.so")
    for size in range(0, len(data), 97):
        with pytest.raises(BinaryFormatError):
            Elf(Window(data[:size], source="cut"))


def test_refuses_a_stripped_library_cut_inside_a_segment(samples: Samples) -> None:
    data = bytearray(samples.bytes("libkernels.so"))
    struct.pack_into("<Q", data, 40, 0)
    loads = [part for part in Elf(samples.window("libkernels.so")).segments if part.type == 1]
    end = max(load.offset + load.file_size for load in loads)
    assert Elf(Window(bytes(data[:end]), source="whole")).segments
    with pytest.raises(BinaryFormatError, match="PT_LOAD"):
        Elf(Window(bytes(data[: end - 1]), source="cut"))


def test_notes_of_both_alignments_are_read() -> None:
    elf = Elf(open_file(Path(sys.executable).resolve()))
    notes = list(read_notes(elf))
    assert {note.owner for note in notes} >= {"GNU"}
    alignments = {part.alignment for part in elf.segments if part.type == SegmentType.NOTE}
    assert alignments >= {4, 8}


def test_notes_without_segments_are_read_by_sections(tmp_path: Path) -> None:
    source = tmp_path / "toy.s"
    source.write_text(
        '.section .note.toy,"",@note\n.long 4, 0, 7\n.asciz "toy"\n'
        '.section .plain,"",@progbits\n.long 4, 0, 8\n.asciz "not"\n'
        '.section .zeros,"aw",@nobits\n.zero 16\n'
    )
    subprocess.run(["gcc", "-c", source.name, "-o", "toy.o"], cwd=tmp_path, check=True)
    elf = Elf(open_file(tmp_path / "toy.o"))
    assert not elf.segments
    assert [(note.owner, note.type) for note in read_notes(elf)] == [("toy", 7)]


def test_overlapping_notes_are_refused(samples: Samples) -> None:
    data = bytearray(samples.bytes("libkernels.so"))
    offset, size = len(data), 1 << 17
    data += struct.pack("<III4s", 4, size - 16, 1, b"own") + bytes(size - 16)
    for index in range(2):
        SEGMENT.pack_into(data, 64 + 56 * index, 4, 4, offset, 0, 0, size, 0, 4)
    notes = read_notes(Elf(Window(bytes(data), source="overlaps")))
    assert next(notes).owner == "own"
    with pytest.raises(BinaryFormatError, match=r"notes at offset .*: found more bytes than"):
        next(notes)
