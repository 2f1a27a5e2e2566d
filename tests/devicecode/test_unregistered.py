"""Code that only a library finds: seen in frames and containers, and overwritten where it lies."""

from __future__ import annotations

import random
import struct
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from archsplit.arch.target import Target
from archsplit.devicecode import unregistered
from archsplit.devicecode.apply import check_plan, write_plan
from archsplit.devicecode.file_plan import EditMode, FileEdit, plan_rewrite
from archsplit.devicecode.model import Place
from archsplit.devicecode.scan import read_contents
from archsplit.devicecode.select import Selection
from archsplit.errors import VerifyError
from archsplit.formats.fatbin import Compression
from archsplit.formats.reader import open_file
from archsplit.formats.zstd import zstd
from archsplit.split.take_apart import unregistered_images
from archsplit.system.fs import sha256
from handmade_samples import (
    LTO_IR,
    Maker,
    container,
    content_of,
    for_devices,
    held,
    image,
    in_memory,
)

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.devicecode.file_plan import FilePlan
    from compiled_samples import Samples

OUTSIDE = container(
    image("sm_80", 0x3000),
    image("sm_90a", 0x2000),
    image("compute_80", 0x1000),
    image("sm_80", 0x800, kind=LTO_IR),
)
FRAMED = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_120")
SECTIONS = """
.section .cask_resource,"a"
.balign 8
.incbin "{folder}/outside.fatbin"
.section .ldata,"aw"
.balign 16
.incbin "{folder}/frames.bin"
"""


def cubin(name: str, abi: int = 8, machine: int = 190) -> bytes:
    """The head of a cubin, and bytes in place of its code."""
    number = Target.parse(name).capability.sm_number
    flags = number << 8 if abi == 8 else number
    ident = b"\x7fELF\x02\x01\x01\x41" + bytes([abi]) + bytes(7)
    head = ident + struct.pack("<HHIQQQIHHHHHH", 2, machine, 1, 0, 0, 0, flags, 64, 0, 0, 64, 0, 0)
    return head + random.Random(name).randbytes(0x4000)


def frame(content: bytes) -> bytes:
    return zstd.compress(content)


@pytest.fixture
def library(maker: Maker) -> Path:
    frames = [frame(cubin(name)) for name in FRAMED]
    # A frame of text, a cubin of an old toolkit, only the magic, and a damaged frame.
    others = [frame(b"text " * 99), frame(cubin("sm_90", abi=7)), b"\x28\xb5\x2f\xfd\xff" * 3]
    (maker.folder / "outside.fatbin").write_bytes(OUTSIDE)
    (maker.folder / "frames.bin").write_bytes(b"\0\0\0".join([*frames, *others]))
    registered = (container(image("sm_80"), image("sm_90", 0x5000)),)
    return maker.library(registered, more=SECTIONS.format(folder=maker.folder))


def framed(path: Path) -> list[str]:
    return [
        str(one.target)
        for unit in read_contents(open_file(path)).units
        for one in unit.images
        if one.is_bare and one.compression is Compression.ZSTD
    ]


def slim(path: Path, edit: FileEdit) -> tuple[Path, FilePlan]:
    plan = plan_rewrite(open_file(path), edit)
    target = path.with_name("slim.so")
    target.write_bytes(content_of(plan, path.read_bytes()))
    check_plan(plan, open_file(target))
    return target, plan


def zero(*devices: str, mode: EditMode = EditMode.SHRINK) -> FileEdit:
    return FileEdit(selection=for_devices(*devices), mode=mode, zeroes_unregistered=True)


def test_cubins_in_frames_are_images(library: Path) -> None:
    assert framed(library) == [*FRAMED, "sm_90"]
    units = read_contents(open_file(library)).units
    assert {unit.section for unit in units if unit.place is Place.OUTSIDE} == {
        ".cask_resource",
        ".ldata",
    }
    assert read_contents(open_file(library)).problem is None


@pytest.mark.nvcc
def test_a_cubin_of_nvcc_is_seen_in_a_frame(samples: Samples, maker: Maker) -> None:
    content = frame((samples / "plain.cubin").read_bytes())
    (maker.folder / "frames.bin").write_bytes(content)
    (maker.folder / "outside.fatbin").write_bytes((samples / "kernels.fatbin").read_bytes())
    library = maker.library(more=SECTIONS.format(folder=maker.folder))
    assert framed(library) == ["sm_90"]


def test_a_split_names_the_code_in_frames(library: Path) -> None:
    (row,) = [one for one in unregistered_images("x.so", library) if ".ldata" in one.why]
    assert row.images == len(FRAMED) + 1


