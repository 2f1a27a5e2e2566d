"""Windows libraries: nothing moves, only bytes of device code become zeros."""

from __future__ import annotations

import struct
import zipfile
from typing import TYPE_CHECKING

import pefile  # type: ignore[import-untyped]
import pytest
from slim_wheel_samples import fat_wheel

from archsplit.cli.main import main
from archsplit.devicecode.scan import read_contents
from archsplit.formats.reader import open_file
from archsplit.wheels.reader import open_wheel
from handmade_samples import container, image

if TYPE_CHECKING:
    from pathlib import Path
from index_wheels import index_wheel

pytestmark = pytest.mark.usefixtures("zipfile_for_pip")
NAME = "fat-1.2.3-py3-none-win_amd64.whl"
ALIGNMENT = 0x200
_OPTIONAL = 240


def windows_library(*sections: tuple[bytes, bytes], signature: bytes = b"") -> bytes:
    """A PE32+ file with all headers, sections that a linker would have padded, and a signature."""
    head = b"MZ".ljust(60, b"\0") + struct.pack("<I", 64)
    coff = struct.pack("<HHIIIHH", 0x8664, len(sections), 0, 0, 0, _OPTIONAL, 0x2022)
    at, rows, contents = 0x400, b"", b""
    for number, (name, content) in enumerate(sections, 1):
        size = -(-len(content) // ALIGNMENT) * ALIGNMENT
        place = (len(content), number << 20, size, at, 0, 0, 0, 0, 0x4000_0040)
        rows += name.ljust(8, b"\0") + struct.pack("<IIIIIIHHI", *place)
        contents += content.ljust(size, b"\0")
        at += size
    optional = struct.pack("<HBBIIIII", 0x20B, 14, 0, 0, 0, 0, 0, 0x1000)
    optional += struct.pack("<QII", 1 << 32, 0x1000, ALIGNMENT)
    optional += struct.pack("<HHHHHHI", 6, 0, 0, 0, 6, 0, 0)
    optional += struct.pack("<IIIHH", 1 << 24, 0x400, 0, 2, 0x160)
    optional += struct.pack("<QQQQII", 1 << 20, 4096, 1 << 20, 4096, 0, 16)
    directories = bytearray(128)
    if signature:
        struct.pack_into("<II", directories, 4 * 8, at, len(signature))
    optional += bytes(directories)
    assert len(optional) == _OPTIONAL
    headers = (head + b"PE\0\0" + coff + optional + rows).ljust(0x400, b"\0")
    return headers + contents + signature


FATBIN = container(image("sm_80"), image("sm_90"), image("sm_120"))


@pytest.fixture
def library(tmp_path: Path) -> Path:
    path = tmp_path / "fat.dll"
    sections = ((b".rdata", bytes(range(200))), (b".nv_fatb", FATBIN), (b".data", b"x" * 99))
    path.write_bytes(windows_library(*sections))
    return path


def targets(path: Path) -> set[str]:
    return {
        str(image.target) for unit in read_contents(open_file(path)).units for image in unit.images
    }


def assert_only_device_code_changed(old: bytes, new: bytes) -> None:
    """By another reader of the format: headers and all other sections are the same bytes."""
    before, after = pefile.PE(data=old), pefile.PE(data=new)
    assert len(old) == len(new)
    assert before.header + before.__data__[:0x400] == after.header + after.__data__[:0x400]
    assert [one.Name for one in before.sections] == [one.Name for one in after.sections]
    for one, other in zip(before.sections, after.sections, strict=True):
        assert (one.VirtualAddress, one.PointerToRawData) == (
            other.VirtualAddress,
            other.PointerToRawData,
        )
        is_device_code = one.Name.rstrip(b"\0") in {b".nv_fatb", b"__nv_rel"}
        assert is_device_code or one.get_data() == other.get_data()


def test_a_library_keeps_its_length_and_its_other_bytes(library: Path, tmp_path: Path) -> None:
    words = ["--device", "9.0", "--keep-ptx", "none", "--mode", "in-place"]
    assert main(["slim", str(library), *words, "--out", str(tmp_path / "out")]) == 0
    (new,) = (tmp_path / "out").glob("*.dll")
    assert targets(library) == {"sm_80", "sm_90", "sm_120"}
    assert targets(new) == {"sm_90"}
    assert_only_device_code_changed(library.read_bytes(), new.read_bytes())
    # The images that went are zeros, so the file compresses better.
    assert new.read_bytes().count(0) > library.read_bytes().count(0)


def test_unshrinkable_library_gets_a_reason(
    library: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["slim", str(library), "--device", "9.0", "--out", str(tmp_path / "o")]) == 0
    assert "a Windows library keeps its length" in capsys.readouterr().out
    (new,) = (tmp_path / "o").glob("*.dll")
    assert_only_device_code_changed(library.read_bytes(), new.read_bytes())


def test_a_signed_library_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "fat.dll"
    path.write_bytes(windows_library((b".nv_fatb", FATBIN), signature=bytes(range(64))))
    main(["slim", str(path), "--device", "9.0", "--out", str(tmp_path / "out")])
    done = capsys.readouterr()
    assert "covered by the library's signature (Authenticode)" in done.out + done.err
    assert not list(tmp_path.glob("out/*.dll"))


def test_wheel_changes_only_in_record_and_device_code(library: Path, tmp_path: Path) -> None:
    members = {"fat/_core.pyd": library.read_bytes(), "fat/notes.txt": b"MZ is how it begins\n"}
    source = fat_wheel(tmp_path, name=NAME, library=b"text\n", more=members)
    words = ["--device", "9.0", "--mode", "in-place", "--out", str(tmp_path / "out")]
    assert main(["slim", str(source), *words]) == 0
    (new,) = (tmp_path / "out").glob("*.whl")
    with open_wheel(new) as wheel:
        wheel.check_contents()
        assert wheel.info.tags == ("py3-none-win_amd64",)
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(new) as fresh:
        assert_only_device_code_changed(old.read("fat/_core.pyd"), fresh.read("fat/_core.pyd"))
        same = [name for name in old.namelist() if name in fresh.namelist()]
        changed = {name for name in same if old.read(name) != fresh.read(name)}
    assert {name.rpartition("/")[2] for name in changed} <= {
        *("_core.pyd", "RECORD", "WHEEL", "METADATA"),
    }


@pytest.mark.download
def test_only_device_code_changes_in_a_real_windows_wheel(downloads: Path, tmp_path: Path) -> None:
    source = index_wheel(downloads, "xgboost==3.2.0", "--platform", "win_amd64")
    words = ["--device", "9.0", "--mode", "in-place", "--out", str(tmp_path)]
    assert main(["slim", str(source), *words]) == 0
    (new,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(new) as fresh:
        name = next(name for name in old.namelist() if name.endswith("xgboost.dll"))
        assert_only_device_code_changed(old.read(name), fresh.read(name))
