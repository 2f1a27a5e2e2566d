"""``slim --unregistered``: what it says, what it leaves in a wheel, and its undo."""

from __future__ import annotations

import json
import random
import struct
import zipfile
from typing import TYPE_CHECKING

import pytest
from slim_wheel_samples import NAME, fat_wheel

from archsplit.cli.main import main
from archsplit.devicecode.scan import read_contents
from archsplit.errors import TargetError, UsageError
from archsplit.formats.reader import open_file
from archsplit.formats.zstd import zstd
from archsplit.slim.report import SLIM_NOTE_FILE
from archsplit.wheels.reader import open_wheel
from handmade_samples import Maker, container, image

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("zipfile_for_pip")
SECTION = '.section .ldata,"aw"\n.incbin "{}"\n'
LIBRARY = "fat/libfat.so"
ZERO = NAME.replace("1.2.3-", "1.2.3-0slim.cc90.zero-")


def frame(number: int) -> bytes:
    """A zstd frame of the head of a cubin, and bytes in place of its code."""
    ident = b"\x7fELF\x02\x01\x01\x41\x08" + bytes(7)
    fields = (2, 190, 1, 0, 0, 0, number << 8, 64, 0, 0, 64, 0, 0)
    head = ident + struct.pack("<HHIQQQIHHHHHH", *fields)
    return zstd.compress(head + random.Random(number).randbytes(0x8000))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel with two registered images, and two that only the library finds."""
    folder = tmp_path_factory.mktemp("unregistered")
    frames = folder / "frames.bin"
    frames.write_bytes(frame(80) + frame(90))
    registered = (container(image("sm_80"), image("sm_90", 0x5000)),)
    library = Maker(folder=folder).library(registered, more=SECTION.format(frames))
    return fat_wheel(folder, library=library.read_bytes())


def framed(path: Path) -> list[str | None]:
    units = read_contents(open_file(path)).units
    return [unit.images[0].target_name for unit in units if unit.section == ".ldata"]


def test_keep_reports_the_possible_saving(
    wheel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["slim", str(wheel), "--device", "9.0", "--dry-run", "--out", str(tmp_path)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert f"{LIBRARY}: 1 image, " in text
    assert "that only the library finds" in text
    assert "--unregistered zero overwrites such code" in text


def test_a_wheel_has_a_name_and_a_record_of_its_own(
    wheel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--device", "9.0", "--unregistered", "zero", "--json", "--out", str(tmp_path)]
    assert main(["slim", str(wheel), *words]) == 0
    (file,) = json.loads(capsys.readouterr().out)["files"]
    assert file["zeroed"]
    (row,) = file["unregistered"]
    assert (row["target"], row["count"]) == ("sm_80", 1)
    with open_wheel(tmp_path / ZERO) as new:
        new.check_contents()
        note = json.loads(new.read(f"{new.dist_info}/archsplit-slim.json"))
    assert note["files"][0]["zeroed"] == [row]
    assert note["choice"].endswith("--unregistered zero")
    with zipfile.ZipFile(tmp_path / ZERO) as archive:
        assert framed(tmp_path / archive.extract(LIBRARY, tmp_path)) == ["sm_90"]


def test_an_environment_is_emptied_and_restored(
    wheel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = tmp_path / "site packages"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    before = (site / LIBRARY).read_bytes()
    words = ["slim", "--site-packages", str(site)]
    assert main([*words, "--device", "9.0", "--unregistered", "zero"]) == 0
    assert "zeros now, which pack better" in capsys.readouterr().out.replace("\n", " ")
    assert framed(site / LIBRARY) == ["sm_90"]
    doctor = ["doctor", "--site-packages", str(site), "--device"]
    assert main([*doctor, "9.0"]) == 0
    assert "1 slimmed distribution in" in capsys.readouterr().out
    assert main([*doctor, "9.0,8.0"]) == TargetError.exit_code
    message = capsys.readouterr().err.replace("\n", " ")
    assert "results may be wrong" in message
    assert "no machine code for 8.0" in message
    assert main([*words, "--undo"]) == 0
    assert main([*doctor, "8.0"]) == 0
    assert "0 slimmed distributions" in capsys.readouterr().out
    assert (site / LIBRARY).read_bytes() == before


@pytest.mark.parametrize("words", [[], ["package", "--site-packages", "."]])
def test_the_doctor_wants_a_package_or_an_environment(words: list[str]) -> None:
    assert main(["doctor", *words]) == UsageError.exit_code


@pytest.mark.parametrize(
    ("note", "refused"),
    [
        ('{"choice": "--keep sm_80,compute_80 --keep-ptx newest"}', False),
        ('{"choice": "--keep sm_75"}', True),
        ('{"choice": "--drop sm_80"}', False),
        ("[", False),
    ],
)
def test_doctor_reads_kept_unregistered_images(tmp_path: Path, note: str, refused: bool) -> None:
    folder = tmp_path / "x-1.dist-info"
    folder.mkdir()
    (folder / SLIM_NOTE_FILE).write_text(note)
    words = ["doctor", "--site-packages", str(tmp_path), "--device", "8.6"]
    assert main(words) == (TargetError.exit_code if refused else 0)
