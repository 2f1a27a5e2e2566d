"""Inventories of files, wheels, folders and installed packages."""

from __future__ import annotations

import os
import zipfile
import zlib
from typing import TYPE_CHECKING

import pytest

from archsplit.arch.target import Capability
from archsplit.errors import BinaryFormatError, InputError, WheelError
from archsplit.inspect.inspect import InspectRequest, read_inventory
from archsplit.inspect.sizes import device_usage
from archsplit.inspect.text import next_commands
from archsplit.system.fs import sha256
from archsplit.wheels.zip_reader import PackedOffsets, open_archive, read_head, unpack_with_offsets
from compiled_samples import TARGETS

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.devicecode.model import Inventory
    from compiled_samples import Samples

WHEEL = "pkg-1.0-py3-none-any.whl"
STORED = "stored-1.0-py3-none-any.whl"


def inspected(path: Path, *, digest: bool = False) -> Inventory:
    return read_inventory(InspectRequest(subject=str(path), digest=digest))


def test_inspection_of_a_file_lists_digest_size_and_targets(samples: Samples) -> None:
    path = samples / "libkernels.so"
    found = inspected(path, digest=True)
    assert (found.sha256, found.size) == (sha256(path), path.stat().st_size)
    assert [row.target for row in found.rows()] == TARGETS
    assert {row.wheel_bytes for row in found.rows()} == {None}
    assert found.name == "libkernels.so"


def test_wheel_with_nonsense_record_is_inspected(samples: Samples) -> None:
    found = inspected(samples / WHEEL)
    assert found.is_wheel
    assert [file.path for file in found.files] == [
        "pkg/libkernels.so",
        "pkg/libempty.so",
        "pkg/rdc.o",
    ]
    with zipfile.ZipFile(samples / WHEEL) as archive:
        for file in found.files:
            info = archive.getinfo(file.path)
            assert (file.size, file.wheel_bytes) == (info.file_size, info.compress_size)
            assert sum(row.weight for row in file.rows()) <= info.compress_size
    assert all(row.wheel_bytes is not None and row.wheel_bytes > 0 for row in found.rows())


def test_stored_member_has_its_own_size(samples: Samples) -> None:
    for row in inspected(samples / STORED).rows():
        assert row.wheel_bytes == row.file_bytes


def test_the_download_of_parts_adds_up(samples: Samples) -> None:
    # Incompressible bytes and zeros in turn: what a part costs is known beforehand.
    blocks = [os.urandom(100_000), bytes(1_000_000), os.urandom(50_000)]
    path = samples / "blocks.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x", b"".join(blocks))
    with open_archive(path) as opened:
        info = opened.members["x"]
        with unpack_with_offsets(opened, info) as (file, positions):
            file.seek(0)
            assert file.read() == b"".join(blocks)
        sizes = [
            positions.packed_size(0, 100_000),
            positions.packed_size(100_000, 1_100_000),
            positions.packed_size(1_100_000, 1_150_000),
        ]
        assert sum(sizes) == info.compress_size
    for size, expected in zip(sizes, (100_000, 1_000, 50_000), strict=True):
        assert abs(size - expected) < 4096


def test_an_empty_member_costs_its_packed_bytes(samples: Samples) -> None:
    with open_archive(samples / WHEEL) as archive:
        info = archive.members["pkg/empty.txt"]
        assert read_head(archive, info, 20) == b""
        with unpack_with_offsets(archive, info) as (file, positions):
            assert file.read() == b""
    assert positions.packed_size(0, 0) == 0
    assert isinstance(positions, PackedOffsets)


def test_a_folder_leaves_links_out(samples: Samples, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/a.so").write_bytes((samples / "libkernels.so").read_bytes())
    (tmp_path / "b.so").symlink_to(tmp_path / "sub/a.so")
    (tmp_path / "text").write_text("12345")
    found = inspected(tmp_path)
    assert [file.path for file in found.files] == ["sub/a.so"]
    assert found.size == (samples / "libkernels.so").stat().st_size + 5
    assert found.sha256 is None


def test_installed_package_is_found_by_its_name(samples: Samples, tmp_path: Path) -> None:
    info = tmp_path / "pkg-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pkg\nVersion: 1.0\n")
    (info / "RECORD").write_text("pkg/a.so,,\npkg/gone.so,,\npkg-1.0.dist-info/RECORD,,\n")
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg/a.so").write_bytes((samples / "libkernels.so").read_bytes())
    found = read_inventory(InspectRequest(subject="pkg", site_folders=(tmp_path,)))
    assert [file.path for file in found.files] == ["pkg/a.so"]
    sizes = device_usage(found, [Capability(major=9, minor=0)])
    assert list(next_commands(found, sizes)) == [
        "next: archsplit slim --site-packages DIR --device 9.0"
    ]
    (info / "RECORD").unlink()
    with pytest.raises(InputError, match="no such file or installed package"):
        read_inventory(InspectRequest(subject="pkg", site_folders=(tmp_path,)))


def test_missing_subject_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file or installed package"):
        read_inventory(InspectRequest(subject="no-such-thing", site_folders=(tmp_path,)))


def test_file_unable_to_hold_device_code_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("hello")
    with pytest.raises(BinaryFormatError, match="can't hold device code: it begins with b'hello'"):
        inspected(tmp_path / "x.txt")


