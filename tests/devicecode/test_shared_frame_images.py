"""Images in frames of several: counted for each target, and taken out of their frame."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from archsplit.arch.target import Capability, Target
from archsplit.devicecode import kernels
from archsplit.devicecode.apply import (
    check_code_stays,
    check_plan,
    coverage_changes,
    has_code_for,
)
from archsplit.devicecode.decompression import image_content
from archsplit.devicecode.file_plan import FileEdit, plan_rewrite
from archsplit.devicecode.kernels import read_kernels
from archsplit.devicecode.model import File
from archsplit.devicecode.scan import read_contents
from archsplit.devicecode.select import Coverage
from archsplit.errors import VerifyError
from archsplit.formats.cubin import ZSTD_MAGIC, Cubin
from archsplit.formats.fatbin import Compression, EntryKind, read_container
from archsplit.formats.reader import Window
from handmade_samples import container, content_of, for_devices, image
from shared_frames import frame, record

if TYPE_CHECKING:
    from archsplit.devicecode.file_plan import FilePlan
    from archsplit.devicecode.model import Image
    from compiled_samples import Samples

FRAME = frame(record("sm_80", 0, 24), record("sm_90", 24, 16), record("compute_90", 40, 8))


def window(*entries: bytes) -> Window:
    return Window(container(*entries), source="made.fatbin")


def images(*entries: bytes) -> tuple[Image, ...]:
    found = read_contents(window(*entries), lambda start, end: (end - start) // 3)
    return found.units[0].images


def test_images_of_a_frame_have_shares_of_its_bytes() -> None:
    found = images(FRAME, image("sm_75"))
    assert [one.target_name for one in found] == ["sm_80", "sm_90", "compute_90", "sm_75"]
    assert [one.is_share for one in found] == [True, True, True, False]
    shares = found[:3]
    assert [one.packing for one in shares] == ["zstd, shared frame"] * 3
    assert sum(one.file_bytes for one in shares) == len(FRAME)
    assert sum(one.wheel_bytes or 0 for one in shares) == len(FRAME) // 3
    for one, part in zip(shares, (24, 16, 8), strict=True):
        assert abs(one.file_bytes - len(FRAME) * part / 48) < 1
    assert len({one.offset for one in found}) == 4


def test_frame_with_an_unknown_table_is_one_image_without_a_target() -> None:
    (found,) = images(frame(record("sm_80", 8, 16)))
    assert (found.kind_name, found.target, found.is_share) == ("concatenated", None, False)


def test_no_zstd_saving_is_expected_of_a_frame() -> None:
    file = File(
        path="made.fatbin",
        size=1,
        wheel_bytes=None,
        units=read_contents(window(FRAME)).units,
        zstd={(EntryKind.CUBIN, Compression.ZSTD, Target.parse("sm_80")): 0.5},
    )
    assert file.zstd_saves == 0


def test_kernels_of_a_frame_are_read(samples: Samples) -> None:
    cubin = (samples / "plain.cubin").read_bytes()
    raw = cubin + bytes(-len(cubin) % 8)
    both = frame(
        record("sm_80", 0, len(raw)), record("sm_90a", len(raw), len(raw)), content=raw * 2
    )
    content, single = window(image("sm_75"), both), Window(cubin, source="plain.cubin")
    table = read_kernels(content, read_contents(content).units)
    expected = tuple(Cubin(single).kernels())
    for target in ("sm_80", "sm_90a"):
        rows = {row.name: row.code_bytes for row in table.rows if row.target == target}
        assert rows == {one.name: one.size for one in expected}
    assert table.problem is not None
    assert table.problem.startswith("images not read for kernels: 1")


def test_oversized_frame_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "FREE_UNPACKED", 0)
    monkeypatch.setattr(kernels, "MAX_UNPACK_RATIO", 0)
    content = window(FRAME)
    table = read_kernels(content, read_contents(content).units)
    assert table.problem is not None
    assert "up to 0 left" in table.problem


def plan_for_90(content: bytes) -> FilePlan:
    window = Window(content, source="made")
    return plan_rewrite(window, FileEdit(selection=for_devices("9.0")))


def new_file(plan: FilePlan) -> Window:
    return Window(content_of(plan, plan.window.to_bytes()), source="new")


def test_image_is_taken_out_of_a_frame_beside_plain_ones() -> None:
    plan = plan_for_90(container(FRAME, image("sm_75")) + container(image("sm_80")))
    assert [str(one.target) for one in plan.containers[0].kept] == ["sm_90"]
    assert [len(one.shared) for one in plan.containers] == [0, 0]
    new = new_file(plan)
    check_plan(plan, new)
    (entry,) = read_container(new, 0).entries()
    assert (entry.header_size, entry.flags, entry.uncompressed_size) == (64, 0x8011, 16)
    assert image_content(read_container(new, 0), entry) == bytes(16)
    after = {one.capability: one.after for one in coverage_changes([plan.containers])}
    assert after[Capability(8, 0)] == {Coverage.NONE: 2}
    assert Capability(9, 0) not in after


def test_image_different_from_its_frame_is_found() -> None:
    noise = random.Random(1).randbytes(40)
    both = frame(record("sm_80", 0, 24), record("sm_90", 24, 16), content=noise)
    plan = plan_for_90(container(both))
    new = new_file(plan).to_bytes()
    check_plan(plan, Window(new, source="new"))
    # The frame has a block of these bytes as they are.
    assert noise[24:] in new
    with pytest.raises(VerifyError, match="differs from the old one"):
        check_plan(plan, Window(new.replace(noise[24:], noise[:16]), source="new"))


def test_frame_stays_if_smaller_than_its_separate_images() -> None:
    noise = random.Random(1).randbytes(2000)
    records = (record("sm_80", 0, 8), record("sm_90", 8, 2000), record("sm_90", 2008, 2000))
    shared = container(frame(*records, content=bytes(8) + noise * 2))
    plan = plan_for_90(shared + container(image("sm_80")))
    assert [len(one.shared) for one in plan.containers] == [3, 0]
    assert plan.size == len(shared + container())
    after = {one.capability: one.after for one in coverage_changes([plan.containers])}
    assert after[Capability(8, 0)] == {Coverage.NATIVE: 1, Coverage.NONE: 1}


def test_damaged_frame_stays() -> None:
    content = container(FRAME.replace(ZSTD_MAGIC, b"\0\0\0\0"), image("sm_80"))
    plan = plan_for_90(content)
    assert [len(one.shared) for one in plan.containers] == [3]
    assert plan.size == len(content) - len(image("sm_80"))


def test_code_in_a_frame_counts_as_code_for_its_gpus() -> None:
    selection = for_devices("9.0")
    content = Window(container(FRAME) + container(image("sm_80")), source="made")
    plan = plan_rewrite(content, FileEdit(selection=selection))
    assert has_code_for(selection, plan.containers)
    check_code_stays(selection, plan.containers, subject="made")
