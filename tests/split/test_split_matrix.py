"""The wheels of one release, split together: packs that serve several Pythons and platforms."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import sys
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from split_samples import (
    container,
    fat_wheel,
    image,
    library,
    loaded,
    python,
    split,
    unpacked,
)

from archsplit.cli.main import main
from archsplit.errors import InputError, OutputError
from archsplit.release.report import read_report
from archsplit.split import split as split_module
from archsplit.system.fs import replace_all
from index_server import write_required

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.release.context import Effects

MB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """Fat wheels of one release, and the folder of their split."""

    fat: tuple[Path, ...]
    out: Path

    def names(self, *prefixes: str) -> list[str]:
        """The files that begin so, without the project's name and version."""
        files = sorted(path.name for path in self.out.glob("*.whl"))
        return [name.replace("-1.0-0split", "") for name in files if name.startswith(prefixes)]

    def core(self, tag: str) -> Path:
        return next(self.out.glob(f"toyfat-1.0-*split-{tag}-*.whl"))

    def pack(self, name: str, tag: str = "") -> Path:
        return next(self.out.glob(f"toyfat_{name}-1.0-*split-{tag}*.whl"))


def python_wheel(folder: Path, tag: str, library: Path, platform: str = "linux_x86_64") -> Path:
    """A wheel for one Python, whose library has that Python's name."""
    member = f"toyfat/lib/core.cpython-{tag.removeprefix('cp')}-x86_64-linux-gnu.so"
    members: dict[str, Path | bytes] = {"toyfat/__init__.py": b"ANSWER = 42\n", member: library}
    return fat_wheel(folder / "fat", members, tags=f"{tag}-{tag}-{platform}")


def made(effects: Effects, folder: Path, *fat: Path, **changes: object) -> Matrix:
    out = split(fat[0], folder / "out", effects, others=fat[1:], **changes)
    return Matrix(fat=fat, out=out)


@pytest.fixture(scope="module")
def same(tmp_path_factory: pytest.TempPathFactory, effects: Effects) -> Matrix:
    """Two Pythons: other host code, and the same images."""
    folder: Path = tmp_path_factory.mktemp("same")
    first = library(folder, "liba", 0)
    # Other host code puts the containers at other addresses.
    second = library(folder, "libb", 0, "-g", "-Wl,-z,separate-code", "-DMORE=1")
    fat = (python_wheel(folder, "cp310", first), python_wheel(folder, "cp311", second))
    return made(effects, folder, *fat)


@pytest.fixture(scope="module")
def differing(tmp_path_factory: pytest.TempPathFactory, effects: Effects) -> Matrix:
    """Three Pythons: one has another container beside a large one that all have."""
    folder: Path = tmp_path_factory.mktemp("differing")
    large = container(image("sm_80", MB, 7), image("sm_90", MB, 7))
    libraries = {
        tag: library(folder, f"lib{tag}", seed, others=((large, 1),))
        for tag, seed in (("cp310", 0), ("cp311", 1), ("cp312", 1))
    }
    fat = [python_wheel(folder, tag, path) for tag, path in libraries.items()]
    return made(effects, folder, *fat)


def test_cores_with_the_same_images_share_packs(same: Matrix) -> None:
    assert same.names("toyfat-") == [
        "toyfat-cp310-cp310-linux_x86_64.whl",
        "toyfat-cp311-cp311-linux_x86_64.whl",
    ]
    assert all(name.endswith("-py3-none-linux_x86_64.whl") for name in same.names("toyfat_"))
    assert len(same.names("toyfat_")) == len({path.split("-")[0] for path in same.names("toyfat_")})


def test_a_pack_of_another_python_is_served(same: Matrix, tmp_path: Path) -> None:
    sites = [
        unpacked(tmp_path / tag, same.core(tag), same.pack("cc90")) for tag in ("cp310", "cp311")
    ]
    names = [f"core.cpython-{number}-x86_64-linux-gnu" for number in ("310", "311")]
    found = [loaded(site, tmp_path, "9.0", name) for site, name in zip(sites, names, strict=True)]
    digests = [next(iter(one.libraries.values())) for one in found]
    assert digests[0] == digests[1]
    assert [(one.mapped, one.talk) for one in found] == [(["cc90"], "")] * 2


