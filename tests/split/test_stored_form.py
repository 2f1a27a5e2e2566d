"""Images that packs store as zstd frames: checked, and turned back into the vendor's bytes."""

from __future__ import annotations

import hashlib
import struct
import zipfile
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import split_samples

from archsplit.arch.target import Target
from archsplit.cli.main import main
from archsplit.devicecode.recompress import recompress_image
from archsplit.errors import VerifyError
from archsplit.formats.descriptor import Descriptor, Shape
from archsplit.formats.device_pack import (
    Pack,
    PackContainer,
    PackImage,
    PackLibrary,
    container_key,
    lay_out_pack,
    read_pack,
)
from archsplit.formats.fatbin import read_container
from archsplit.formats.reader import Window
from archsplit.release.wheel_set import _digest_images
from archsplit.split.restore import _library_images, join_split

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

SM_90 = Target.parse("sm_90")
RAW = bytes(range(256)) * 40
ENTRY = (
    struct.pack("<HHIQIIHHIIIQQQ", 2, 0x0101, 64, len(RAW), 0, 0, 7, 1, 90, 0, 0, 0x11, 0, 0) + RAW
)


def stored_row() -> tuple[PackImage, bytes]:
    fatbin = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(ENTRY)) + ENTRY
    container = read_container(Window(fatbin, source="x"), 0)
    result = recompress_image(container, next(container.entries()), level=9)
    vendor = PackImage(
        number=0, target=SM_90, size=len(ENTRY), digest=hashlib.sha256(ENTRY).digest()
    )
    return result.row(vendor), result.content


def pack_with(row: PackImage, content: bytes) -> Pack:
    container = PackContainer(wrapper=0, address=0, images=(row,), key=container_key([row]))
    descriptor = Descriptor(
        package="foo",
        version="1.0",
        build_id=bytes(32),
        interface_hash=bytes(32),
        cuda_version=12000,
        shape=Shape.DEVICE,
        targets=(SM_90,),
    )
    libraries = [PackLibrary(name="a.so", stub="b.so", containers=(container,))]
    layout = lay_out_pack(descriptor, libraries)
    blocks = b"".join(bytes(block) for block in layout.blocks(lambda *_: content))
    return read_pack(Window(blocks, source="device.pack"))


def test_stored_image_is_turned_back_by_join() -> None:
    row, content = stored_row()
    pack = pack_with(row, content)
    ((key, image),) = pack.images()
    restore = _library_images({key: pack.content(image).data}, {key: image}, 0)
    assert restore(0, 0).tobytes() == ENTRY
    vendor = replace(image, form=None)
    assert _library_images({key: memoryview(ENTRY)}, {key: vendor}, 0)(0, 0).tobytes() == ENTRY


def test_stored_image_is_checked_by_verify() -> None:
    row, content = stored_row()
    pack = pack_with(row, content)
    ((_, image),) = pack.images()
    assert _digest_images(pack) == {image.offset: row.digest}
    assert pack.driver_version == 12040


def test_image_that_cannot_be_turned_back_fails_verify() -> None:
    row, content = stored_row()
    assert row.form is not None
    wrong = replace(row, form=replace(row.form, flags=0x13))
    with pytest.raises(VerifyError, match="doesn't give the vendor's bytes"):
        _digest_images(pack_with(wrong, content))


def test_split_with_a_level_is_verified_and_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    noise = split_samples.image

    def repeated(*values: Any, **names: Any) -> bytes:  # noqa: ANN401 - as the function it calls
        entry = noise(*values, **names)
        return entry[:64] + (entry[64:96] * (len(entry) // 32))[: len(entry) - 64]

    monkeypatch.setattr(split_samples, "image", repeated)
    fat = split_samples.hand_made(tmp_path)
    out = tmp_path / "out"
    assert main(["split", str(fat), "--out", str(out), "--compress-level", "9"]) == 0
    assert main(["verify", "--release", str(out), "--no-install"]) == 0, capsys.readouterr()
    pack = next(out.glob("*cc90*.whl"))
    with zipfile.ZipFile(pack) as archive:
        (name,) = (one for one in archive.namelist() if one.endswith("device.pack"))
        content = archive.read(name)
    with zipfile.ZipFile(fat) as archive:
        before = {info.filename: archive.read(info) for info in archive.infolist()}
    forms = [image.form for _, image in read_pack(Window(content, source=name)).images()]
    assert any(forms)
    joined = join_split(out, tmp_path / "joined")
    assert joined
    for library in joined:
        assert library.path.read_bytes() == before[library.name]
