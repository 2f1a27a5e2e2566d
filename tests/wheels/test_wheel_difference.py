from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from typing import TYPE_CHECKING
from zipfile import ZipInfo

import pytest
from wheel_samples import EPOCH, TOY_FILES, TOY_NAME, plugin_plan, toy_wheel, zipped

from archsplit.errors import InputError, WheelError
from archsplit.wheels.diff import compare_wheels
from archsplit.wheels.writer import WheelDraft, WheelMember, write_wheel
from archsplit.wheels.zip_writer import ParallelDeflater

if TYPE_CHECKING:
    from pathlib import Path

LIBRARY = "vecsort_plugins/cuda/sm_90/libvecsort.so"
RECORD = "vecsort_sm90-1.2.3.dist-info/RECORD"


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    return one, other


def between(folders: tuple[Path, Path], *plans: WheelDraft) -> tuple[str, ...]:
    one, other = (
        write_wheel(folder, plan, epoch=EPOCH) for folder, plan in zip(folders, plans, strict=True)
    )
    return compare_wheels(one, other)


def test_equal_wheels_have_no_difference(folders: tuple[Path, Path]) -> None:
    assert between(folders, plugin_plan(), plugin_plan()) == ()


def test_first_differing_byte_is_reported(folders: tuple[Path, Path]) -> None:
    block = os.urandom(3 << 20)
    # Whatever byte there is, this is another one.
    other = bytes([block[2 << 20] ^ 1])
    changed = block[: 2 << 20] + other + block[(2 << 20) + 1 :]
    plans = plugin_plan(block + b"\0"), plugin_plan(changed + b"\0")
    lines = between(folders, *plans)
    at = block[2 << 20 : (2 << 20) + 8]
    against = f"{other.hex()} {at[1:].hex(' ')}"
    first = f"{LIBRARY}: from byte 2097152 on: {at.hex(' ')} against {against}"
    assert lines[0] == first
    assert [line.split(":")[0] for line in lines] == [LIBRARY, RECORD]


def test_longer_content_differs_from_the_end_of_the_shorter(folders: tuple[Path, Path]) -> None:
    lines = between(folders, plugin_plan(b"code"), plugin_plan(b"code and more"))
    first = f"{LIBRARY}: from byte 4 on: the end against 20 61 6e 64 20 6d 6f 72"
    assert lines[0] == f"{first}; 4 against 13 bytes long"


def test_additional_member_is_reported_on_either_side(folders: tuple[Path, Path]) -> None:
    plan = plugin_plan()
    more = replace(plan, members=(*plan.members, WheelMember(name="more", content=b"")))
    lines = between(folders, plan, more)
    assert lines[0] == f"more: only in {folders[1] / str(plan.name)}"
    assert lines[1].startswith(f"{RECORD}: from byte ")
    assert between(folders, more, plan)[0] == f"more: only in {folders[0] / str(plan.name)}"


def test_same_content_packed_differently_is_reported(folders: tuple[Path, Path]) -> None:
    plan = plugin_plan(bytes(1000))
    one = write_wheel(folders[0], plan, epoch=EPOCH)
    with contextlib.closing(ParallelDeflater(1, level=1)) as deflater:
        other = write_wheel(folders[1], plan, epoch=EPOCH + 2, deflater=deflater)
    lines = compare_wheels(one, other)
    assert (
        f"{LIBRARY}: same content, but time 2023-11-14-22-13-20 against 2023-11-14-22-13-22"
    ) in lines
    assert any("packed size (another packer, or another level?)" in line for line in lines)


def test_different_mode_is_reported(folders: tuple[Path, Path]) -> None:
    plan = plugin_plan()
    program = replace(plan, members=(replace(plan.members[0], mode=0o755),))
    assert between(folders, plan, program) == (
        f"{LIBRARY}: same content, but mode 100644 against 100755",
    )


def test_different_member_order_is_reported(folders: tuple[Path, Path]) -> None:
    members = [*TOY_FILES.items()]
    one, other = (
        zipped(folder / TOY_NAME, [(ZipInfo(name), content) for name, content in order])
        for folder, order in zip(folders, [members, members[::-1]], strict=True)
    )
    assert compare_wheels(one, other) == ("the order of the members",)


def test_only_bytes_of_the_archive_differ(folders: tuple[Path, Path]) -> None:
    """The version that made a member is in the directory, and no tool shows it."""
    one, other = toy_wheel(folders[0]), toy_wheel(folders[1])
    content = bytearray(other.read_bytes())
    place = content.index(b"PK\1\2") + 4
    content[place] += 1
    other.write_bytes(content)
    (line,) = compare_wheels(one, other)
    assert line.startswith(
        f"bytes of the archives outside of their members: from byte {place} on: 14 "
    )


def test_missing_file_is_refused(folders: tuple[Path, Path]) -> None:
    with pytest.raises(InputError):
        compare_wheels(toy_wheel(folders[0]), folders[1] / "gone.whl")


def test_file_other_than_a_wheel_is_refused(folders: tuple[Path, Path]) -> None:
    (folders[1] / "toy.whl").write_bytes(b"")
    with pytest.raises(WheelError, match="damaged"):
        compare_wheels(toy_wheel(folders[0]), folders[1] / "toy.whl")
