"""Libraries of several linkers: shrunk, read by other tools, loaded in child processes."""

from __future__ import annotations

import struct
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from archsplit.devicecode.elf_shrink import FreedSpace, _can_split, compact_section
from archsplit.devicecode.file_plan import EditMode, FileEdit, FilePlan, plan_rewrite
from archsplit.devicecode.select import PtxPolicy
from archsplit.errors import BinaryFormatError
from archsplit.formats.elf import Elf
from archsplit.formats.fatbin import host_containers
from archsplit.formats.reader import open_file
from handmade_samples import (
    THREE,
    Maker,
    container,
    content_of,
    digest,
    for_devices,
    held,
    image,
    in_memory,
    slimmed,
)

if TYPE_CHECKING:
    from pathlib import Path

# Without them zig compiles its runtimes first, which takes 15 s.
ZIG = (sys.executable, "-m", "ziglang", "cc", "-fno-sanitize=undefined", "-rtlib=none")
LINKERS = {
    "gnu": (("gcc",), ()),
    "huge-alignment": (("gcc",), ("-Wl,-z,max-page-size=0x200000",)),
    "one-segment": (("gcc",), ("-Wl,-z,noseparate-code",)),
    "relr": (("gcc",), ("-Wl,-z,pack-relative-relocs",)),
    "stripped": (("gcc",), ("-s",)),
    "lld": ((*ZIG, "-target", "x86_64-linux-gnu.2.17"), ()),
}
AARCH64 = ((*ZIG, "-target", "aarch64-linux-gnu.2.17"), ())
SIZES = {
    ("sm_80", 0): 0x2000,
    ("sm_90", 0): 0x5000,
    ("sm_80", 1): 0x3000,
    ("compute_80", 1): 0x1000,
    ("sm_90a", 2): 0x6000,
}


def linked_by(folder: Path, linker: tuple[tuple[str, ...], tuple[str, ...]]) -> Path:
    compiler, flags = linker
    return Maker(folder=folder, compiler=compiler, flags=flags).library()


def check_with_other_readers(path: Path) -> None:
    """Expect no complaint from binutils and pyelftools."""
    done = subprocess.run(["readelf", "-aW", str(path)], capture_output=True, text=True, check=True)
    assert "Warning" not in done.stderr, done.stderr
    with path.open("rb") as file:
        elf = ELFFile(file)
        loads = [each for each in elf.iter_segments() if each["p_type"] == "PT_LOAD"]
        for load in loads:
            assert (load["p_vaddr"] - load["p_offset"]) % load["p_align"] == 0
            assert load["p_offset"] + load["p_filesz"] <= path.stat().st_size
        addresses = [load["p_vaddr"] for load in loads]
        assert addresses == sorted(addresses)
        table = elf["e_phoff"], elf["e_phoff"] + elf["e_phnum"] * elf["e_phentsize"]
        assert any(
            load["p_offset"] <= table[0] and table[1] <= load["p_offset"] + load["p_filesz"]
            for load in loads
        ), "the program headers have to be in memory"
        section = elf.get_section_by_name(".nv_fatbin")
        assert section is not None


@pytest.mark.parametrize(
    "linker",
    [
        pytest.param(linker, id=name, marks=pytest.mark.zig if name == "lld" else ())
        for name, linker in LINKERS.items()
    ],
)
@pytest.mark.parametrize("mode", EditMode)
def test_slimmed_library_equals_its_plan_on_disk_and_in_memory(
    linker: tuple[tuple[str, ...], tuple[str, ...]], mode: EditMode, tmp_path: Path
) -> None:
    library = linked_by(tmp_path, linker)
    before = library.read_bytes()
    new, plan = slimmed(library, for_devices("9.0", "8.0"), mode)
    targets = [["sm_80", "sm_90"], ["sm_80", "compute_80"], ["sm_90a"]]
    # 9.0 compiles the PTX of the second container; 8.0 finds nothing in the third.
    assert held(new) == targets
    check_with_other_readers(new)
    assert in_memory(new, 3) == [
        digest(container(*(image(name, SIZES[name, number]) for name in names)))
        for number, names in enumerate(targets)
    ]
    assert library.read_bytes() == before
    assert plan.note is None
    saved = len(before) - new.stat().st_size
    gone = sum(one.container.size - one.size for one in plan.containers)
    if mode is EditMode.SHRINK:
        assert gone - 2 * 0x1000 < saved <= gone
    else:
        assert saved == 0


