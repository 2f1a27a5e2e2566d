"""Wheels: what is changed, what must not be, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import os
import struct
import subprocess
import sys
import zipfile
from email.parser import Parser
from typing import TYPE_CHECKING

import pytest
from slim_wheel_samples import METADATA, NAME, fat_library, fat_wheel, row, wheel_text

from archsplit.devicecode.file_plan import EditMode
from archsplit.devicecode.select import PtxPolicy, Selection
from archsplit.errors import (
    ArchsplitError,
    BinaryFormatError,
    OutputError,
    TargetError,
    VerifyError,
    WheelError,
)
from archsplit.release.context import Effects
from archsplit.slim.request import SlimRequest
from archsplit.slim.wheel import slim_wheel
from archsplit.system.process import CompletedProcess, SubprocessRunner
from archsplit.system.terminal import SilentProgress
from archsplit.wheels.reader import open_wheel
from handmade_samples import THREE, container, for_devices, held, image, in_memory
from target_lists import parse_targets

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.slim.report import SlimReport
    from archsplit.system.process import Command
    from archsplit.wheels.reader import Wheel

SLIM_NAME = NAME.replace("1.2.3-", "1.2.3-0slim.cc90.noptx-")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return fat_library(tmp_path_factory.mktemp("library"))


@pytest.fixture(scope="module")
def wheel(library: bytes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fat_wheel(tmp_path_factory.mktemp("wheel"), library=library)


def effects(runner: FakeRunner | None = None) -> Effects:
    return Effects(
        progress=SilentProgress(),
        environment=os.environ,
        jobs=1,
        runner=runner or SubprocessRunner(),
    )


def request(source: Path, out: Path) -> SlimRequest:
    return SlimRequest(source=source, out=out, selection=for_devices("9.0"))


def trying(source: Path, out: Path) -> SlimRequest:
    return dataclasses.replace(request(source, out), tries_loading=True)


def pip_agrees() -> Effects:
    """Effects of tests that are not about pip, which takes half a second for each wheel."""
    return effects(FakeRunner(*[("pip install", completed(0))] * 2))


def slim(source: Path, out: Path, *, tries: bool = False) -> tuple[Path, SlimReport]:
    """Slim a wheel; try to install and load the new one, too, if a test is about that."""
    made = trying(source, out) if tries else request(source, out)
    report = slim_wheel(made, effects() if tries else pip_agrees())
    assert report.output is not None
    return out / SLIM_NAME, report


def refused(error: type[ArchsplitError], match: str, source: Path, out: Path) -> ArchsplitError:
    before = source.read_bytes()
    with pytest.raises(error, match=match) as caught:
        slim_wheel(request(source, out), effects())
    assert source.read_bytes() == before
    assert not out.exists() or not list(out.iterdir()), "nothing may be left"
    return caught.value


def held_in(wheel: Wheel) -> list[list[str]]:
    """Return the targets of each container in the wheel's library, which must load."""
    path = wheel.path.with_name("extracted.so")
    path.write_bytes(wheel.read("fat/libfat.so"))
    assert len(in_memory(path, 3)) == 3
    found = held(path)
    path.unlink()
    return found


def raw(path: Path) -> dict[str, bytes]:
    """Each member's packed bytes, and its time and mode."""
    found = {}
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        for info in archive.infolist():
            file.seek(info.header_offset + 26)
            sizes = struct.unpack("<HH", file.read(4))
            file.seek(info.header_offset + 30 + sum(sizes))
            found[info.filename] = file.read(info.compress_size)
    return found


def test_a_wheel_gets_smaller_and_stays_a_wheel(wheel: Path, tmp_path: Path) -> None:
    before = wheel.read_bytes()
    new, report = slim(wheel, tmp_path / "out", tries=True)
    assert wheel.read_bytes() == before
    assert os.listdir(tmp_path / "out") == [SLIM_NAME]
    assert report.size_before == len(before)
    assert report.size_after == new.stat().st_size < len(before)
    assert report.checks[:2] == ("RECORD and all contents agree", "pip installs it")
    assert report.checks[2] == "fat/libfat.so: loads"
    with open_wheel(new) as slimmed:
        slimmed.check_contents()
        assert slimmed.name.build == "0slim.cc90.noptx"
        assert slimmed.info.generator == "other 1"
        assert held_in(slimmed) == [["sm_90"], ["compute_80"], ["sm_90a"]]
        note = json.loads(slimmed.read("fat-1.2.3.dist-info/archsplit-slim.json"))
    assert note["source"]["file"] == NAME
    assert {each["target"] for each in note["files"][0]["removed"]} == {
        "sm_80", "sm_86", "sm_90", "compute_90",
    }  # fmt: skip