def test_a_damaged_file_among_others_is_its_own_problem(samples: Samples, tmp_path: Path) -> None:
    whole = (samples / "libkernels.so").read_bytes()
    (tmp_path / "whole.so").write_bytes(whole)
    (tmp_path / "half.so").write_bytes(whole[: len(whole) // 2])
    half, good = inspected(tmp_path).files
    assert good.problem is None
    assert half.problem is not None
    assert "half.so" in half.problem
    assert half.units == ()


def test_kernels_are_listed_for_every_target(samples: Samples) -> None:
    names: dict[str, set[str]] = {}
    found = read_inventory(InspectRequest(subject=str(samples / "libkernels.so"), kernels=True))
    for row in found.files[0].kernels:
        assert row.code_bytes > 0
        names.setdefault(row.target, set()).add(row.name)
    assert names.keys() == {"sm_80", "sm_90", "sm_90a"}
    assert len(names["sm_80"]) == 2
    assert names["sm_90"] == names["sm_90a"] == names["sm_80"] | {"_Z8only_newPf"}


@pytest.mark.parametrize("name", ["plain.cubin", "zstd.o", "lz4.o", "rdc.o"])
def test_kernels_are_found_in_every_form(samples: Samples, name: str) -> None:
    found = read_inventory(InspectRequest(subject=str(samples / name), kernels=True))
    assert "_Z8only_newPf" in {row.name for row in found.files[0].kernels}


def test_file_named_like_a_wheel_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x-1.0-py3-none-any.whl"
    path.write_bytes(b"PK but no more")
    with pytest.raises(WheelError):
        inspected(path)


@pytest.mark.parametrize("name", ["../up.so", "/absolute.so"])
def test_member_path_leading_outside_is_refused(
    samples: Samples, tmp_path: Path, name: str
) -> None:
    path = tmp_path / "x-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, (samples / "libkernels.so").read_bytes())
    with pytest.raises(WheelError, match=r"\.\./up|absolute"):
        inspected(path)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_duplicate_member_is_refused(samples: Samples, tmp_path: Path) -> None:
    path = tmp_path / "x-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for _ in range(2):
            archive.writestr("a.so", (samples / "libkernels.so").read_bytes())
    with pytest.raises(WheelError, match=r"a\.so: occurs 2 times"):
        inspected(path)


def wheel_with_wrong_size(path: Path, content: bytes, *, declared: int, checksum: int) -> None:
    """Write a wheel that declares another size and checksum, in the directory and before the
    member.
    """
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.so", content)
    data = path.read_bytes()
    true = zlib.crc32(content).to_bytes(4, "little")
    data = data.replace(true, checksum.to_bytes(4, "little"))
    data = data.replace(len(content).to_bytes(4, "little"), declared.to_bytes(4, "little"))
    path.write_bytes(data)


@pytest.mark.parametrize("declared", [70_000, 100_000])
def test_a_bomb_is_left_at_its_declared_size(tmp_path: Path, declared: int) -> None:
    content = b"\x7fELF" + bytes(80_000)
    path = tmp_path / "x-1.0-py3-none-any.whl"
    wheel_with_wrong_size(path, content, declared=declared, checksum=1)
    with pytest.raises(
        WheelError, match=r"a\.so is damaged: it doesn't match the size or checksum"
    ):
        inspected(path)


@pytest.mark.parametrize("at", [34, 9000])
def test_damaged_member_is_refused_with_a_hint(tmp_path: Path, at: int) -> None:
    path = tmp_path / "x-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.so", b"\x7fELF" + b"".join(b"%d," % n for n in range(9000)))
    data = bytearray(path.read_bytes())
    data[at : at + 20] = b"\xff" * 20
    path.write_bytes(bytes(data))
    fault = r"a\.so is damaged: it(s compressed data can't be unpacked|\ doesn't match).*\nhint: "
    with pytest.raises(WheelError, match=fault + "download it again, or build it again"):
        inspected(path)


def test_a_folder_of_wheels_is_weighed_by_the_download(samples: Samples, tmp_path: Path) -> None:
    for name in ("pkg-1.0-py3-none-any.whl", "stored-1.0-py3-none-any.whl"):
        (tmp_path / name).write_bytes((samples / name).read_bytes())
    (tmp_path / "broken-1.0-py3-none-any.whl").write_bytes(b"PK")
    (tmp_path / "README").write_text("hello")
    found = inspected(tmp_path)
    wheel = inspected(samples / "pkg-1.0-py3-none-any.whl")
    assert found.is_wheel
    assert found.size == sum(path.stat().st_size for path in tmp_path.iterdir())
    assert {file.path.partition("/")[0] for file in found.files} == {
        "broken-1.0-py3-none-any.whl",
        "pkg-1.0-py3-none-any.whl",
        "stored-1.0-py3-none-any.whl",
    }
    mine = [file for file in found.files if file.path.startswith("pkg-")]
    assert [file.path for file in mine] == [f"{wheel.name}/{file.path}" for file in wheel.files]
    assert [file.rows() for file in mine] == [file.rows() for file in wheel.files]
    assert found.files[0].problem is not None


def test_wheels_beside_libraries_count_installed_bytes(samples: Samples, tmp_path: Path) -> None:
    wheel = "stored-1.0-py3-none-any.whl"
    for name in ("libkernels.so", wheel):
        (tmp_path / name).write_bytes((samples / name).read_bytes())
    (tmp_path / "broken-1.0-py3-none-any.whl").write_bytes(b"PK")
    found = inspected(tmp_path)
    assert not found.is_wheel
    assert {row.wheel_bytes for row in found.rows()} == {None}
    one = (samples / "libkernels.so").stat().st_size
    with zipfile.ZipFile(samples / wheel) as archive:
        assert found.size == one + 2 + sum(info.file_size for info in archive.infolist())