def test_differing_images_are_in_packs_of_their_own(differing: Matrix) -> None:
    assert differing.names("toyfat_cc90", "toyfat_common") == [
        "toyfat_cc90-cp310-cp310-linux_x86_64.whl",
        "toyfat_cc90-py3-none-linux_x86_64.whl",
        "toyfat_commoncc90-py3-none-linux_x86_64.whl",
        "toyfat_commonshared80-py3-none-linux_x86_64.whl",
    ]
    size = {path.name: path.stat().st_size for path in differing.out.glob("*.whl")}
    assert all(size[path] < MB for path in size if path.startswith("toyfat_cc"))


def test_every_python_gets_its_own_images(differing: Matrix, tmp_path: Path) -> None:
    found = {}
    for tag in ("cp310", "cp311", "cp312"):
        own = "cp310" if tag == "cp310" else "py3"
        wheels = (differing.core(tag), differing.pack("cc90", own), differing.pack("commoncc90"))
        site = unpacked(tmp_path / tag, *wheels)
        name = f"core.cpython-{tag.removeprefix('cp')}-x86_64-linux-gnu"
        seen = loaded(site, tmp_path, "9.0", name)
        assert not seen.talk
        found[tag] = next(iter(seen.libraries.values()))
    assert found["cp310"] != found["cp311"] == found["cp312"]


def test_a_pack_for_another_python_is_named(differing: Matrix, tmp_path: Path) -> None:
    wheels = (differing.core("cp311"), differing.pack("cc90", "cp310"))
    site = unpacked(tmp_path / "site", *wheels)
    seen = loaded(site, tmp_path, "9.0", "core.cpython-311-x86_64-linux-gnu")
    assert "for another Python or platform" in seen.talk


def test_doctor_mends_a_pack_for_another_python_without_the_core(
    differing: Matrix, tmp_path: Path
) -> None:
    site = unpacked(tmp_path, differing.core("cp311"), differing.pack("cc90", "cp310"))
    done = python(tmp_path, "9.0", str(site / "toyfat" / "_archsplit"))
    assert "none for this core; install the plugin again" in done.stdout
    assert 'to fix it: pip install --force-reinstall --no-deps "toyfat-cc90==1.0"\n' in done.stdout


def test_extras_are_the_same_in_all_cores(differing: Matrix) -> None:
    from archsplit.wheels.reader import open_wheel  # noqa: PLC0415 (only this test's)

    lines = []
    for tag in ("cp310", "cp311", "cp312"):
        with open_wheel(differing.core(tag), same_tags=False) as wheel:
            text = wheel.read(f"{wheel.dist_info}/METADATA").decode()
            lines.append([line for line in text.splitlines() if "extra" in line.lower()])
    assert lines[0] == lines[1] == lines[2]
    assert any("toyfat-commoncc90==1.0" in line and "cc90" in line for line in lines[0])


def test_wheels_are_the_same_in_every_order(
    differing: Matrix, tmp_path: Path, effects: Effects
) -> None:
    again = made(effects, tmp_path, *differing.fat[::-1])
    files = [
        {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in one.iterdir()}
        for one in (differing.out, again.out)
    ]
    assert files[0] == files[1]


def test_packs_split_for_one_python_equal_those_for_all(
    same: Matrix, tmp_path: Path, effects: Effects
) -> None:
    single = made(effects, tmp_path, same.fat[1])
    for path in single.out.glob("toyfat_*.whl"):
        assert path.read_bytes() == (same.out / path.name).read_bytes()
    # The other Python's core can't come into this folder by itself: its list would be lost.
    with pytest.raises(OutputError, match="of the same release"):
        split(same.fat[0], single.out, effects)


