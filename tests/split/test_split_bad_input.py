"""Wheels that were cut off or made to harm, full disks, Ctrl-C and kill: all or nothing."""

from __future__ import annotations

import os
import random
import resource
import signal
import struct
import subprocess
import sys
import threading
import time
import zipfile
from typing import TYPE_CHECKING, NoReturn

import pytest
from split_samples import Sample, fat_wheel, split

from archsplit.arch.target import Target
from archsplit.errors import ArchsplitError, InputError, OutputError, VerifyError, WheelError
from archsplit.formats.elf import Elf
from archsplit.formats.reader import Window
from archsplit.release.checks import CheckScope
from archsplit.release.verify import verify_release
from archsplit.split import split as split_module
from archsplit.split.restore import join_split

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from archsplit.release.context import Effects

TABLES = (".rela.dyn", ".dynamic", ".nvFatBinSegment", ".dynsym", ".nv_fatbin", ".dynstr")
VALUES = (b"\0", b"\xff", b"\xff" * 4, b"\xff" * 8, bytes(8), struct.pack("<q", 2**63 - 1))
COMMAND = "import sys; from archsplit.cli.main import main; sys.exit(main(sys.argv[1:]))"


def test_truncated_wheel_is_refused(sample: Sample, tmp_path: Path, effects: Effects) -> None:
    content = sample.fat.read_bytes()
    for size in [0, 1, 100, *range(1000, len(content), len(content) // 7), len(content) - 1]:
        torn = tmp_path / sample.fat.name
        torn.write_bytes(content[:size])
        with pytest.raises(WheelError):
            split(torn, tmp_path / "out", effects)
        assert not (tmp_path / "out").exists()


def test_a_wheel_with_changed_bytes_is_refused(
    sample: Sample, tmp_path: Path, effects: Effects
) -> None:
    content, source = sample.fat.read_bytes(), random.Random(3)
    for _ in range(12):
        changed = bytearray(content)
        at = source.randrange(200, len(content) - 2000)
        changed[at] ^= 1 << source.randrange(8)
        torn = tmp_path / sample.fat.name
        torn.write_bytes(changed)
        with pytest.raises(ArchsplitError):
            split(torn, tmp_path / "out", effects)
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("folders", "fault"),
    [
        (300, "in more than 256 folders, so pip can't install it"),
        (2000, "it is too long for a file system"),
    ],
)
def test_member_uninstallable_by_pip_is_the_fat_wheels_fault(
    sample: Sample, tmp_path: Path, effects: Effects, folders: int, fault: str
) -> None:
    path = tmp_path / sample.fat.name
    path.write_bytes(sample.fat.read_bytes())
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("a/" * folders + "x", b"")
    with pytest.raises(WheelError, match=fault):
        split(path, tmp_path / "out", effects)
    assert not (tmp_path / "out").exists()


def test_a_wheel_for_musl_is_refused(sample: Sample, tmp_path: Path, effects: Effects) -> None:
    path = tmp_path / "toyfat-1.0-py3-none-musllinux_1_2_x86_64.whl"
    path.write_bytes(sample.fat.read_bytes())
    with pytest.raises(InputError, match="is for musl"):
        split(path, tmp_path / "out", effects)


@pytest.mark.parametrize("pack", ["", "cc90"])
def test_split_wheel_is_not_split_again(
    sample: Sample, tmp_path: Path, effects: Effects, pack: str
) -> None:
    with pytest.raises(InputError, match="was split before") as refused:
        split(sample.wheel(pack), tmp_path / "out", effects)
    assert "archsplit join" in str(refused.value.hint)
    assert not (tmp_path / "out").exists()


def test_wheels_of_another_split_are_not_mixed_in(
    sample: Sample, tmp_path: Path, effects: Effects
) -> None:
    out = split(sample.fat, tmp_path / "out", effects, targets=(Target.parse("sm_90"),))
    before = sorted(out.iterdir())
    with pytest.raises(OutputError, match="already has a different split of toyfat"):
        split(sample.fat, out, effects)
    assert sorted(out.iterdir()) == before
    split(sample.fat, out, effects, targets=(Target.parse("sm_90"),))
    (out / "archsplit-report.json").write_text("no report")
    with pytest.raises(InputError, match="is not a release's report"):
        split(sample.fat, out, effects, targets=(Target.parse("sm_90"),))


def test_split_beside_a_faster_one_is_refused(
    sample: Sample, tmp_path: Path, effects: Effects, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, verify = tmp_path / "out", verify_release
    targets = (Target.parse("sm_90"),)

    def verify_and_be_overtaken(*arguments: object, **options: object) -> None:
        monkeypatch.setattr(split_module, "verify_release", verify)
        verify(*arguments, **options)  # type: ignore[arg-type]  # passed on as they are
        split(sample.fat, out, effects, targets=targets)

    monkeypatch.setattr(split_module, "verify_release", verify_and_be_overtaken)
    with pytest.raises(OutputError, match="already has a different split of toyfat"):
        split(sample.fat, out, effects)
    faster = split(sample.fat, tmp_path / "faster", effects, targets=targets)
    assert contents(out) == contents(faster)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def damaged(content: bytes, source: random.Random) -> bytes:
    """A library with some values changed where they are likely to matter."""
    where = [range(400), range(len(content) - 1800, len(content))]
    where += [
        range(section.offset, section.offset + min(section.size, 200))
        for section in Elf(Window(content, source="sample")).sections()
        if section.name in TABLES
    ]
    changed = bytearray(content)
    for _ in range(source.choice([1, 1, 2, 4])):
        at = source.choice(source.choice(where))
        at -= at % source.choice([1, 2, 4, 8])
        inside = struct.pack("<Q", source.randrange(len(content)))
        value = source.choice([*VALUES, inside, source.randbytes(8)])
        changed[at : at + len(value)] = value
    return bytes(changed)


@pytest.mark.parametrize("rounds", [8, pytest.param(60, marks=pytest.mark.stress)])
def test_a_hostile_library_stays_or_is_split_soundly(
    rounds: int, sample: Sample, tmp_path: Path, effects: Effects
) -> None:
    with zipfile.ZipFile(sample.fat) as archive:
        library = archive.read("toyfat/lib/liba.so")
        other = archive.read("toyfat/lib/libb.so")
    source, sound, refused = random.Random(11), 0, list[str]()
    for number in range(rounds):
        members = {"toyfat/lib/liba.so": damaged(library, source), "toyfat/lib/libb.so": other}
        folder = tmp_path / str(number)
        fat = fat_wheel(folder, {"toyfat/__init__.py": b"", **members})
        out = folder / "out"
        try:
            split(fat, out, effects)
        except ArchsplitError as error:
            refused.append(str(error))
            assert not out.exists()
            continue
        sound += 1
        verify_release(out, scope=CheckScope(complete=True))
        for joined in join_split(out, folder / "joined"):
            assert joined.path.read_bytes() == members[joined.name]
    assert sound
    assert refused
    assert all("toyfat/lib/liba.so" in each and ".fat" not in each for each in refused)


@pytest.fixture
def files_of_64_kib() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.usefixtures("files_of_64_kib")
def test_a_full_disk_leaves_nothing(sample: Sample, tmp_path: Path, effects: Effects) -> None:
    (tmp_path / "theirs").mkdir()
    with pytest.raises(OutputError):
        split(sample.fat, tmp_path / "out", effects)
    assert not (tmp_path / "out").exists()
    with pytest.raises(OutputError):
        join_split(sample.out, tmp_path / "theirs")
    assert list((tmp_path / "theirs").rglob("*.so")) == []


@pytest.mark.parametrize("step", ["take_apart.unregistered_images", "split.plan_contents"])
def test_fault_ends_the_threads_packing_meanwhile(
    sample: Sample, tmp_path: Path, effects: Effects, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Libraries are packed meanwhile: no thread packs on, or waits forever."""

    def fail(*_: object) -> NoReturn:
        raise VerifyError("as if it differed from the plan")

    monkeypatch.setattr(f"archsplit.split.{step}", fail)
    before = threading.active_count()
    with pytest.raises(VerifyError, match="as if it differed"):
        split(sample.fat, tmp_path / "out", effects)
    assert threading.active_count() == before
    assert not (tmp_path / "out").exists()


def test_folder_in_the_place_of_a_wheel_is_refused(
    sample: Sample, tmp_path: Path, effects: Effects
) -> None:
    name = sample.wheel("ptx").name
    (tmp_path / "out" / name).mkdir(parents=True)
    with pytest.raises(OutputError, match="a folder of that name is in the way"):
        split(sample.fat, tmp_path / "out", effects)
    assert [path.name for path in (tmp_path / "out").iterdir()] == [name]


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_leaves_all_or_nothing(
    sample: Sample, tmp_path: Path, signum: signal.Signals
) -> None:
    source, names = random.Random(signum), {path.name for path in sample.out.iterdir()}
    for number in range(2):
        out = tmp_path / str(number)
        words = (sys.executable, "-c", COMMAND, "split", str(sample.fat), "--out", str(out))
        with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as child:
            while not out.exists() and child.poll() is None:
                time.sleep(0.001)
            time.sleep(source.random() * 2)
            child.send_signal(signum)
            said = child.communicate()[1].decode()
        left = {path.name for path in out.iterdir()} if out.exists() else set()
        if signum is signal.SIGKILL:
            left = {name for name in left if not name.startswith(".archsplit-")}
        assert left in (set(), names), said
        # As it ends, Python takes its handlers down; what comes then finds the work done.
        assert child.returncode in {0, 130, -signum}, said
        assert "Traceback" not in said
        if child.returncode == os.EX_OK or (child.returncode == -signum != -signal.SIGKILL):
            assert left == names
