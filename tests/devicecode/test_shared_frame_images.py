"""Images in frames of several: counted for each target, and left where they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from archsplit.arch.target import Capability
from archsplit.devicecode.apply import check_code_stays, coverage_changes, has_code_for
from archsplit.devicecode.file_plan import FileEdit, plan_rewrite
from archsplit.devicecode.kernels import read_kernels
from archsplit.devicecode.model import File
from archsplit.devicecode.scan import read_contents
from archsplit.devicecode.select import Coverage
from archsplit.formats.fatbin import Compression, EntryKind
from archsplit.formats.reader import Window
from handmade_samples import container, for_devices, image
from shared_frames import frame, record

if TYPE_CHECKING:
    from archsplit.devicecode.model import Image

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
        zstd={(EntryKind.CUBIN, Compression.ZSTD): 0.5},
    )
    assert file.zstd_saves == 0


def test_kernels_of_a_frame_are_named_as_unread() -> None:
    content = window(FRAME)
    table = read_kernels(content, read_contents(content).units)
    assert table.rows == ()
    assert table.problem is not None
    assert "2 images could not be read" in table.problem
    assert "a frame of several (kind 256)" in table.problem


def test_frame_stays_and_serves_its_gpus_after_others_went() -> None:
    content = container(FRAME) + container(image("sm_80"), image("sm_90"))
    selection = for_devices("9.0")
    plan = plan_rewrite(Window(content, source="made"), FileEdit(selection=selection))
    assert [len(one.shared) for one in plan.containers] == [3, 0]
    assert plan.size == len(container(FRAME) + container(image("sm_90")))
    after = {one.capability: one.after for one in coverage_changes(plan.containers)}
    assert after[Capability(8, 0)] == {Coverage.NATIVE: 1, Coverage.NONE: 1}


def test_code_in_a_frame_counts_as_code_for_its_gpus() -> None:
    selection = for_devices("9.0")
    content = Window(container(FRAME) + container(image("sm_80")), source="made")
    plan = plan_rewrite(content, FileEdit(selection=selection))
    assert has_code_for(selection, plan.containers)
    check_code_stays(selection, plan.containers, subject="made")