def test_the_second_of_two_splits_at_once_is_refused(
    same: Matrix, tmp_path: Path, effects: Effects, monkeypatch: pytest.MonkeyPatch
) -> None:
    both_pass = threading.Barrier(2)

    def wait_and_replace(names: list[str], *, source: Path, target: Path) -> None:
        # The other one comes here, too, unless it waits for the folder until this one is done.
        with contextlib.suppress(threading.BrokenBarrierError):
            both_pass.wait(2)
        replace_all(names, source=source, target=target)

    monkeypatch.setattr(split_module, "replace_all", wait_and_replace)
    out = tmp_path / "out"

    def refusal(fat: Path) -> str:
        try:
            split(fat, out, effects)
        except OutputError as error:
            return error.message
        return ""

    with ThreadPoolExecutor(2) as pool:
        first, second = sorted(pool.map(refusal, same.fat))
    assert not first
    assert "of the same release" in second
    assert len(list(out.glob("toyfat-*.whl"))) == 1


def test_the_report_has_every_core(differing: Matrix) -> None:
    report = read_report(differing.out / "archsplit-report.json")
    assert report.split is not None
    assert [one.file for one in report.split.sources] == [path.name for path in differing.fat]
    assert [one.core for one in report.split.sources] == [one.file for one in report.cores]
    assert {one.core for one in report.split.libraries} == {one.file for one in report.cores}


def test_wheels_of_other_releases_are_refused(
    same: Matrix, tmp_path: Path, effects: Effects, capsys: pytest.CaptureFixture[str]
) -> None:
    other = fat_wheel(tmp_path / "fat", {"toyfat/__init__.py": b""}, "2.0")
    with pytest.raises(InputError, match=r"from different releases: version is 2\.0 and 1\.0"):
        split(same.fat[0], tmp_path / "out", effects, others=(other,))
    copy = tmp_path / "copy" / same.fat[0].name
    copy.parent.mkdir()
    shutil.copyfile(same.fat[0], copy)
    with pytest.raises(InputError, match="are both for cp310-cp310-linux_x86_64"):
        split(same.fat[0], tmp_path / "out", effects, others=(copy,))
    lib = tmp_path / "lib.so"
    lib.write_bytes(b"\x7fELF")
    assert main(["split", str(same.fat[0]), str(lib), "--out", str(tmp_path / "out")]) == 2
    assert "split each library by itself" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_manifest_lists_each_file(differing: Matrix) -> None:
    manifest = json.loads((differing.out / "archsplit-manifest.json").read_text())
    counts = {one["file"]: len(one["images"]) for one in manifest["wheels"]}
    own = [count for file, count in counts.items() if file.startswith("toyfat_cc90-")]
    assert len(own) == 2
    assert all(own)


def test_every_core_is_joined_back(
    differing: Matrix, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["join", str(differing.out), "--out", str(tmp_path), "--json"]) == 0
    joined = {
        one["name"]: one["sha256"] for one in json.loads(capsys.readouterr().out)["libraries"]
    }
    expected = {}
    for fat in differing.fat:
        tags = "-".join(fat.stem.split("-")[-3:])
        with zipfile.ZipFile(fat) as archive:
            for name in archive.namelist():
                if name.endswith(".so"):
                    digest = hashlib.sha256(archive.read(name)).hexdigest()
                    expected[f"{tags}/{name}"] = digest
                    restored = (tmp_path / tags / name).read_bytes()
                    assert hashlib.sha256(restored).hexdigest() == digest
    assert joined == expected


