"""Other members of wheels: ``.data``, programs, static libraries, bare device code."""

from __future__ import annotations

import json
import subprocess
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from split_samples import (
    Sample,
    compile_c,
    container,
    content,
    digest,
    fat_wheel,
    image,
    library,
    loaded,
    python,
    split,
)

from archsplit.errors import NothingToDoError, WheelError
from archsplit.release.report import require_report
from archsplit.release.summary import split_summary
from archsplit.release.verify import verify_release
from archsplit.split import find
from archsplit.split.restore import join_split
from archsplit.wheels.reader import extract_member

if TYPE_CHECKING:
    from archsplit.release.context import Effects
    from archsplit.wheels.record import RecordRow
    from archsplit.wheels.zip_reader import Archive
    from compiled_samples import Samples

DATA = "toyfat-1.0.data"


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path | bytes]:
    folder = tmp_path_factory.mktemp("members")
    moving, other, third = (
        library(folder, name, seed) for seed, name in enumerate(("liba", "libb", "libc"))
    )
    sources = [str(folder / f"liba.{suffix}") for suffix in ("S", "c")]
    (folder / "main.c").write_text("int main(void) { return 0; }\n")
    program = compile_c(folder / "program", "-fPIE", "-pie", *sources, str(folder / "main.c"))
    compile_c(folder / "liba.o", "-c", sources[0])
    subprocess.run(["ar", "rcs", str(folder / "libs.a"), str(folder / "liba.o")], check=True)
    hidden = library(folder, "libhidden", 0)
    rodata = container(image("sm_90"))
    (folder / "hidden.S").write_text(_IN_RODATA.format(path=folder / "hidden.fatbin"))
    (folder / "hidden.fatbin").write_bytes(rodata)
    sources = [str(folder / f"libhidden.{suffix}") for suffix in ("S", "c")]
    compile_c(hidden, "-shared", "-fPIC", *sources, str(folder / "hidden.S"))
    sources = [str(folder / f"libb.{suffix}") for suffix in ("S", "c")]
    first = compile_c(folder / "libf.so", "-shared", "-fPIC", "-Wl,-z,initfirst", *sources)
    return {
        "toyfat/__init__.py": b"",
        "toyfat/lib/liba.so": moving,
        "toyfat/lib/libfirst.so": first,
        f"{DATA}/platlib/toyfat/lib/libb.so": other,
        f"{DATA}/purelib/toyfat/__main__.py": b"",
        f"{DATA}/data/lib/libc.so": third,
        f"{DATA}/scripts/program": program,
        "toyfat/bin/program": program,
        "toyfat/lib/libs.a": folder / "libs.a",
        "toyfat/lib/libhidden.so": hidden,
        "toyfat/code.fatbin": content(0, 0, "sm_80", "sm_90"),
        "toyfat/torn.so": moving.read_bytes()[:5000],
        "toyfat/text.so": b"\x7fELF is what this begins with",
    }


_IN_RODATA = """
.section .rodata
.balign 8
.incbin "{path}"
.section .note.GNU-stack,"",%progbits
"""


@pytest.fixture(scope="module")
def sample(
    members: dict[str, Path | bytes], tmp_path_factory: pytest.TempPathFactory, effects: Effects
) -> Sample:
    folder = tmp_path_factory.mktemp("split")
    fat = fat_wheel(folder / "fat", members)
    return Sample(folder=folder, fat=fat, out=split(fat, folder / "out", effects))


def test_unmoved_library_is_reported_with_its_reason(sample: Sample) -> None:
    report = json.loads((sample.out / "archsplit-report.json").read_text())
    assert [each["name"] for each in report["split"]["libraries"]] == [
        "toyfat/lib/liba.so",
        "toyfat/lib/libb.so",
        "toyfat/lib/libhidden.so",
    ]
    stays = {each["name"]: each for each in report["split"]["unmoved"]}
    for name, images, why in (
        (f"{DATA}/data/lib/libc.so", 8, "the installer decides where it goes"),
        (f"{DATA}/scripts/program", 10, "it is a program"),
        ("toyfat/bin/program", 10, "it is a program"),
        ("toyfat/lib/libfirst.so", 9, "its constructors run before all others (-z initfirst"),
        ("toyfat/lib/libs.a", 10, "a static library is input for a linker"),
        ("toyfat/lib/libhidden.so", 1, "it is outside of the fatbin sections, in .rodata"),
        ("toyfat/code.fatbin", 2, "a fatbin is read by a program"),
        ("toyfat/torn.so", 0, "it can't be read: toyfat/torn.so: "),
        ("toyfat/text.so", 0, "it can't be read: toyfat/text.so: "),
    ):
        assert stays[name]["images"] == images
        assert stays[name]["why"].startswith(why)
        assert (stays.pop(name)["size"] > 0) == (images > 0)
    assert not stays


def test_kept_members_are_unchanged(sample: Sample) -> None:
    with zipfile.ZipFile(sample.fat) as fat, zipfile.ZipFile(sample.wheel()) as core:
        changed = {name for name in fat.namelist() if fat.read(name) != core.read(name)}
    assert changed == {
        "toyfat/lib/liba.so",
        "toyfat/lib/libhidden.so",
        f"{DATA}/platlib/toyfat/lib/libb.so",
        "toyfat-1.0.dist-info/METADATA",
        "toyfat-1.0.dist-info/RECORD",
        "toyfat-1.0.dist-info/WHEEL",
        "toyfat-1.0.dist-info/entry_points.txt",  # announces PyInstaller's hook, too
    }


