"""Identities of file systems, from the kernel's lists."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from archsplit.system import mounts
from archsplit.system.mounts import device_identity

if TYPE_CHECKING:
    from pathlib import Path

LOOP, DISK, PROGRAM, OVER, UNLISTED = (
    os.makedev(*numbers) for numbers in ((7, 0), (254, 0), (0, 39), (0, 40), (0, 41))
)


class Machine:
    """The lists of a machine; each call stands for a process of its own."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.monkeypatch = monkeypatch
        for name in ("7:0", "254:0"):
            (folder / f"block/{name}").mkdir(parents=True)
        monkeypatch.setattr(mounts, "_MOUNTS", str(folder / "mountinfo"))
        monkeypatch.setattr(mounts, "_BLOCK_DEVICES", str(folder / "block"))
        monkeypatch.setattr(mounts, "_BOOT", str(folder / "boot"))
        self.write("boot", "89abcdef-1234")

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(f"{text}\n")

    def mounted(self, *rows: str) -> None:
        self.write("mountinfo", "\n".join(f"42 27 {row}" for row in rows))

    def identity(self, device: int) -> int:
        self.monkeypatch.setattr(mounts, "_identities", {})
        return device_identity(device)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_disk_is_its_device(machine: Machine) -> None:
    machine.mounted("254:0 / / rw - ext4 /dev/vda rw")
    assert machine.identity(DISK) == DISK


@pytest.mark.parametrize("kind", ["squashfs", "ext4"])
def test_image_is_another_one_after_each_change_and_boot(machine: Machine, kind: str) -> None:
    machine.mounted(f"7:0 / /m ro - {kind} /dev/loop0 ro")
    machine.write("block/7:0/diskseq", "11")
    first = machine.identity(LOOP)
    assert first == machine.identity(LOOP) >= 0
    machine.write("block/7:0/diskseq", "12")
    assert machine.identity(LOOP) not in {first, LOOP}
    machine.write("block/7:0/diskseq", "11")
    machine.write("boot", "00000001-1234")
    assert machine.identity(LOOP) != first


def test_image_without_sequence_number_holds_for_one_process(machine: Machine) -> None:
    machine.mounted("7:0 / /m ro - squashfs /dev/loop0 ro")
    assert machine.identity(LOOP) < 0
    assert machine.identity(LOOP) != machine.identity(LOOP)
    assert device_identity(LOOP) == device_identity(LOOP)


@pytest.mark.parametrize("kind", ["squashfs", "erofs", "iso9660", "cramfs", "romfs", "udf"])
def test_image_on_any_disk_is_told_by_its_type(machine: Machine, kind: str) -> None:
    machine.mounted(f"254:0 / /m ro - {kind} /dev/vda ro")
    assert machine.identity(DISK) < 0
    machine.write("block/254:0/diskseq", "11")
    first = machine.identity(DISK)
    assert first >= 0
    machine.write("block/254:0/diskseq", "12")
    assert machine.identity(DISK) != first


def test_fuse_holds_for_one_process(machine: Machine) -> None:
    machine.mounted("0:39 / /m rw - fuse.sshfs host: rw")
    assert machine.identity(PROGRAM) < 0


@pytest.mark.parametrize("device", [OVER, UNLISTED])
def test_overlay_holds_as_long_as_its_layers(machine: Machine, device: int) -> None:
    layer = machine.folder.stat().st_dev
    name = f"{os.major(layer)}:{os.minor(layer)}"
    over = f"0:40 / /o rw - overlay overlay rw,lowerdir={machine.folder}:/none:relative,upperdir=u"
    machine.mounted(over, f"{name} / / rw - ext4 /dev/vda rw")
    assert machine.identity(device) == machine.identity(device) >= 0
    machine.mounted(over, f"{name} / / rw - fuse fuse rw")
    assert machine.identity(device) < 0


@pytest.mark.parametrize("colon", [r"\134:", r"\072"])
def test_layers_with_special_characters_are_found(
    machine: Machine, tmp_path: Path, colon: str
) -> None:
    layer = tmp_path / "a b:c,d\\040"
    layer.mkdir()
    # As Linux 6.18 prints `lowerdir=/a b\:c`: /a\040b\134:c. Others print \072.
    shown = str(layer).translate({32: r"\040", 44: r"\054", 58: colon, 92: r"\134"})
    over = f"0:40 / /o rw - overlay overlay rw,lowerdir=/none:{shown},upperdir=u"
    device = layer.stat().st_dev
    machine.mounted(over, f"{os.major(device)}:{os.minor(device)} / / rw - fuse fuse rw")
    assert machine.identity(OVER) < 0


def test_overlay_of_itself_causes_no_endless_loop(machine: Machine) -> None:
    device = machine.folder.stat().st_dev
    machine.mounted(f"0:40 / /o rw - overlay overlay rw,lowerdir={machine.folder}")
    assert machine.identity(device) >= 0


def test_machine_without_lists_has_devices(machine: Machine) -> None:
    assert machine.identity(DISK) == DISK
