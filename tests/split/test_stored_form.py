"""Images that packs store as zstd frames: checked, and turned back into the vendor's bytes."""

from __future__ import annotations

import hashlib
import random
import struct
import zipfile
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
import split_samples

from archsplit.arch.target import Capability, Target
from archsplit.cli.main import main
from archsplit.devicecode.recompress import ImageResult, KeptReason, recompress_image
from archsplit.errors import VerifyError
from archsplit.formats.descriptor import Descriptor, Shape
from archsplit.formats.device_pack import (
    HEAD,
    Pack,
    PackContainer,
    PackImage,
    PackLibrary,
    container_key,
    lay_out_pack,
    read_pack,
)
from archsplit.formats.fatbin import read_container
from archsplit.formats.reader import Window, align_up
from archsplit.inspect.inspect import InspectRequest, read_inventory
from archsplit.inspect.sizes import device_usage
from archsplit.release.verify import verify_release
from archsplit.release.wheel_set import _digest_images
from archsplit.split.model import SplitRequest, StoredImages
from archsplit.split.restore import _find_images, _library_images, join_split
from archsplit.split.split import split_wheel
from archsplit.split.stored_images import stored_notes
from changed_wheels import only, rewrite
from index_wheels import index_wheel

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from archsplit.release.context import Effects
    from archsplit.release.wheel_set import WheelFacts

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
    container = PackContainer(images=(row,), key=container_key([row]))
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


@pytest.mark.parametrize("digest", [bytes(32), b"\xff" * 32], ids=["least", "greatest"])
def test_image_with_another_digest_is_refused_by_join(digest: bytes) -> None:
    row, content = stored_row()
    pack = pack_with(replace(row, digest=digest), content)
    facts = cast("WheelFacts", SimpleNamespace(pack=pack, identity=None))
    with pytest.raises(VerifyError, match="is not the one that was split"):
        _find_images(pack, [facts])


def test_stored_image_is_checked_by_verify() -> None:
    row, content = stored_row()
    pack = pack_with(row, content)
    ((_, image),) = pack.images()
    assert _digest_images(pack) == {image.offset: row.digest}
    assert pack.driver_version == 12040


def test_unrestorable_image_fails_verify() -> None:
    row, content = stored_row()
    assert row.form is not None
    wrong = replace(row, form=replace(row.form, flags=0x13))
    with pytest.raises(VerifyError, match="doesn't give the vendor's bytes"):
        _digest_images(pack_with(wrong, content))