@pytest.mark.parametrize("mode", EditMode)
def test_zeroing_empties_unrunnable_images(library: Path, mode: EditMode) -> None:
    old = library.read_bytes()
    target, plan = slim(library, zero("9.0", mode=mode))
    assert framed(target) == ["sm_90", "sm_90"]
    assert {one.target for one in plan.zeroed} == {"sm_75", "sm_80", "sm_86", "sm_120"}
    new = target.read_bytes()
    # The start of each frame, the container's headers, PTX and LTO IR are what they were.
    for name in FRAMED:
        head = frame(cubin(name))[:16]
        assert new.count(head) == old.count(head) >= 1
    assert image("sm_80", 0x3000)[64:] not in new
    assert image("sm_80", 0x3000)[:64] in new
    for one in ("sm_90a", "compute_80"):
        size = {"sm_90a": 0x2000, "compute_80": 0x1000}[one]
        assert image(one, size) in new
    assert image("sm_80", 0x800, kind=LTO_IR) in new
    assert held(target) == [["sm_90"]]
    assert in_memory(target, 1)


@pytest.mark.parametrize(
    ("selection", "kept"),
    [
        (for_devices("8.9"), ["sm_80", "sm_86"]),
        (for_devices("8.0", "12.1"), ["sm_80", "sm_120"]),
        (Selection(keep=frozenset({Target.parse("sm_90a")})), ["sm_90", "sm_90"]),
        (
            Selection(drop=frozenset({Target.parse("sm_80")})),
            ["sm_75", "sm_86", "sm_90", "sm_120", "sm_90"],
        ),
    ],
)
def test_runnable_images_stay(library: Path, selection: Selection, kept: list[str]) -> None:
    target, _ = slim(library, FileEdit(selection=selection, zeroes_unregistered=True))
    assert framed(target) == kept


def test_keep_counts_and_changes_nothing_there(library: Path) -> None:
    target, plan = slim(library, replace(zero("9.0"), zeroes_unregistered=False))
    assert framed(target) == framed(library)
    assert plan.zeroed == ()
    assert sum(one.size for one in plan.unregistered) > 4 * 0x4000


def test_a_proven_library_needs_no_option(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edit = replace(zero("9.0"), zeroes_unregistered=None)
    assert slim(library, edit)[1].zeroed == ()
    # It has no SONAME.
    row = replace(unregistered.PROVEN_LIBRARIES[0], name="", sha256=sha256(library))
    monkeypatch.setattr(unregistered, "PROVEN_LIBRARIES", (row,))
    target, plan = slim(library, edit)
    assert framed(target) == ["sm_90", "sm_90"]
    assert plan.zeroed == plan.unregistered


def test_zeros_elsewhere_are_found_by_the_check(library: Path) -> None:
    target, plan = slim(library, zero("9.0", mode=EditMode.IN_PLACE))
    content = bytearray(target.read_bytes())
    at = content.index(frame(cubin("sm_90"))) + 100
    content[at] ^= 1
    target.write_bytes(content)
    with pytest.raises(VerifyError, match=r"section \.ldata has other bytes"):
        check_plan(plan, open_file(target))


def test_a_second_run_has_nothing_to_do(library: Path) -> None:
    target, _ = slim(library, zero("9.0"))
    again = plan_rewrite(open_file(target), zero("9.0"))
    # The headers of the container still name the emptied images.
    assert again.unregistered == ()
    assert not again.is_changed


def test_emptied_images_no_longer_count_as_code(library: Path) -> None:
    target, _ = slim(library, zero("9.0"))
    images = [
        image.target_name
        for unit in read_contents(open_file(target)).units
        if unit.section == ".cask_resource"
        for image in unit.images
    ]
    assert images == ["sm_90a", "compute_80", "lto_80"]


def can_have_holes(folder: Path) -> bool:
    path = folder / "hole"
    with path.open("wb") as file:
        file.truncate(1 << 20)
    return path.stat().st_blocks == 0


def test_zeros_become_holes_on_sparse_file_systems(maker: Maker, tmp_path: Path) -> None:
    if not can_have_holes(tmp_path):
        pytest.skip("the file system has no holes")
    big = container(image("sm_80", 1 << 20), image("sm_90", 0x1000))
    path = maker.library((big,))
    edit = FileEdit(selection=for_devices("9.0"), mode=EditMode.IN_PLACE)
    plan = plan_rewrite(open_file(path), edit)
    target = tmp_path / "new.so"
    write_plan(path, plan, target)
    assert target.read_bytes() == content_of(plan, path.read_bytes())
    assert target.stat().st_blocks * 512 < path.stat().st_size // 2
