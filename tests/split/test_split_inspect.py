"""A pack is device code: inspect, its limits, diff and advise read packs as they read libraries."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from split_samples import (
    VERSION,
    Sample,
    compiled,
    container,
    fat_wheel,
    hand_made,
    image,
    library,
    split,
    unpacked,
)

from archsplit.cli.main import main
from archsplit.errors import DevicePackError, UsageError, VerifyError
from archsplit.inspect.sizes import _LOADER, _STUB_LIBRARY
from archsplit.split import stored_images
from archsplit.wheels.reader import extract_member, open_wheel
from in_process import run_archsplit

if TYPE_CHECKING:
    from archsplit.nvcc.toolkit import Toolkit
    from archsplit.release.context import Effects

PACK = "toyfat_plugins/cuda/cc90/device.pack"


@pytest.fixture(scope="module")
def pack(sample: Sample, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pack of one wheel, unpacked."""
    path = tmp_path_factory.mktemp("pack") / "device.pack"
    with open_wheel(sample.wheel("cc90"), same_tags=False) as wheel:
        extract_member(wheel.archive, wheel.record[PACK], path)
    return path


@pytest.fixture(scope="module")
def site(sample: Sample, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The core and one pack, installed by pip."""
    folder = tmp_path_factory.mktemp("site")
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder))
    wheels = [str(sample.wheel()), str(sample.wheel("cc90"))]
    subprocess.run([*pip, *wheels], check=True, capture_output=True)
    return folder


def inspected(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["inspect", *map(str, words), "--json"]) == 0
    content: dict[str, Any] = json.loads(capsys.readouterr().out)
    return content


def targets(content: dict[str, Any]) -> set[str]:
    return {row["target"] for row in content["totals"]}


def services(content: dict[str, Any]) -> list[tuple[str, dict[str, int], list[str]]]:
    return [(one["device"], one["containers"], one["targets"]) for one in content["devices"]]


def test_estimate_of_a_core_includes_its_loader(sample: Sample) -> None:
    with zipfile.ZipFile(sample.fat) as fat, zipfile.ZipFile(sample.wheel()) as core:
        members = {each.filename: each for each in core.infolist()}
        added = [members[name] for name in members.keys() - set(fat.namelist())]
    # The directory has a second header of each member.
    headers = sum(76 + 2 * len(each.filename) for each in added)
    libraries = sum(each.filename.endswith(".restore") for each in added)
    # The table of images isn't in the estimate: of a wheel, it is next to nothing.
    packed = sum(each.compress_size for each in added if not each.filename.endswith("core.pack"))
    assert packed + headers == pytest.approx(_LOADER + libraries * _STUB_LIBRARY, rel=0.05)


def test_a_pack_its_wheel_and_its_folder_show_their_images(
    sample: Sample, pack: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    by_itself = inspected(capsys, pack)
    wheel = inspected(capsys, sample.wheel("cc90"))
    for content in (by_itself, wheel, inspected(capsys, pack.parent)):
        assert targets(content) == {"sm_90", "sm_90a", "compute_80"}
        assert sum(row["count"] for row in content["totals"]) == 6
    assert by_itself["files"][0]["containers"] == 6
    assert all(row["wheel_bytes"] > 0 for row in wheel["totals"])
    assert by_itself["totals"][0]["file_bytes"] == wheel["totals"][0]["file_bytes"]
    assert main(["inspect", str(pack)]) == 0
    assert "sm_90a" in capsys.readouterr().out


def test_all_packs_serve_each_gpu_like_the_fat_wheel(
    sample: Sample, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fat, packs = inspected(capsys, sample.fat), inspected(capsys, sample.out)
    assert services(packs) == services(fat)
    # Outside of wheels, which deflate the images in other ways.
    folders = [
        unpacked(tmp_path / "fat", sample.fat),
        unpacked(tmp_path / "packs", *sample.out.glob("*.whl")),
    ]
    used = [
        [one["sizes"]["used"] for one in inspected(capsys, each)["devices"]] for each in folders
    ]
    assert used[0] == used[1]


def test_core_without_packs_serves_no_gpu(
    sample: Sample, capsys: pytest.CaptureFixture[str]
) -> None:
    content = inspected(capsys, sample.wheel(), "--device", "9.0")
    assert services(content) == [
        ("9.0", {"native": 0, "older_minor": 0, "ptx": 0, "none": 6}, []),
    ]


@pytest.mark.parametrize(
    ("limits", "finding"),
    [
        (("--forbid", "sm_90"), "sm_90 is forbidden"),
        (("--max-target", "sm_90=1kB"), "more than its 1.0 kB"),
        (("--budget", "1kB"), "more than its budget"),
        (("--require", "sm_75"), "sm_75 is required; found "),
    ],
)
def test_limits_hold_on_packs(
    sample: Sample, pack: Path, limits: tuple[str, str], finding: str
) -> None:
    for subject in (pack, sample.wheel("cc90"), sample.out):
        done = run_archsplit("inspect", str(subject), *limits)
        assert done.returncode == VerifyError.exit_code
        assert finding in done.stderr


def test_kept_limits_of_packs_are_success(sample: Sample, pack: Path) -> None:
    for subject in (pack, sample.wheel("cc90"), sample.out):
        limits = ("--require", "sm_90", "--forbid", "sm_75", "--budget", "10MB")
        assert main(["inspect", str(subject), *limits]) == 0


def test_an_installed_core_is_read_with_its_pack(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("toyfat", "--site-packages", site, "--device", "9.0")
    content = inspected(capsys, *words, "--require", "sm_90")
    assert services(content)[0][1] == {"native": 4, "older_minor": 0, "ptx": 2, "none": 0}
    done = run_archsplit("inspect", "toyfat", "--site-packages", str(site), "--require", "sm_86")
    assert done.returncode == VerifyError.exit_code
    assert "sm_86 is required; found " in done.stderr
    # The core's table has each container too, without images.
    assert "in 6 containers of 1 file" in done.stdout


def test_a_core_without_its_pack_fails_the_gate(site: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(site, tmp_path / "site"))
    (copy / PACK).unlink()
    done = run_archsplit("inspect", "toyfat", "--site-packages", str(copy), "--require", "sm_90")
    assert done.returncode == VerifyError.exit_code
    assert "sm_90 is required; found no device code" in done.stderr


def test_a_pack_of_another_build_fails_the_gate(
    site: Path, tmp_path: Path, effects: Effects
) -> None:
    (tmp_path / "other").mkdir()
    other = split(hand_made(tmp_path / "other", "2.0"), tmp_path / "out", effects)
    copy = Path(shutil.copytree(site, tmp_path / "site"))
    with open_wheel(next(other.glob("toyfat_cc90-*")), same_tags=False) as wheel:
        (copy / PACK).unlink()
        extract_member(wheel.archive, wheel.record[PACK], copy / PACK)
    done = run_archsplit("inspect", "toyfat", "--site-packages", str(copy), "--require", "sm_90")
    assert done.returncode == VerifyError.exit_code
    assert "the loader refuses it" in done.stderr
    assert "sm_90 is required; found no device code" in done.stderr


def test_a_damaged_pack_is_an_error_of_its_own(pack: Path, tmp_path: Path) -> None:
    content = pack.read_bytes()
    (tmp_path / "x.pack").write_bytes(content[:-100])
    (tmp_path / "y.pack").write_bytes(content[:40])
    for name in ("x.pack", "y.pack"):
        done = run_archsplit("inspect", str(tmp_path / name))
        assert done.returncode == DevicePackError.exit_code == 16
        assert name in done.stderr
    done = run_archsplit("inspect", str(tmp_path), "--forbid", "sm_90")
    assert done.returncode == VerifyError.exit_code
    assert "x.pack: " in done.stderr


def test_diff_compares_packs(
    sample: Sample, pack: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", str(sample.wheel("cc80")), str(pack), "--json", "--no-kernels"]) == 0
    rows = {row["target"]: row for row in json.loads(capsys.readouterr().out)["targets"]}
    assert rows["sm_90"]["old"] == 0
    assert rows["sm_90"]["new"] > 0


def test_advise_weighs_a_split(
    sample: Sample, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gpus = tmp_path / "gpus.csv"
    gpus.write_text("share,gpu\n60,H100\n40,A100\n")
    advice = []
    for subject in (sample.fat, sample.out):
        assert main(["advise", str(subject), "--gpus", str(gpus), "--json"]) == 0
        advice.append(json.loads(capsys.readouterr().out))
    fat, packs = advice
    assert set(packs["targets"]) == set(fat["targets"])
    assert [one["before"] for one in packs["gpus"]] == [one["before"] for one in fat["gpus"]]
    assert [one["gaps"] for one in packs["gpus"]] == [one["gaps"] for one in fat["gpus"]]
    assert (bool(fat["slim"]), packs["slim"]) == (True, [])


def test_slim_refuses_a_pack(pack: Path, tmp_path: Path) -> None:
    done = run_archsplit("slim", str(pack), "--device", "9.0", "--out", str(tmp_path))
    assert done.returncode == UsageError.exit_code
    assert "is a device pack" in done.stderr


def test_kernels_of_packs_are_those_of_the_fat_wheel(
    tmp_path: Path, small_toolkit: Toolkit, effects: Effects, capsys: pytest.CaptureFixture[str]
) -> None:
    fat = fat_wheel(tmp_path / "fat", compiled(tmp_path, small_toolkit), VERSION)
    out = split(fat, tmp_path / "out", effects)
    whole, cc80, cc90 = (
        sorted(
            (row["target"], row["name"], row["count"], row["code_bytes"])
            for file in inspected(capsys, subject, "--kernels")["files"]
            for row in file.get("kernels", ())
        )
        for subject in (fat, *(next(out.glob(f"toyfat_{each}-*")) for each in ("cc80", "cc90")))
    )
    assert {row[0] for row in whole} == {"sm_80", "sm_90"}
    assert {(target, name) for target, name, *_ in cc80 + cc90} == {
        (target, name) for target, name, *_ in whole
    }
    # Packs have the input of the device link too, and don't say which containers that is.
    plain = [row for row in whole if row[0] == "sm_90" and "whole" in row[1]]
    assert [row for row in cc90 if "whole" in row[1]] == plain != []
    assert main(["inspect", str(out), "--require", "sm_90"]) == 0


def test_diff_finds_the_same_kernels_in_recompressed_images(
    tmp_path: Path,
    small_toolkit: Toolkit,
    effects: Effects,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Small images keep the vendor's form, where deflate does as well.
    monkeypatch.setattr(stored_images, "_better_deflated", lambda *_: ())
    fat = fat_wheel(tmp_path / "fat", compiled(tmp_path, small_toolkit), VERSION)
    vendor, frames = (
        split(fat, tmp_path / str(level), effects, recompress=level) for level in (None, 9)
    )
    packs = [next(out.glob("toyfat_cc90-*")) for out in (vendor, frames)]
    stored, changed = (inspected(capsys, one)["totals"] for one in packs)
    assert {row["compression"] for row in stored} == {"none"}
    assert "zstd" in {row["compression"] for row in changed}
    found = []
    for old, new in (packs, (vendor, frames), (fat, frames)):
        assert main(["diff", str(old), str(new), "--json"]) == 0
        growth = json.loads(capsys.readouterr().out)
        assert "sm_90" in {row["target"] for row in growth["targets"]}
        found.append({row["name"] for row in growth["kernels"]})
    # As above, packs have the input of the device link too.
    assert found == [set(), set(), {"_Z13linked_kernelPii"}]


TWIN = """
template <int N> __global__ void twin(float *x) { x[threadIdx.x] *= N; }
template __global__ void twin<3>(float *);
"""


def test_containers_with_the_same_images_are_estimated_once(
    toolkit: Toolkit, tmp_path: Path, effects: Effects, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = [tmp_path / f"{name}.cu" for name in ("one", "two")]
    for source in sources:
        source.write_text(TWIN)
    options = ("-shared", "-Xcompiler=-fPIC", f"-L{toolkit.library_folder}", "-arch=sm_90")

    def linked(name: str, *sources: Path) -> Path:
        command = [toolkit.nvcc, *options, *sources, "-o", tmp_path / name]
        subprocess.run(list(map(str, command)), check=True, capture_output=True)
        return tmp_path / name

    def sizes(subject: Path) -> tuple[int, int]:
        (device,) = inspected(capsys, subject, "--device", "9.0")["devices"]
        return device["sizes"]["used"], device["sizes"]["pack"]

    once, twice = linked("libonce.so", sources[0]), linked("libtwice.so", *sources)
    # And in libraries of one wheel.
    members: dict[str, Path | bytes] = {"toyfat/__init__.py": b"", "toyfat/liba.so": once}
    one = fat_wheel(tmp_path / "fat", members, "1")
    two = fat_wheel(tmp_path / "fat", {**members, "toyfat/libb.so": twice}, "2")
    for few, many in ((once, twice), (one, two)):
        (used, pack), (used_by_all, pack_of_all) = sizes(few), sizes(many)
        assert used_by_all > 1.5 * used
        # A sample of these images estimates both.
        assert pack_of_all == pytest.approx(pack, rel=0.1)
    out = split(two, tmp_path / "out", effects)
    (row,) = inspected(capsys, next(out.glob("*cc90*")))["totals"]
    assert row["count"] == 2, "the kernel's, and an empty one of nvcc"


def test_estimate_counts_the_bytes_of_the_pack(
    tmp_path: Path, effects: Effects, capsys: pytest.CaptureFixture[str]
) -> None:
    one = image("sm_90", 0x10000)
    # The second one differs in its last byte.
    others = tuple((container(each), 1) for each in (one, one[:-1] + b"!", one))
    single = library(tmp_path, "liba", 0, others=others)
    fat = fat_wheel(tmp_path / "fat", {"toyfat/__init__.py": b"", "toyfat/liba.so": single})
    (device,) = inspected(capsys, single, "--device", "9.0")["devices"]
    sizes = device["sizes"]
    out = split(fat, tmp_path / "out", effects, recompress=None)
    rows = inspected(capsys, next(out.glob("*cc90*")))["totals"]
    stored = sum(row["file_bytes"] for row in rows)
    assert sizes["used"] - stored == len(one)
    # zstd can't make random images smaller, but the estimate takes their headers for images.
    assert sizes["pack"] == pytest.approx(stored, rel=0.003)
    # A download is deflated, and the libraries of a wheel may have copies of each other's images.
    (device,) = inspected(capsys, fat, "--device", "9.0")["devices"]
    assert device["sizes"]["pack"] == pytest.approx(sizes["pack"], rel=0.01)