def repeated(noise: bytes, shared: bytes) -> bytes:
    """Bytes that only a frame makes smaller: they repeat further back than deflate looks."""
    del shared
    return noise[: len(noise) // 2] * 2


def similar(noise: bytes, shared: bytes) -> bytes:
    """Bytes that deflate makes smaller beside each other: images of one release look alike."""
    return noise[:64] + shared[: len(noise) - 64]


def fat_wheel_of(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    payload: Callable[[bytes, bytes], bytes],
    size: int,
) -> Path:
    """A wheel whose images have another size and payload than the sample's."""
    noise = split_samples.image
    # Four bits in each byte: a frame of one image is half as large.
    shared = bytes(random.Random(1).choices(range(16), k=size))

    def changed(name: str, usual: int, seed: int) -> bytes:
        entry = noise(name, size + usual % 64, seed)
        return entry[:64] + payload(entry[64:], shared)

    monkeypatch.setattr(split_samples, "image", changed)
    return split_samples.hand_made(folder)


def pack_sizes(out: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in out.glob("*_*-1.0-*.whl")}


def test_frames_of_split_are_restored_by_verify_and_join(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fat = fat_wheel_of(tmp_path, monkeypatch, repeated, 0x14000)
    out = tmp_path / "out"
    assert main(["split", str(fat), "--out", str(out)]) == 0
    text, said = capsys.readouterr()
    assert "\nstored as zstd frames: " in text
    assert "keep the vendor's bytes" not in text
    assert "of CPU time" not in said
    # PTX of ISA 9.0 is CUDA 13, whose drivers all read them.
    assert "libzstd" not in text
    assert main(["verify", "--release", str(out), "--no-install"]) == 0, capsys.readouterr()
    pack = next(out.glob("*cc90*.whl"))
    with zipfile.ZipFile(pack) as archive:
        (name,) = (one for one in archive.namelist() if one.endswith("device.pack"))
        content = archive.read(name)
    with zipfile.ZipFile(fat) as archive:
        before = {info.filename: archive.read(info) for info in archive.infolist()}
    assert all(image.form for _, image in read_pack(Window(content, source=name)).images())
    joined = join_split(out, tmp_path / "joined")
    assert joined
    for library in joined:
        assert library.path.read_bytes() == before[library.name]


def without_driver(name: str, content: bytes) -> bytes:
    """Return a pack that asks for no driver; its index has the right digest."""
    if not name.endswith("/device.pack"):
        return content
    head = list(HEAD.unpack_from(content))
    index_end = head[1] + align_up(head[2], 8) + head[4]
    head[13] = 0
    new = HEAD.pack(*head) + content[HEAD.size :]
    head[12] = hashlib.sha256(new[80:index_end]).digest()
    return HEAD.pack(*head) + content[HEAD.size :]


def test_pack_with_frames_and_no_driver_fails_verify(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, effects: Effects
) -> None:
    fat = fat_wheel_of(tmp_path, monkeypatch, repeated, 0x14000)
    request = SplitRequest(source=fat, out=tmp_path / "out")
    split_wheel(request, effects)
    pack = only(request.out, "*cc90*.whl")
    rewrite(pack, without_driver)
    with pytest.raises(VerifyError) as caught:
        verify_release(request.out)
    (found,) = (one for one in caught.value.findings if one.code == "damaged-pack")
    assert found.subject == pack.name
    expected = "driver at offset 0x50: found 0, expected 12040 or more, because it has zstd images"
    assert found.found.endswith(expected)
    # The same pack without frames asks for none.
    split_wheel(replace(request, out=tmp_path / "off", recompress=None), effects)
    assert set(pack_drivers(tmp_path / "off")) == {0}
    rewrite(only(tmp_path / "off", "*cc90*.whl"), without_driver)
    with pytest.raises(VerifyError) as caught:
        verify_release(tmp_path / "off")
    assert {one.code for one in caught.value.findings} == {"changed-file", "wrong-listing"}


@pytest.mark.parametrize("level", [9, 19])
@pytest.mark.parametrize(
    ("payload", "size"),
    [
        (repeated, 0x14000),
        (repeated, 0x200),
        (similar, 0x2000),
        (similar, 0x80),
    ],
)
def test_no_pack_is_larger_than_with_the_vendors_bytes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    effects: Effects,
    payload: Callable[[bytes, bytes], bytes],
    size: int,
    level: int,
) -> None:
    fat = fat_wheel_of(tmp_path, monkeypatch, payload, size)
    off = SplitRequest(source=fat, out=tmp_path / "off", recompress=None)
    split_wheel(off, effects)
    split_wheel(replace(off, out=tmp_path / "new", recompress=level), effects)
    before, after = pack_sizes(off.out), pack_sizes(tmp_path / "new")
    assert before.keys() == after.keys()
    # The build ids, which differ, are deflated.
    assert [name for name in before if after[name] > before[name] + 16] == []
    assert (sum(after.values()) < 0.8 * sum(before.values())) == (size == 0x14000)


def pack_drivers(out: Path) -> list[int]:
    """Return the driver that the index of each pack asks for."""
    found = []
    for path in out.glob("*_*-1.0-*.whl"):
        with zipfile.ZipFile(path) as archive:
            (name,) = (one for one in archive.namelist() if one.endswith("/device.pack"))
            found.append(read_pack(Window(archive.read(name), source=name)).driver_version)
    return found


def test_only_packs_with_frames_ask_for_the_driver_of_cuda_12_4(
    tmp_path: Path, effects: Effects, monkeypatch: pytest.MonkeyPatch
) -> None:
    fat = fat_wheel_of(tmp_path, monkeypatch, repeated, 0x14000)
    for level, driver in ((9, 12040), (None, 0)):
        out = tmp_path / f"{level}"
        split_wheel(SplitRequest(source=fat, out=out, recompress=level), effects)
        assert set(pack_drivers(out)) == {driver}


REAL = {
    "xgboost==3.2.0": 0.64,
    "cupy-cuda12x==14.2.0": 0.66,
    "catboost==1.2.10": 0.67,
    "bitsandbytes==0.50.2": 1.0,
    "spconv-cu120==2.3.6": 0.81,
    "ctranslate2==4.8.5": 0.96,
}


@pytest.mark.download
@pytest.mark.parametrize("requirement", REAL)
def test_no_pack_and_no_download_of_a_published_wheel_is_larger_than_before(
    tmp_path: Path, downloads: Path, effects: Effects, requirement: str
) -> None:
    fat = index_wheel(downloads, requirement)
    off = SplitRequest(source=fat, out=tmp_path / "off", recompress=None)
    before = split_wheel(off, effects)
    after = split_wheel(replace(off, out=tmp_path / "new", recompress=9), effects)
    sizes = {one.distribution: one.size for one in before.wheels}
    packs = [one for one in after.wheels if one.role == "plugin"]
    assert [one.file for one in packs if one.size > sizes[one.distribution]] == []
    # For each image a core's table has two digests more, of the vendor's bytes and the raw ones.
    assert before.split is not None
    for needed in before.split.needs.values():
        old, new = (
            sum(one.size for one in each.wheels if one.role == "core" or one.label in needed)
            for each in (before, after)
        )
        assert new <= 1.001 * old
    ratio = sum(one.size for one in after.wheels) / fat.stat().st_size
    assert ratio < REAL[requirement]
    with zipfile.ZipFile(fat) as archive:
        for library in join_split(tmp_path / "new", tmp_path / "joined"):
            assert library.path.read_bytes() == archive.read(library.name)


@pytest.mark.download
def test_inspect_predicts_the_download_of_a_gpu_within_3_percent(
    tmp_path: Path, downloads: Path, effects: Effects
) -> None:
    fat = index_wheel(downloads, "xgboost==3.2.0")
    release = split_wheel(SplitRequest(source=fat, out=tmp_path, recompress=9), effects)
    assert release.split is not None
    gpus = [Capability.parse(name) for name in ("7.0", "8.0", "9.0", "10.0", "12.0")]
    found = read_inventory(InspectRequest(subject=str(fat), zstd=True))
    for sizes in device_usage(found, gpus):
        assert sizes.core is not None
        assert sizes.pack is not None
        packs = release.split.needs[str(sizes.capability)]
        real = sum(one.size for one in release.wheels if one.role == "core" or one.label in packs)
        assert abs((sizes.core + sizes.pack) / real - 1) < 0.03


def test_report_names_the_driver_of_a_cuda_12_wheel() -> None:
    row, content = stored_row()
    assert row.form is not None
    made = ImageResult(content=content, digest=row.digest, form=row.form)
    rows = [PackContainer(images=(row.original,))]
    stored = StoredImages(results={row.form.digest: made})
    first, second, third = stored_notes(stored, rows, 12090)
    assert first == "stored as zstd frames: 1 image"
    assert "550.54.14" in second
    assert "525.60.13" in third
    assert len(list(stored_notes(stored, rows, 13000))) == 1
    # A wheel with zstd images of its own never ran on older drivers.
    vendor = replace(row.original, digest=bytes(32))
    own = StoredImages(results={**stored.results, vendor.digest: ImageResult(kept=KeptReason.ZSTD)})
    both = [PackContainer(images=(row.original, vendor))]
    assert [*stored_notes(own, both, 12090)] == [
        first,
        "1 image keeps the vendor's bytes: it is a zstd frame already",
    ]


def test_cost_of_slow_levels_is_printed_before_they_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("archsplit.split.stored_images._ANNOUNCED_SECONDS", 0)
    fat = split_samples.hand_made(tmp_path)
    assert main(["split", str(fat), "--out", str(tmp_path / "out"), "--recompress", "19"]) == 0
    first, *_ = capsys.readouterr().err.splitlines()
    assert "of device code as zstd frames of level 19: about 0 s of CPU time" in first
