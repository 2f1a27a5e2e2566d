"""Containers that can't move, by the place of their wrappers."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest

from archsplit.devicecode.registered import registered_containers
from archsplit.formats.elf import PROGRAM_HEADER, Elf, SegmentType
from archsplit.formats.reader import open_file

if TYPE_CHECKING:
    from handmade_samples import Maker

RELRO = 0x6474E552


@pytest.mark.parametrize("covers", ["all", "none"])
def test_wrappers_in_relro_do_not_move(maker: Maker, covers: str) -> None:
    path = maker.library()
    elf = Elf(open_file(path))
    section = elf.section(".nvFatBinSegment")
    assert section is not None
    number = next(
        index
        for index, one in enumerate(elf.segments)
        if one.type not in {SegmentType.LOAD, SegmentType.DYNAMIC}
    )
    at = elf.header.segments_offset + number * PROGRAM_HEADER.size
    content = bytearray(path.read_bytes())
    size = section.size if covers == "all" else 8
    content[at : at + 4] = struct.pack("<I", RELRO)
    content[at + 16 : at + 24] = struct.pack("<Q", section.address)
    content[at + 32 : at + 48] = struct.pack("<QQ", 0, size)
    path.write_bytes(content)
    obstacles = {one.obstacle for one in registered_containers(Elf(open_file(path)))}
    assert ("their wrappers are read-only" in obstacles) == (covers == "all")


def test_wrappers_in_a_segment_without_write_permission_do_not_move(maker: Maker) -> None:
    path = maker.library()
    elf = Elf(open_file(path))
    section = elf.section(".nvFatBinSegment")
    assert section is not None
    content = bytearray(path.read_bytes())
    for number, one in enumerate(elf.segments):
        if one.type == SegmentType.LOAD and one.address <= section.address:
            at = elf.header.segments_offset + number * PROGRAM_HEADER.size
            content[at + 4 : at + 8] = struct.pack("<I", 4)
    path.write_bytes(content)
    obstacles = {one.obstacle for one in registered_containers(Elf(open_file(path)))}
    assert obstacles == {"their wrappers are read-only"}


def test_targets_in_one_frame_do_not_move(maker: Maker) -> None:
    path = maker.library()
    first, *_ = registered_containers(Elf(open_file(path)))
    content = bytearray(path.read_bytes())
    at = first.entries[0].offset
    content[at : at + 2] = struct.pack("<H", 256)
    path.write_bytes(content)
    found, *_ = registered_containers(Elf(open_file(path)))
    assert found.wrapper is None
    assert (
        found.obstacle
        == "they are in frames of several images, which join can't make again from packs"
    )