def test_untouched_member_is_copied_unchanged(wheel: Path, tmp_path: Path) -> None:
    new, _ = slim(wheel, tmp_path)
    old_bytes, new_bytes = raw(wheel), raw(new)
    changed = {name for name in new_bytes if old_bytes.get(name) != new_bytes[name]}
    own = "fat-1.2.3.dist-info/"
    assert changed == {
        "fat/libfat.so",
        f"{own}METADATA",
        f"{own}WHEEL",
        f"{own}RECORD",
        f"{own}archsplit-slim.json",
    }
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(new) as slimmed:
        for name in old.namelist():
            assert slimmed.getinfo(name).date_time == old.getinfo(name).date_time
            assert slimmed.getinfo(name).external_attr == old.getinfo(name).external_attr
        # The same bytes at any time.
        added = slimmed.getinfo(f"{own}archsplit-slim.json")
        assert added.date_time == (1980, 1, 1, 0, 0, 0)


def test_others_accept_it(wheel: Path, tmp_path: Path) -> None:
    new, _ = slim(wheel, tmp_path, tries=True)
    for argv in (["-m", "twine", "check", "--strict", str(new)], ["-m", "zipfile", "-t", str(new)]):
        done = subprocess.run([sys.executable, *argv], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_slimming_twice_gives_the_same_bytes(wheel: Path, tmp_path: Path) -> None:
    one, first = slim(wheel, tmp_path / "a")
    other, second = slim(wheel, tmp_path / "b")
    assert one.read_bytes() == other.read_bytes()
    assert first.sha256 == second.sha256
    assert first.as_json().replace(str(tmp_path / "a"), str(tmp_path / "b")) == second.as_json()


def test_a_slimmed_wheel_has_nothing_more_to_take_out(wheel: Path, tmp_path: Path) -> None:
    new, _ = slim(wheel, tmp_path / "a")
    report = slim_wheel(request(new, tmp_path / "b"), pip_agrees())
    assert report.output is None
    assert report.sha256 is None
    assert not (tmp_path / "b").exists()


def test_a_slimmed_wheel_can_be_slimmed_further(wheel: Path, tmp_path: Path) -> None:
    more = dataclasses.replace(request(wheel, tmp_path / "a"), selection=for_devices("8.0", "9.0"))
    first = slim_wheel(more, pip_agrees())
    source = tmp_path / "a" / str(first.output).rpartition("/")[2]
    second = slim_wheel(request(source, tmp_path / "b"), pip_agrees())
    assert second.output is not None
    assert second.output.endswith(
        "fat-1.2.3-0slim.cc80.cc90.noptx.slim.cc90.noptx-py3-none-manylinux_2_17_x86_64.whl"
    )
    with open_wheel(tmp_path / "b" / second.output.rpartition("/")[2]) as slimmed:
        slimmed.check_contents()
        page = slimmed.read("fat-1.2.3.dist-info/METADATA").decode()
    assert page.count("was slimmed with archsplit") == 2


def test_a_label_changes_the_version_and_the_folders(wheel: Path, tmp_path: Path) -> None:
    labelled = dataclasses.replace(request(wheel, tmp_path), label="")
    report = slim_wheel(labelled, pip_agrees())
    name = NAME.replace("1.2.3", "1.2.3+slim.cc90.noptx")
    assert report.output == str(tmp_path / name)
    with open_wheel(tmp_path / name) as slimmed:
        slimmed.check_contents()
        assert slimmed.metadata().version.local == "slim.cc90.noptx"
        assert "fat-1.2.3+slim.cc90.noptx.data/scripts/fat" in slimmed.names
        assert not [each for each in slimmed.names if each.startswith("fat-1.2.3.")]
    again = dataclasses.replace(
        labelled,
        source=tmp_path / name,
        out=tmp_path / "b",
        label="Mine.2",
        selection=for_devices("12.0", ptx=PtxPolicy.NEWEST),
    )
    assert "1.2.3+slim.cc90.noptx.mine.2-" in str(slim_wheel(again, pip_agrees()).output)


def test_invalid_label_is_refused(wheel: Path, tmp_path: Path) -> None:
    labelled = dataclasses.replace(request(wheel, tmp_path / "out"), label="no label!")
    with pytest.raises(WheelError, match="is not a local version label"):
        slim_wheel(labelled, pip_agrees())
    assert not (tmp_path / "out").exists()


def test_page_lists_removed_images(wheel: Path, tmp_path: Path) -> None:
    new, _ = slim(wheel, tmp_path)
    with open_wheel(new) as slimmed:
        text = slimmed.read("fat-1.2.3.dist-info/METADATA").decode()
    assert text.startswith(METADATA)
    assert "Device code that was removed: compute_90" in text


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (METADATA.partition("\n\n")[0], "slimmed with archsplit"),
        (METADATA.replace("\n\n", "\nDescription: old\n", 1).partition("\nA")[0], "old\n"),
        (METADATA.replace("Summary: ", "Description: old\nSummary: "), "A page about it."),
        (METADATA.replace("\n", "\r\n"), "slimmed with archsplit"),
    ],
)
def test_metadata_of_all_kinds_stays_readable(
    head: str, expected: str, library: bytes, tmp_path: Path
) -> None:
    name = "fat-1.2.3.dist-info/METADATA"
    source = fat_wheel(tmp_path, library=library, more={name: head.encode()})
    new, _ = slim(source, tmp_path / "out", tries=True)
    with open_wheel(new) as slimmed:
        text = slimmed.read(name).decode()
    fields = Parser().parsestr(text)
    assert fields["Version"] == "1.2.3"
    assert expected in text