@pytest.mark.zig
def test_an_aarch64_library_is_cut_by_its_largest_pages(tmp_path: Path) -> None:
    big = (container(image("sm_80", 0x50000), image("sm_90", 0x8000)), *THREE)
    compiler, flags = AARCH64
    library = Maker(folder=tmp_path, compiler=compiler, flags=flags).library(big)
    new, plan = slimmed(library, for_devices("9.0"))
    assert plan.note is None
    assert held(new) == [["sm_90"], ["sm_90"], ["compute_80"], ["sm_90a"]]
    saved = library.stat().st_size - new.stat().st_size
    assert saved > 0
    assert saved % 0x10000 == 0
    check_with_other_readers(new)


def test_a_library_can_be_slimmed_again(maker: Maker) -> None:
    library = maker.library()
    first, _ = slimmed(library, for_devices("9.0", "8.6"))
    second, plan = slimmed(first, for_devices("9.0"))
    third = slimmed(second, for_devices("9.0"))[1]
    assert plan.is_changed
    assert not third.is_changed
    assert held(second) == [["sm_90"], ["compute_80"], ["sm_90a"]]
    assert second.stat().st_size < first.stat().st_size < library.stat().st_size
    check_with_other_readers(second)
    assert len(in_memory(second, 3)) == 3


def test_library_slimmed_in_place_can_be_shrunk(maker: Maker) -> None:
    library = maker.library()
    first, _ = slimmed(library, for_devices("9.0", "8.6"), EditMode.IN_PLACE)
    second, _ = slimmed(first, for_devices("9.0"))
    assert held(second) == [["sm_90"], ["compute_80"], ["sm_90a"]]
    assert len(in_memory(second, 3)) == 3


def test_two_sections_are_cut_at_once(maker: Maker) -> None:
    path = maker.folder / "rdc.fatbin"
    path.write_bytes(container(image("sm_80", 0x9000), image("sm_90", 0x2000)))
    more = f'.section __nv_relfatbin,"a"\n.balign 8\nrelocatable: .incbin "{path}"\n'
    more += '.section .nvFatBinSegment,"aw"\n.4byte 0x466243b1, 1\n.8byte relocatable, 0\n'
    library = maker.library(more=more)
    new, plan = slimmed(library, for_devices("9.0"))
    assert plan.note is None
    assert sorted(held(new)) == sorted([["sm_90"], ["compute_80"], ["sm_90a"], ["sm_90"]])
    loads = [each for each in Elf(open_file(new)).segments if each.type == 1]
    old_loads = [each for each in Elf(open_file(library)).segments if each.type == 1]
    assert len(loads) == len(old_loads) + 2
    check_with_other_readers(new)
    assert len(in_memory(new, 4)) == 4


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    devices=st.sets(st.sampled_from(["8.0", "8.6", "9.0", "12.0"]), min_size=1),
    ptx=st.sampled_from(PtxPolicy),
    mode=st.sampled_from(EditMode),
)
def test_any_choice_gives_the_same_bytes_twice(
    devices: set[str], ptx: PtxPolicy, mode: EditMode, library: Path
) -> None:
    choice = for_devices(*devices, ptx=ptx)
    new, plan = slimmed(library, choice, mode)
    content = new.read_bytes()
    again = plan_rewrite(open_file(library), FileEdit(selection=choice, mode=mode))
    assert content_of(again, library.read_bytes()) == content
    assert [list(map(str, (e.target for e in one.kept))) for one in plan.containers] == held(new)
    twice = plan_rewrite(open_file(new), FileEdit(selection=choice, mode=mode))
    assert not twice.is_changed


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Maker(folder=tmp_path_factory.mktemp("library")).library()


def note_of_in_place(library: Path) -> str:
    """Slim a library that can't be shrunk, and return the note that explains why."""
    new, plan = slimmed(library, for_devices("9.0"))
    assert new.stat().st_size == library.stat().st_size
    assert plan.note is not None
    return plan.note


def test_a_pointer_into_a_container_keeps_it_in_its_place(maker: Maker) -> None:
    more = ".section .data\n.8byte fatbin1 + 8\n"
    assert "leads into a container" in note_of_in_place(maker.library(more=more))


