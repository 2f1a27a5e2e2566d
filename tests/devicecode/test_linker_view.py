"""Whatever the dynamic linker would read in another way is a finding."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest

from archsplit.devicecode.apply import check_plan
from archsplit.devicecode.linker_view import linker_findings
from archsplit.errors import VerifyError
from archsplit.formats.elf import Elf, SegmentType
from archsplit.formats.reader import open_file
from handmade_samples import Maker, for_devices, slimmed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from archsplit.devicecode.file_plan import FilePlan
    from archsplit.formats.elf import Section


@pytest.fixture(scope="module")
def slim(tmp_path_factory: pytest.TempPathFactory) -> tuple[FilePlan, Path]:
    library = Maker(folder=tmp_path_factory.mktemp("view")).library()
    new, plan = slimmed(library, for_devices("9.0"))
    return plan, new


def section(path: Path, name: str) -> Section:
    found = Elf(open_file(path)).section(name)
    assert found is not None
    return found


def program_header(path: Path, kind: int, number: int = 0) -> int:
    elf = Elf(open_file(path))
    rows = [index for index, one in enumerate(elf.segments) if one.type == kind]
    return elf.header.segments_offset + 56 * rows[number]


def second_load(path: Path) -> int:
    return program_header(path, SegmentType.LOAD, 1)


def test_a_shrunk_library_has_no_findings(slim: tuple[FilePlan, Path]) -> None:
    plan, new = slim
    assert list(linker_findings(Elf(plan.window), Elf(open_file(new)))) == []
    check_plan(plan, open_file(new))


CHANGES: dict[str, tuple[Callable[[Path], int], bytes, str]] = {
    "type": (lambda _: 16, b"\x02", "ELF header has another type"),
    "flags": (lambda path: second_load(path) + 4, b"\x07", "is mapped in another way"),
    "offset": (lambda path: second_load(path) + 8, struct.pack("<Q", 8), "aligned in memory"),
    "page": (lambda path: second_load(path) + 8, struct.pack("<Q", 0), "another place in the file"),
    "overlap": (
        lambda path: program_header(path, SegmentType.LOAD) + 40,
        struct.pack("<Q", 1 << 20),
        "not ascending, or share a page",
    ),
    "memory": (lambda path: second_load(path) + 40, struct.pack("<Q", 1), "more bytes in the file"),
    "dynamic": (
        lambda path: section(path, ".dynamic").offset + 8,
        b"\x01\x02",
        "the dynamic table differs",
    ),
    "segment": (
        lambda path: program_header(path, SegmentType.DYNAMIC) + 8,
        struct.pack("<Q", 64),
        "is not mapped from its place|dynamic",
    ),
    "kind": (lambda path: program_header(path, SegmentType.NOTE), b"\x09", "PT_LOAD and PT_PHDR"),
    "symbol": (lambda path: section(path, ".dynsym").offset + 32, b"\x99", ".dynsym has other"),
    "hash": (lambda path: section(path, ".gnu.hash").offset + 1, b"\x77", ".gnu.hash has other"),
    "relocation": (lambda path: section(path, ".rela.dyn").offset, b"\x99", ".rela.dyn has other"),
    "wrapper": (
        lambda path: section(path, ".nvFatBinSegment").offset + 4,
        b"\x05",
        ".nvFatBinSegment has other|wrapper",
    ),
    "constructors": (lambda path: section(path, ".init_array").offset, b"\x99", ".init_array has"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_table_is_found(slim: tuple[FilePlan, Path], change: str) -> None:
    plan, new = slim
    place, content, match = CHANGES[change]
    damaged = bytearray(new.read_bytes())
    at = place(new)
    assert damaged[at : at + len(content)] != content
    damaged[at : at + len(content)] = content
    path = new.with_name("damaged.so")
    path.write_bytes(damaged)
    with pytest.raises(Exception, match=match) as caught:
        check_plan(plan, open_file(path))
    assert isinstance(caught.value, VerifyError) or change in {"segment", "wrapper"}


def test_program_headers_outside_of_all_segments_are_found(slim: tuple[FilePlan, Path]) -> None:
    plan, new = slim
    header, content = Elf(open_file(new)).header, bytearray(new.read_bytes())
    content += bytes(-len(content) % 8)
    start, end = header.segments_offset, header.segments_offset + 56 * header.segment_count
    struct.pack_into("<Q", content, 32, len(content))
    content += content[start:end]
    path = new.with_name("damaged.so")
    path.write_bytes(content)
    with pytest.raises(VerifyError, match="the program headers are not mapped"):
        check_plan(plan, open_file(path))
