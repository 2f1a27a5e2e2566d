"""Libraries that are not as simple: what stays in them, and what they need."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
import zipfile
import zlib
from typing import TYPE_CHECKING

import pytest
from split_samples import (
    Sample,
    compile_c,
    container,
    digest,
    fat_wheel,
    image,
    library,
    loaded,
    python,
    split,
)

from archsplit.devicecode.edits import CopiedBytes
from archsplit.errors import ArchsplitError, BinaryFormatError
from archsplit.formats.elf import Elf, SegmentType
from archsplit.formats.elf_dynamic import Dynamic
from archsplit.formats.fatbin import host_containers
from archsplit.formats.reader import Window, open_file
from archsplit.split.restore import _BLOCK, Restore, build_restore, join_split

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.formats.elf import Segment
    from archsplit.release.context import Effects


def made(folder: Path, path: Path, effects: Effects) -> Sample:
    """Split a wheel with one library."""
    fat = fat_wheel(folder / "fat", {"toyfat/__init__.py": b"", f"toyfat/lib/{path.name}": path})
    return Sample(folder=folder, fat=fat, out=split(fat, folder / "out", effects))


def loads(path: Path) -> list[Segment]:
    return [one for one in Elf(open_file(path)).segments if one.type == SegmentType.LOAD]


def dynamic(path: Path) -> Dynamic:
    return Dynamic(Elf(open_file(path)))


@pytest.mark.parametrize("kind", ["new", "old"])
def test_search_path_keeps_its_kind_and_its_places(
    tmp_path: Path, effects: Effects, kind: str
) -> None:
    tags = "-Wl,--enable-new-dtags" if kind == "new" else "-Wl,--disable-new-dtags"
    path = library(tmp_path, "liba", 0, "-Wl,-rpath,/opt/there:$ORIGIN", tags)
    sample = made(tmp_path, path, effects)
    found = dynamic(sample.site(tmp_path / "site") / "toyfat/lib/liba.so")
    places = "/opt/there:$ORIGIN:$ORIGIN/../_archsplit"
    assert (found.runpath, found.rpath) == ((places, None) if kind == "new" else (None, places))
    assert found.soname == "liba.so"
    stub = next(name for name in found.needed if name.startswith("libarchsplit_"))
    assert dynamic(tmp_path / "site/toyfat/_archsplit" / stub).soname == stub
    (joined,) = join_split(sample.out, tmp_path / "joined")
    assert joined.path.read_bytes() == path.read_bytes()


def test_library_found_by_the_search_path_of_another_is_still_found(
    tmp_path: Path, effects: Effects
) -> None:
    # As in faiss: Python's extension has an RPATH, the fat library below has none and relies on it.
    nothing = ("-shared", "-x", "c", "/dev/null")
    below = compile_c(tmp_path / "libbelow.so", "-Wl,-soname,libbelow.so", *nothing)
    fat = library(tmp_path, "liba", 0, f"-Wl,--no-as-needed,{below}")
    old = "-Wl,--disable-new-dtags,--no-as-needed,-rpath,$ORIGIN/lib:$ORIGIN/below"
    above = compile_c(tmp_path / "above.so", old, str(fat), *nothing)
    parts: dict[str, Path | bytes] = {"lib/liba.so": fat, "below/libbelow.so": below}
    members = {f"toyfat/{name}": part for name, part in {**parts, "above.so": above}.items()}
    wheel = fat_wheel(tmp_path / "fat", {"toyfat/__init__.py": b"", **members})
    sample = Sample(folder=tmp_path, fat=wheel, out=split(wheel, tmp_path / "out", effects))
    site = sample.site(tmp_path / "site", "cc90")
    load = f"import ctypes; ctypes.CDLL({str(site / 'toyfat/above.so')!r})"
    done = python(tmp_path, None, "-c", load)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("order", [("liba", "libb"), ("libb", "liba")])
def test_mutually_dependent_libraries_are_served(
    tmp_path: Path, effects: Effects, order: tuple[str, str]
) -> None:
    flags = ("-g", "-Wl,-Bsymbolic,--no-as-needed,-rpath,$ORIGIN", f"-L{tmp_path}")
    library(tmp_path, "libb", 1)
    fat = [library(tmp_path, "liba", 0, *flags, "-lb"), library(tmp_path, "libb", 1, *flags, "-la")]
    members: dict[str, Path | bytes] = {f"toyfat/lib/{each.name}": each for each in fat}
    wheel = fat_wheel(tmp_path / "fat", {"toyfat/__init__.py": b"", **members})
    sample = Sample(folder=tmp_path, fat=wheel, out=split(wheel, tmp_path / "out", effects))
    report = loaded(sample.site(tmp_path / "site", "cc90"), tmp_path, "9.0", *order)
    for seed, name in enumerate(("liba.so", "libb.so")):
        taken = ("sm_90", "compute_80", "sm_90a")
        assert report.libraries[name] == [digest(seed, i, one) for i, one in enumerate(taken)]
    assert report.talk == ""


def test_immovable_container_stays_and_is_reported(tmp_path: Path, effects: Effects) -> None:
    linkable = container(image("sm_90"), image("sm_90", lto=True))
    shared, unreached = container(image("sm_90", 0x800)), container(image("sm_90", 0x880))
    others = ((linkable, 1), (shared, 2), (unreached, 0))
    path = library(tmp_path, "liba", 0, others=others)
    sample = made(tmp_path, path, effects)
    report = json.loads((sample.out / "archsplit-report.json").read_text())
    (split_one,) = report["split"]["libraries"]
    assert split_one["containers"] == 3
    assert {each["why"]: each["images"] for each in report["split"]["unmoved"]} == {
        "they hold entries that are not GPU code, such as LTO IR": 2,
        "2 wrappers point at them": 1,
        "no wrappers point at them": 1,
    }
    assert all(each["name"] == "toyfat/lib/liba.so" for each in report["split"]["unmoved"])
    site = sample.site(tmp_path / "site", "cc90")
    core = Elf(open_file(site / "toyfat/lib/liba.so"))
    kept = [len(list(each.entries())) for _, each in host_containers(core)]
    assert kept == [0, 0, 0, 2, 1, 1]
    report = loaded(site, tmp_path, "9.0", "liba")
    assert report.libraries["liba.so"][0] == digest(0, 0, "sm_90")
    (joined,) = join_split(sample.out, tmp_path / "joined")
    assert joined.path.read_bytes() == path.read_bytes()


def test_a_library_of_an_older_linker_does_not_grow(tmp_path: Path, effects: Effects) -> None:
    # Not padded to 2 MiB for the segment that is added.
    path = library(tmp_path, "liba", 0, "-Wl,-z,max-page-size=0x200000")
    sample = made(tmp_path, path, effects)
    with zipfile.ZipFile(sample.wheel()) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/liba.so"))
        archive.extract(name, tmp_path / "core")
    new = tmp_path / "core" / name
    assert new.stat().st_size <= path.stat().st_size + 0x3000
    before, after = ({(one.address, one.alignment) for one in loads(each)} for each in (path, new))
    assert {alignment for _, alignment in before} == {0x200000}
    assert before & after
    site = sample.site(tmp_path / "site", "cc90")
    load = f"import ctypes; ctypes.CDLL({str(site / 'toyfat/lib/liba.so')!r})"
    subprocess.run([sys.executable, "-c", load], check=True)
    (joined,) = join_split(sample.out, tmp_path / "joined")
    assert joined.path.read_bytes() == path.read_bytes()


def test_library_with_read_only_wrappers_is_refused(tmp_path: Path, effects: Effects) -> None:
    text = library(tmp_path, "liba", 0).with_suffix(".S").read_text()
    (tmp_path / "liba.S").write_text(text.replace('.nvFatBinSegment,"aw"', '.nvFatBinSegment,"a"'))
    from split_samples import compile_c  # noqa: PLC0415 (only one test's)

    sources = [str(tmp_path / "liba.S"), str(tmp_path / "liba.c")]
    path = compile_c(tmp_path / "liba.so", "-shared", "-fPIC", "-Wl,-z,notext", *sources)
    with pytest.raises(ArchsplitError, match="no library with device code that can be moved"):
        made(tmp_path, path, effects)


def zlib_bomb(mebibytes: int) -> bytes:
    """Compress zeros: each full flush begins anew, so the same block serves for all."""
    packer = zlib.compressobj(9)
    head = packer.compress(b"") + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    return head + block * mebibytes


def test_huge_record_takes_little_memory() -> None:
    bomb = zlib_bomb(4096)
    tracemalloc.start()
    with pytest.raises(BinaryFormatError, match="a record is damaged"):
        Restore.decode(bomb, source="a record")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 300 << 20


def test_neighboring_equal_blocks_are_one_row_of_the_record() -> None:
    original = bytes(range(1, 6)) * _BLOCK
    core = original[:_BLOCK] + b"x" + original[_BLOCK + 1 :]
    old, new = (Window(content, source="a library") for content in (original, core))
    restore = build_restore(old, new, [CopiedBytes(offset=0, size=len(core))], [])
    assert restore.rows == ((0, 0, _BLOCK), (1, 0, _BLOCK), (0, 2 * _BLOCK, 3 * _BLOCK))


def test_damaged_record_of_joining_is_refused() -> None:
    good = Restore(rows=((1, 0, 3), (0, 0, 2)), kept=b"abc").encode()
    restore = Restore.decode(good, source="a record")
    blocks = restore.blocks(memoryview(b"xy"), lambda *_: memoryview(b""))
    assert b"".join(blocks) == b"abcxy"
    longer = zlib.decompress(good) + b"d"
    texts = (b"", b"\1" + bytes(8), longer)
    for damaged in (good[:-1], b"", b"no zlib", *map(zlib.compress, texts)):
        with pytest.raises(
            BinaryFormatError, match=r"a record is damaged.*\nhint: split the fat wh"
        ):
            Restore.decode(damaged, source="a record")
    other = restore.blocks(memoryview(b"x"), lambda *_: memoryview(b""))
    with pytest.raises(BinaryFormatError, match="is not the one that was split"):
        b"".join(other)