def test_unreferenced_container_keeps_its_offset(maker: Maker) -> None:
    path = maker.folder / "hidden.fatbin"
    path.write_bytes(container(image("sm_90", 0x100)))
    more = f'.section .nv_fatbin,"a"\n.incbin "{path}"\n'
    assert "no pointer leads" in note_of_in_place(maker.library(more=more))


def test_an_exported_container_moves_with_its_symbol(maker: Maker) -> None:
    library = maker.library(more=".globl exported\n.set exported, fatbin2\n")
    new, plan = slimmed(library, for_devices("9.0"))
    assert plan.note is None
    last = [one for _, one in host_containers(Elf(open_file(new)))][-1]
    section = Elf(open_file(new)).section(".nv_fatbin")
    assert section is not None
    with new.open("rb") as file:
        for table in (".dynsym", ".symtab"):
            symbols = ELFFile(file).get_section_by_name(table)
            assert isinstance(symbols, SymbolTableSection)
            symbol = (symbols.get_symbol_by_name("exported") or [])[0]
            assert symbol["st_value"] - section.address == last.offset - section.offset


def test_an_exported_name_inside_a_container_keeps_it_in_its_place(maker: Maker) -> None:
    more = ".globl inside\n.set inside, fatbin1 + 8\n"
    assert "leads into a container" in note_of_in_place(maker.library(more=more))


def test_less_than_a_page_is_not_cut(maker: Maker) -> None:
    small = (container(image("sm_80", 0x100), image("sm_90", 0x100)),)
    # Without the path: slim unpacks a wheel into a folder of its own.
    assert note_of_in_place(maker.library(small)) == "less than a page would be freed"


def test_page_with_program_headers_is_kept(maker: Maker) -> None:
    library = maker.library((container(image("sm_80", 0x8000), image("sm_90", 0x100)),))
    section = Elf(open_file(library)).section(".nv_fatbin")
    assert section is not None
    # What stays ends a little before a page's end, and what goes takes this and one page more.
    stays = -(section.offset + 16 + 64 + 0x100) % 0x1000 - 64
    sizes = (stays + 0x100, 64 + 0x1000)
    content = container(image("sm_90", sizes[0]), image("sm_80", sizes[1] & ~7))
    assert "less than a page would be freed" in note_of_in_place(maker.library((content,)))


def test_a_program_with_fixed_addresses_is_changed_in_place(maker: Maker) -> None:
    (maker.folder / "main.c").write_text("int main(void) { return 0; }")
    objects = map(str, maker.objects("fixed", THREE))
    program = maker.folder / "program"
    maker.run("gcc", "-no-pie", "main.c", *objects, "-o", str(program))
    assert "its addresses are fixed" in note_of_in_place(program)


def test_another_machine_is_changed_in_place(library: Path, tmp_path: Path) -> None:
    content = bytearray(library.read_bytes())
    content[18:20] = struct.pack("<H", 243)
    other = tmp_path / "libriscv.so"
    other.write_bytes(content)
    # The wrappers' relocations of that machine aren't known, so the proof can't read them either.
    plan = plan_rewrite(open_file(other), FileEdit(selection=for_devices("9.0")))
    assert plan.note is not None
    assert "machine 243" in plan.note


def edited(library: Path, at: int, layout: str, *values: int | bytes) -> FilePlan:
    content = bytearray(library.read_bytes())
    struct.pack_into(layout, content, at, *values)
    path = library.with_name("edited.so")
    path.write_bytes(content)
    return plan_rewrite(open_file(path), FileEdit(selection=for_devices("9.0")))


def row_of(library: Path, name: str) -> int:
    elf = Elf(open_file(library))
    section = elf.section(name)
    assert section is not None
    return elf.header.sections_offset + 64 * section.index


def segment_row(library: Path, kind: int) -> int:
    elf = Elf(open_file(library))
    index = next(i for i, each in enumerate(elf.segments) if each.type == kind)
    return elf.header.segments_offset + 56 * index


def test_a_section_inside_of_the_fatbins_is_an_obstacle(library: Path) -> None:
    section = Elf(open_file(library)).section(".nv_fatbin")
    assert section is not None
    plan = edited(library, row_of(library, ".comment") + 24, "<Q", section.offset + 64)
    assert plan.note is not None
    assert ".comment lies in .nv_fatbin" in plan.note