@pytest.mark.parametrize("name", [None, "other"])
def test_libraries_moved_by_an_installer_are_served(
    sample: Sample,
    members: dict[str, Path | bytes],
    tmp_path: Path,
    effects: Effects,
    name: str | None,
) -> None:
    out = sample.out if name is None else split(sample.fat, tmp_path / "out", effects, name=name)
    assert verify_release(out).package == (name or "toyfat")
    site = tmp_path / "site"
    project = name or "toyfat"
    wheels = [str(path) for path in out.glob(f"{project}-*.whl")]
    wheels += [str(path) for path in out.glob(f"{project}_cc90-*.whl")]
    words = ("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(site))
    done = python(sample.folder, None, *words, *wheels)
    assert done.returncode == 0, done.stderr
    report = loaded(site, sample.folder, "9.0", "libb", "liba")
    assert report.libraries["libb.so"][0] == digest(1, 0, "sm_90")
    assert report.libraries["liba.so"][0] == digest(0, 0, "sm_90")
    for each in join_split(out, tmp_path / "joined"):
        original = members.get(each.name) or members[f"{DATA}/platlib/{each.name}"]
        assert isinstance(original, Path)
        assert each.path.read_bytes() == original.read_bytes()


def test_wheel_with_nothing_to_move_lists_its_content(
    members: dict[str, Path | bytes], tmp_path: Path, effects: Effects
) -> None:
    kept = ("toyfat/__init__.py", "toyfat/lib/libs.a", "toyfat/bin/program")
    fat = fat_wheel(tmp_path / "fat", {name: members[name] for name in kept})
    with pytest.raises(NothingToDoError) as caught:
        split(fat, tmp_path / "out", effects)
    assert "toyfat/lib/libs.a: kept 10 images, 93.8 kB: a static library" in str(caught.value)
    assert "toyfat/bin/program: kept 10 images, 93.8 kB: it is a program" in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_files_of_code_for_each_gpu_are_a_line_of_the_output(
    tmp_path: Path, effects: Effects, samples: Samples
) -> None:
    files: dict[str, Path | bytes] = {
        f"toyfat/lib/libtoy_device_sm_{number}.bc": b"BC\xc0\xde" * size
        for number, size in ((80, 100), (90, 200), (100, 0))
    }
    files |= {f"toyfat/{name}.cubin": samples / "plain.cubin" for name in "ab"}
    files |= {"toyfat/c/c.cubin": samples / "plain.cubin", "toyfat/lib/libempty_sm_90.bc": b""}
    own: dict[str, Path | bytes] = {"toyfat/__init__.py": b""}
    own["toyfat/lib/liba.so"] = library(tmp_path, "liba", 0)
    fat = fat_wheel(tmp_path / "fat", {**own, **files})
    summary = split_summary(require_report(split(fat, tmp_path / "out", effects)))
    lines = [line.split(" (")[0] for line in summary.splitlines() if ": kept" in line]
    assert lines == [
        "toyfat/lib/*.bc: kept 2 images",
        "toyfat/*.cubin: kept 2 images",
        "toyfat/c/*.cubin: kept 1 image",
    ]
    assert "(1.20 kB): LLVM bitcode is read by a compiler" in summary


def test_a_large_library_without_device_code_is_not_unpacked(
    tmp_path: Path, effects: Effects, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpacked = []

    def extract(archive: Archive, entry: RecordRow, path: Path) -> None:
        unpacked.append(entry.path)
        extract_member(archive, entry, path)

    monkeypatch.setattr(find, "LARGE_LIBRARY", 0)
    monkeypatch.setattr(find, "extract_member", extract)
    (tmp_path / "host.c").write_text("int answer(void) { return 42; }\n")
    host = compile_c(tmp_path / "host.so", "-shared", "-fPIC", str(tmp_path / "host.c"))
    both = {"toyfat/lib/liba.so": library(tmp_path, "liba", 0), "toyfat/lib/host.so": host}
    fat = fat_wheel(tmp_path / "fat", {**both, "toyfat/__init__.py": b""})
    out = split(fat, tmp_path / "out", effects)
    assert unpacked == ["toyfat/lib/liba.so"]
    with zipfile.ZipFile(next(out.glob("toyfat-*.whl"))) as core:
        assert core.read("toyfat/lib/host.so") == host.read_bytes()
    # It is still compared with RECORD.
    wrong = tmp_path / "wrong" / fat.name
    wrong.parent.mkdir()
    with zipfile.ZipFile(fat) as old, zipfile.ZipFile(wrong, "w") as new:
        for name in old.namelist():
            changed = name == "toyfat/lib/host.so"
            new.writestr(name, old.read(name)[:-1] + b"!" if changed else old.read(name))
    with pytest.raises(WheelError, match=r"host\.so doesn't match its hash"):
        split(wrong, tmp_path / "nothing", effects)