def test_signatures_of_the_old_record_go(library: bytes, tmp_path: Path) -> None:
    own = "fat-1.2.3.dist-info/"
    signature = {f"{own}RECORD.jws": b"{}"}
    source = fat_wheel(tmp_path, library=library, more=signature, record={f"{own}RECORD.jws": ""})
    new, _ = slim(source, tmp_path / "out")
    with open_wheel(new) as slimmed:
        assert f"{own}RECORD.jws" not in slimmed.names


def test_tags_contradicting_the_file_name_are_corrected(library: bytes, tmp_path: Path) -> None:
    text = wheel_text("x-1-py3-none-linux_x86_64.whl", "Build: 7\n")
    source = fat_wheel(tmp_path, library=library, more={"fat-1.2.3.dist-info/WHEEL": text.encode()})
    new, _ = slim(source, tmp_path / "out")
    with open_wheel(new) as slimmed:
        assert slimmed.info.tags == ("py3-none-manylinux_2_17_x86_64",)
        assert slimmed.info.build == "0slim.cc90.noptx"


@pytest.mark.parametrize(
    "platform",
    ["musllinux_1_2_x86_64", "win32", "macosx_11_0_arm64", "manylinux_2_17_ppc64le"],
)
def test_other_platforms_are_refused(platform: str, library: bytes, tmp_path: Path) -> None:
    name = f"fat-1.2.3-py3-none-{platform}.whl"
    source = fat_wheel(tmp_path, name=name, library=library)
    refused(WheelError, f"is for {platform}", source, tmp_path / "out")


def test_a_record_of_other_contents_is_refused_unless_told(library: bytes, tmp_path: Path) -> None:
    source = fat_wheel(
        tmp_path,
        library=library,
        record={
            "fat/__init__.py": row("fat/__init__.py", b"other" * 200),
            "fat/libfat.so": row("fat/libfat.so", bytes(len(library))),
        },
    )
    refused(WheelError, r"fat/__init__\.py", source, tmp_path / "out")
    untrusted = dataclasses.replace(request(source, tmp_path / "untrusted"), ignore_record=True)
    report = slim_wheel(untrusted, pip_agrees())
    with open_wheel(tmp_path / "untrusted" / str(report.output).rpartition("/")[2]) as slimmed:
        slimmed.check_contents()
        assert held_in(slimmed) == [["sm_90"], ["compute_80"], ["sm_90a"]]