def test_a_segment_inside_of_the_fatbins_is_an_obstacle(library: Path) -> None:
    section = Elf(open_file(library)).section(".nv_fatbin")
    assert section is not None
    plan = edited(library, segment_row(library, 0x6474E550) + 8, "<Q", section.offset + 64)
    assert plan.note is not None
    assert "2 segments hold .nv_fatbin" in plan.note


def test_fatbins_outside_of_all_segments_are_an_obstacle(library: Path) -> None:
    elf = Elf(open_file(library))
    section = elf.section(".nv_fatbin")
    assert section is not None
    index = next(
        i
        for i, each in enumerate(elf.segments)
        if each.type == 1 and each.offset <= section.offset < each.offset + each.file_size
    )
    plan = edited(library, elf.header.segments_offset + 56 * index, "<I", 0x60000000)
    assert plan.note is not None
    assert "can't be split" in plan.note


def test_a_cut_up_to_the_end_of_a_segment_leaves_no_empty_one(maker: Maker) -> None:
    library = maker.library(more='.section .nv_fatbin,"a"\n.balign 4096\n')
    elf = Elf(open_file(library))
    section = elf.section(".nv_fatbin")
    assert section is not None
    end = section.offset + section.size
    around = next(
        i
        for i, each in enumerate(elf.segments)
        if each.type == 1 and each.offset <= end < _end(elf, i)
    )
    size = end - elf.segments[around].offset
    plan = edited(library, elf.header.segments_offset + 56 * around + 32, "<QQ", size, size)
    assert plan.note is None
    new = library.with_name("new.so")
    new.write_bytes(content_of(plan, library.with_name("edited.so").read_bytes()))
    loads = [each for each in Elf(open_file(new)).segments if each.type == 1]
    assert len(loads) == sum(each.type == 1 for each in elf.segments)
    assert all(each.file_size for each in loads)


def test_fatbins_in_two_segments_are_an_obstacle(library: Path) -> None:
    elf = Elf(open_file(library))
    section = elf.section(".nv_fatbin")
    assert section is not None
    loads = [i for i, each in enumerate(elf.segments) if each.type == 1]
    around = next(i for i in loads if elf.segments[i].offset <= section.offset < _end(elf, i))
    row = struct.pack(
        "<IIQQQQQQ", 1, 4, *[elf.segments[around].offset, elf.segments[around].address],
        0, elf.segments[around].file_size, elf.segments[around].memory_size, 0x1000,
    )  # fmt: skip
    other = next(i for i, each in enumerate(elf.segments) if each.type == 4)
    plan = edited(library, elf.header.segments_offset + 56 * other, "<56s", row)
    assert plan.note is not None
    assert "2 segments hold .nv_fatbin" in plan.note


def _end(elf: Elf, index: int) -> int:
    return elf.segments[index].offset + elf.segments[index].file_size


def test_a_library_without_section_headers_is_refused(library: Path) -> None:
    with pytest.raises(BinaryFormatError, match="section headers"):
        edited(library, 40, "<Q", 0)


def test_a_truncated_library_is_one_error(library: Path, tmp_path: Path) -> None:
    content = library.read_bytes()
    path = tmp_path / "cut.so"
    for size in range(0, len(content), 997):
        path.write_bytes(content[:size])
        try:
            plan = plan_rewrite(open_file(path), FileEdit(selection=for_devices("9.0")))
        except BinaryFormatError:
            continue
        assert plan.form is None or not plan.is_changed


def test_incongruent_segment_cannot_be_split(maker: Maker) -> None:
    elf = Elf(open_file(maker.library()))
    section = elf.section(".nv_fatbin")
    assert section is not None
    segment = next(
        one
        for one in elf.segments
        if one.type == 1 and one.offset <= section.offset < one.offset + one.file_size
    )
    space = FreedSpace(compaction=compact_section(section, ()), page=0x1000)
    assert _can_split(segment, space)
    # Both by the same distance, so that only file and memory disagree within a page.
    moved = section._replace(address=section.address + 8)
    space = FreedSpace(compaction=compact_section(moved, ()), page=0x1000)
    assert not _can_split(replace(segment, address=segment.address + 8), space)