def test_a_missing_file_is_a_hole_of_its_python(
    differing: Matrix, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "hole"
    shutil.copytree(differing.out, folder)
    assert main(["verify", str(folder)]) == 0
    (folder / differing.pack("cc90", "py3").name).unlink()
    capsys.readouterr()
    assert main(["verify", str(folder)]) == 9
    err = capsys.readouterr().err
    # The odd Python's own file is still there, and fits no other.
    assert "cp311-cp311" in err
    assert "cp312-cp312" in err
    assert "cp310-cp310" not in err


def test_splits_of_several_machines_are_gathered(
    same: Matrix, tmp_path: Path, effects: Effects, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = [split(fat, tmp_path / fat.stem, effects) for fat in same.fat]
    whole = tmp_path / "whole"
    assert main(["gather", *map(str, parts), "--out", str(whole)]) == 0
    assert {path.name for path in whole.iterdir()} == {path.name for path in same.out.iterdir()}
    for path in same.out.iterdir():
        if path.suffix == ".whl":
            assert (whole / path.name).read_bytes() == path.read_bytes()
    reports = [read_report(each / "archsplit-report.json") for each in (whole, same.out)]
    assert reports[0].split == reports[1].split
    assert main(["verify", str(whole)]) == 0
    capsys.readouterr()


def test_gather_refuses_a_hole_and_a_contradiction(
    same: Matrix,
    differing: Matrix,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    part = tmp_path / "part"
    shutil.copytree(same.out, part)
    report = json.loads((part / "archsplit-report.json").read_text())
    manifest = json.loads((part / "archsplit-manifest.json").read_text())
    for name, lists in (("report", report), ("manifest", manifest)):
        lists["wheels"] = [one for one in lists["wheels"] if "cc86" not in one["file"]]
        (part / f"archsplit-{name}.json").write_text(json.dumps(lists))
    out = tmp_path / "out"
    assert main(["gather", str(part), "--out", str(out)]) == 9
    err = capsys.readouterr().err
    assert "cp310-cp310-linux_x86_64: no wheel of toyfat-cc86 for GPUs of 8.6, 8.9" in err
    assert not out.exists()
    words = ["--without", "*:8.6", "--without", "*:8.9"]
    assert main(["gather", str(part), "--out", str(out), *words]) == 0
    capsys.readouterr()
    # The same Python from two different releases: other images, so another build.
    assert main(["gather", str(part), str(differing.out), "--out", str(tmp_path / "no")]) == 9
    assert "different builds" in capsys.readouterr().err


def test_each_core_has_the_same_variants(same: Matrix, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert main(["split", *map(str, same.fat), "--out", str(out), "--variants"]) == 0
    names = [path.name for path in (out / "variants").iterdir()]
    assert names.count("toyfat-1.0-variants.json") == 1
    labels = {
        tag: {name.rpartition("-")[2] for name in names if f"-{tag}-" in name}
        for tag in ("cp310", "cp311")
    }
    listed = json.loads((out / "variants" / "toyfat-1.0-variants.json").read_text())["variants"]
    assert labels["cp310"] == labels["cp311"] == {f"{label}.whl" for label in listed} != set()


def test_a_sample_of_the_release_is_installed(
    tmp_path: Path,
    effects: Effects,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The Python that runs the tests, one that no machine has, and another Linux."""
    # What the fat wheel requires is here: the test needs no index.
    write_required(tmp_path / "required")
    for program in ("PIP", "UV"):
        monkeypatch.setenv(f"{program}_NO_INDEX", "1")
        monkeypatch.setenv(f"{program}_FIND_LINKS", str(tmp_path / "required"))
    major, minor = sys.version_info[:2]
    tag, python = f"cp{major}{minor}", f"{major}.{minor}"
    code = library(tmp_path, "liba", 0)
    # Each Python takes wheels for cp33-abi3, but none for cp33-cp33.
    fat = [python_wheel(tmp_path, each, code) for each in (tag, "cp33", "cp399")]
    fat.append(python_wheel(tmp_path, tag, code, "manylinux_2_99_x86_64"))
    out = made(effects, tmp_path, *fat).out
    assert main(["verify", "--release", str(out)]) == 0
    text, talk = capsys.readouterr()
    assert f"pip and uv install {tag}-{tag}-linux_x86_64 with Python {python}\n" in text
    for each in ("cp33", "cp399"):
        assert f"{each}-{each}-linux_x86_64 was not installed: no Python for {each} is here" in talk
    assert "pip and uv install what is listed, no import fails" in text
    unfit = (
        f"{tag}-{tag}-manylinux_2_99_x86_64 was not installed: this machine accepts no wheel for"
    )
    assert f"{unfit} manylinux_2_99_x86_64" in talk
    assert main(["verify", "--release", "--python", "3.99", str(out)]) == 4
    assert "Python 3.99 is not here" in capsys.readouterr().err