def test_library_with_another_hash_in_record_is_named(library: bytes, tmp_path: Path) -> None:
    wrong = {"fat/libfat.so": row("fat/libfat.so", bytes(len(library)))}
    source = fat_wheel(tmp_path, library=library, record=wrong)
    refused(
        WheelError, r"fat/libfat\.so doesn't match its hash in RECORD", source, tmp_path / "out"
    )


def test_too_long_name_of_the_folder_is_refused(wheel: Path, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"can't write .*: File name too long"):
        slim_wheel(request(wheel, tmp_path / ("x" * 300)), effects())


def test_a_damaged_library_is_refused(library: bytes, tmp_path: Path) -> None:
    source = fat_wheel(tmp_path, library=library[: len(library) // 2])
    # Not the unpacked file's name, which is in a temporary folder.
    refused(BinaryFormatError, rf"^{source}: fat/libfat\.so: .*found", source, tmp_path / "out")


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_damaged_archive_is_refused(at: int, wheel: Path, tmp_path: Path) -> None:
    content = bytearray(wheel.read_bytes())
    with zipfile.ZipFile(wheel) as archive:
        info = archive.getinfo("fat/libfat.so")
    middle = info.header_offset + 100 + info.compress_size * at // 5
    content[middle : middle + 64] = bytes(64)
    source = tmp_path / NAME
    source.write_bytes(content)
    refused(WheelError, r"fat/libfat\.so", source, tmp_path / "out")


def test_a_wheel_without_device_code_has_nothing_to_take_out(tmp_path: Path) -> None:
    source = fat_wheel(tmp_path, library=b"no library")
    report = slim_wheel(request(source, tmp_path / "out"), pip_agrees())
    assert report.output is None
    assert report.files == ()


def test_gpu_without_any_code_is_refused(wheel: Path, tmp_path: Path) -> None:
    old = dataclasses.replace(request(wheel, tmp_path), selection=for_devices("5.0"))
    with pytest.raises(TargetError, match=r"nothing in it runs on 5\.0"):
        slim_wheel(old, pip_agrees())


@pytest.mark.parametrize("ptx", PtxPolicy)
def test_target_without_any_code_is_refused(wheel: Path, tmp_path: Path, ptx: PtxPolicy) -> None:
    keep = Selection(keep=frozenset(parse_targets("sm_37,sm_90,compute_75")), ptx=ptx)
    expected = (
        "nothing in it is for sm_37, compute_75; it has sm_80, sm_86, sm_90, sm_90a, compute_80,"
        " compute_90"
    )
    with pytest.raises(TargetError, match=expected):
        slim_wheel(dataclasses.replace(request(wheel, tmp_path), selection=keep), pip_agrees())
    assert not list(tmp_path.glob("*slim*"))


def test_target_with_only_ptx_for_it_is_kept(wheel: Path, tmp_path: Path) -> None:
    # compute_80 and compute_90 serve GPUs of 12.0, which have no machine code here.
    keep = Selection(keep=frozenset(parse_targets("sm_120,compute_120")))
    report = slim_wheel(dataclasses.replace(request(wheel, tmp_path), selection=keep), pip_agrees())
    assert {row.target for file in report.files for row in file.removed} >= {"sm_80", "sm_90"}


def test_a_dry_run_says_the_same_and_writes_nothing(wheel: Path, tmp_path: Path) -> None:
    dry = dataclasses.replace(request(wheel, tmp_path / "out"), dry_run=True)
    report = slim_wheel(dry, pip_agrees())
    assert not (tmp_path / "out").exists()
    _, real = slim(wheel, tmp_path / "out")
    assert report.effects == real.effects
    assert [file.removed for file in report.files] == [file.removed for file in real.files]
    assert (report.output, report.size_after, report.checks) == (None, None, ())


def test_the_output_is_never_the_input(wheel: Path, tmp_path: Path) -> None:
    new, _ = slim(wheel, tmp_path / "a")
    source = tmp_path / NAME
    source.write_bytes(wheel.read_bytes())
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / new.name).symlink_to(source)
    with pytest.raises(OutputError, match="is the input"):
        slim_wheel(request(source, tmp_path / "b"), pip_agrees())
    assert source.read_bytes() == wheel.read_bytes()


@pytest.mark.parametrize("mode", EditMode)
def test_only_shrink_mode_makes_recompressed_files_smaller(
    mode: EditMode, wheel: Path, tmp_path: Path
) -> None:
    packed = dataclasses.replace(request(wheel, tmp_path), mode=mode, recompress=9)
    report = slim_wheel(packed, pip_agrees())
    (file,) = report.files
    assert file.mode == mode.value
    assert (file.size_after < file.size_before) == (mode is EditMode.SHRINK)


class FakeRunner(SubprocessRunner):
    """Answers by what is in the command line, once for each answer; else the real one runs."""

    def __init__(self, *results: tuple[str, CompletedProcess]) -> None:
        super().__init__()
        self.results = list(results)

    def run(self, command: Command) -> CompletedProcess:
        for number, (word, completed) in enumerate(self.results):
            if word in command.text():
                del self.results[number]
                return completed
        return super().run(command)


def completed(returncode: int, stdout: str = "", stderr: str = "") -> CompletedProcess:
    return CompletedProcess(returncode=returncode, stdout=stdout, stderr=stderr, seconds=0.0)


def test_library_no_longer_loadable_after_slimming_is_an_error(wheel: Path, tmp_path: Path) -> None:
    runner = FakeRunner(("libfat.so", completed(-11)))
    with pytest.raises(VerifyError, match="can't be loaded, but could before: exit status -11"):
        slim_wheel(trying(wheel, tmp_path), effects(runner))
    assert not list(tmp_path.iterdir())


def test_slimmed_wheel_refused_by_pip_is_an_error(wheel: Path, tmp_path: Path) -> None:
    runner = FakeRunner(("pip install", completed(1, stderr="is not a supported wheel")))
    with pytest.raises(VerifyError, match="not a supported wheel"):
        slim_wheel(request(wheel, tmp_path), effects(runner))
    assert not list(tmp_path.iterdir())


def test_without_pip_it_is_said(wheel: Path, tmp_path: Path) -> None:
    runner = FakeRunner(
        ("pip install", completed(1, stderr="/usr/bin/python: No module named pip"))
    )
    report = slim_wheel(request(wheel, tmp_path), effects(runner))
    assert "no pip" in report.checks[-1]


def test_missing_needed_library_is_reported(wheel: Path, tmp_path: Path) -> None:
    runner = FakeRunner(
        ("libfat.so", completed(3, stdout="libcudart.so.13: cannot open")),
        ("libfat.so", completed(3, stdout="libcudart.so.13: cannot open")),
    )
    report = slim_wheel(trying(wheel, tmp_path), effects(runner))
    assert "couldn't be before: libcudart.so.13: cannot open" in report.checks[-2]
    assert report.checks[-1] == "changed libraries that could not be tried here: 1 of 1"


def test_library_in_the_data_folder_of_a_wheel_is_loaded_from_its_place(
    library: bytes, tmp_path: Path
) -> None:
    member = "fat-1.2.3.data/platlib/fat/lib/libmore.so"
    source = fat_wheel(tmp_path, library=library, more={member: library})
    report = slim_wheel(trying(source, tmp_path / "out"), effects())
    assert f"{member}: loads" in report.checks


def test_members_of_all_forms_are_slimmed(library: bytes, tmp_path: Path) -> None:
    place = tmp_path / "forms"
    place.mkdir()
    (place / "x.txt").write_text("x")
    subprocess.run(["ar", "rc", "x.a", "x.txt"], cwd=place, check=True)
    more = {
        "fat/device.fatbin": THREE[0],
        "fat/for_nine.fatbin": container(image("sm_90")),
        "fat/text.a": (place / "x.a").read_bytes(),
        "fat-1.2.3.data/headers/again.so": library,
    }
    source = fat_wheel(tmp_path, library=library, more=more)
    report = slim_wheel(trying(source, tmp_path / "out"), effects())
    assert {file.path for file in report.files} == {
        "fat/libfat.so", "fat/device.fatbin", "fat/for_nine.fatbin",
        "fat-1.2.3.data/headers/again.so",
    }  # fmt: skip
    assert sum("not installed as a library" in check for check in report.checks) == 2
    stored = zipfile.ZipFile(source)
    assert stored.testzip() is None
