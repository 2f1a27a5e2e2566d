"""Every way in which a new file could differ from its plan, and its finding."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest

from archsplit.devicecode.apply import check_plan
from archsplit.errors import VerifyError
from archsplit.formats.elf import Elf
from archsplit.formats.elf_dynamic import Dynamic, read_pointers
from archsplit.formats.fatbin import WRAPPER_SECTION, host_containers
from archsplit.formats.reader import open_file
from handmade_samples import THREE, Maker, container, for_devices, image, slimmed

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.devicecode.file_plan import FilePlan


@pytest.fixture(scope="module")
def slim(tmp_path_factory: pytest.TempPathFactory) -> tuple[FilePlan, Path]:
    library = Maker(folder=tmp_path_factory.mktemp("proof")).library()
    new, plan = slimmed(library, for_devices("9.0"))
    return plan, new


def findings(slim: tuple[FilePlan, Path], at: int, content: bytes) -> str:
    plan, new = slim
    damaged = bytearray(new.read_bytes())
    damaged[at : at + len(content)] = content
    path = new.with_name("damaged.so")
    path.write_bytes(damaged)
    with pytest.raises(VerifyError) as error:
        check_plan(plan, open_file(path))
    return str(error.value)


def test_changed_image_is_found(slim: tuple[FilePlan, Path]) -> None:
    _, one = next(host_containers(Elf(open_file(slim[1]))))
    (entry,) = one.entries()
    assert "differs from the old one" in findings(slim, entry.payload_offset + 100, b"other")


def test_image_for_another_gpu_is_found(slim: tuple[FilePlan, Path]) -> None:
    _, one = next(host_containers(Elf(open_file(slim[1]))))
    (entry,) = one.entries()
    found = findings(slim, entry.offset + 28, struct.pack("<I", 80))
    assert "container 0: its images are not the ones to keep" in found


def test_wrapper_pointing_at_another_container_is_found(slim: tuple[FilePlan, Path]) -> None:
    elf = Elf(open_file(slim[1]))
    wrappers = elf.section(WRAPPER_SECTION)
    assert wrappers is not None
    first, second, *_ = (
        pointer.record or 0 for pointer in read_pointers(elf, Dynamic(elf), wrappers.addresses)
    )
    other = slim[1].read_bytes()[second + 16 : second + 24]
    assert "wrappers point at other containers" in findings(slim, first + 16, other)


def test_changed_section_is_found(slim: tuple[FilePlan, Path]) -> None:
    text = Elf(open_file(slim[1])).section(".text")
    assert text is not None
    assert "section .text has other bytes" in findings(slim, text.offset, b"\xcc" * 4)


def test_section_with_changed_address_or_size_is_found(slim: tuple[FilePlan, Path]) -> None:
    elf = Elf(open_file(slim[1]))
    comment = elf.section(".comment")
    assert comment is not None
    row = elf.header.sections_offset + 64 * comment.index
    assert "has another name, type or address" in findings(slim, row + 16, struct.pack("<Q", 64))
    assert ".comment has other bytes" in findings(slim, row + 32, struct.pack("<Q", 3))


def test_additional_section_is_found(slim: tuple[FilePlan, Path]) -> None:
    plan, new = slim
    content = bytearray(new.read_bytes())
    header = Elf(open_file(new)).header
    content[60:62] = struct.pack("<H", header.section_count + 1)
    end = header.sections_offset + 64 * header.section_count
    content[end:end] = bytes(64)
    path = new.with_name("more.so")
    path.write_bytes(content)
    with pytest.raises(VerifyError, match="the number of sections differs"):
        check_plan(plan, open_file(path))


def test_missing_container_is_found(slim: tuple[FilePlan, Path], tmp_path: Path) -> None:
    plan, _ = slim
    other = Maker(folder=tmp_path).library(THREE[:2])
    with pytest.raises(VerifyError, match="containers: 2, expected 3"):
        check_plan(plan, open_file(other))


def test_another_kind_of_file_is_refused(slim: tuple[FilePlan, Path], tmp_path: Path) -> None:
    plan, _ = slim
    text = tmp_path / "text"
    text.write_text("text")
    with pytest.raises(VerifyError, match=r"parts: \d+, expected \d+"):
        check_plan(plan, open_file(text))
    fatbin = tmp_path / "some.fatbin"
    fatbin.write_bytes(container(image("sm_90")))
    with pytest.raises(VerifyError, match="containers: 1, expected 3"):
        check_plan(plan, open_file(fatbin))


def test_sections_of_pointers_may_change_but_not_in_size_elsewhere(maker: Maker) -> None:
    library = maker.library()
    _, plan = slimmed(library, for_devices("9.0"))
    assert plan.size < len(plan.window)
