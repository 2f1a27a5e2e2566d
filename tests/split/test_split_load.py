"""Split libraries in a process: which images they find, and what is said where they find none."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from split_samples import LOAD, Sample, digest, loaded, python, split

from target_lists import parse_targets

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.release.context import Effects

EMPTY = "50ed55ba01001000" + 16 * "0"


@pytest.fixture(scope="module")
def everything(sample: Sample, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sample.site(tmp_path_factory.mktemp("site"), "cc80", "cc86", "cc90", "ptx")


def expected(seed: int, *targets: tuple[str, ...]) -> list[str]:
    return [digest(seed, index, *each) for index, each in enumerate(targets)]


ONE_GPU = {
    "8.0": (("sm_80",), ("sm_80",), ("sm_80",)),
    "8.6": (("sm_80",), ("sm_86",), ("sm_80",)),
    "9.0": (("sm_90",), ("compute_80",), ("sm_90a",)),
    "12.0": (("compute_90",), ("compute_80",), ("compute_90",)),
}


@pytest.mark.parametrize("gpu", ONE_GPU)
def test_each_gpu_finds_its_images_of_the_fat_library(
    sample: Sample, everything: Path, gpu: str
) -> None:
    report = loaded(everything, sample.folder, gpu)
    assert report.talk == ""
    assert report.libraries["liba.so"] == expected(0, *ONE_GPU[gpu])


@pytest.mark.parametrize("order", [("liba", "libb"), ("libb", "liba")])
def test_libraries_are_served_in_any_order(
    sample: Sample, everything: Path, order: tuple[str, str]
) -> None:
    report = loaded(everything, sample.folder, "9.0", *order)
    assert report.libraries["liba.so"] == expected(0, *ONE_GPU["9.0"])
    assert report.libraries["libb.so"] == expected(1, *ONE_GPU["9.0"])
    assert report.mapped == ["cc90"]


def test_different_gpus_are_served_together(sample: Sample, everything: Path) -> None:
    report = loaded(everything, sample.folder, "8.0;9.0")
    both = (("sm_80", "sm_90"), ("sm_80", "compute_80"), ("sm_80", "sm_90a"))
    assert report.libraries["liba.so"] == expected(0, *both)
    assert report.mapped == ["cc80", "cc90"]


def test_hidden_gpus_are_served_too(sample: Sample, everything: Path) -> None:
    """A program may show them later, or its child."""
    plain = loaded(everything, sample.folder, "8.0;9.0")
    report = loaded(everything, sample.folder, "8.0;9.0", CUDA_VISIBLE_DEVICES="0")
    assert (report.libraries, report.mapped) == (plain.libraries, ["cc80", "cc90"])
    hidden = loaded(everything, sample.folder, "9.0", CUDA_VISIBLE_DEVICES="")
    assert hidden.libraries["liba.so"] == expected(0, *ONE_GPU["9.0"])
    assert hidden.talk == ""


def test_without_a_gpu_containers_stay_empty_and_nothing_is_said(
    sample: Sample, everything: Path
) -> None:
    report = loaded(everything, sample.folder, None)
    assert set(report.libraries["liba.so"]) == {digest(0, 0)}
    assert (report.mapped, report.talk) == ([], "")


def test_gpus_unknown_to_nvml_get_everything(sample: Sample, everything: Path) -> None:
    report = loaded(everything, sample.folder, "9.0", STAND_IN_FAIL="nvmlInit_v2=999")
    all_there = (
        ("sm_80", "sm_90", "compute_90"),
        ("sm_80", "sm_86", "compute_80"),
        ("sm_90a", "compute_90", "sm_80"),
    )
    assert report.libraries["liba.so"] == expected(0, *all_there)


def test_core_without_packs_warns_only_if_a_gpu_is_visible(sample: Sample, tmp_path: Path) -> None:
    site = sample.site(tmp_path)
    report = loaded(site, sample.folder, "9.0")
    assert set(report.libraries["libb.so"]) == {digest(0, 0)}
    assert "device 0, Stand-in GPU 0 (capability 9.0), finds no code in 6 of 6" in report.talk
    assert report.talk.count("hint: python -m toyfat.doctor") == 1
    assert loaded(site, sample.folder, "").talk == ""


def test_pack_for_other_gpus_is_reported_on_load(sample: Sample, tmp_path: Path) -> None:
    site = sample.site(tmp_path, "cc80")
    report = loaded(site, sample.folder, "9.0")
    assert "device 0, Stand-in GPU 0 (capability 9.0), finds no code in 6 of 6" in report.talk
    assert "hint: python -m toyfat.doctor" in report.talk
    assert report.talk.count("hint:") == 1
    strict = python(
        sample.folder, "9.0", "-c", "import ctypes, sys; ctypes.CDLL(sys.argv[1]); print('on')",
        str(site / "toyfat/lib/liba.so"), ARCHSPLIT_STRICT="1",
    )  # fmt: skip
    assert (strict.returncode, strict.stdout) == (1, "")


def test_pack_of_another_build_is_refused_before_it_is_mapped(
    sample: Sample, tmp_path: Path, effects: Effects
) -> None:
    site = sample.site(tmp_path / "site", "cc90")
    out = split(sample.fat, tmp_path / "out", effects, targets=parse_targets("sm_90"))
    other = Sample(folder=tmp_path, fat=sample.fat, out=out).site(tmp_path / "other", "cc90")
    pack = "toyfat_plugins/cuda/cc90/device.pack"
    shutil.copy(other / pack, site / pack)
    report = loaded(site, sample.folder, "9.0")
    assert "has the build id" in report.talk
    assert report.mapped == []


def test_two_cores_in_one_process_are_served_each_by_its_own(
    sample: Sample, tmp_path: Path, effects: Effects
) -> None:
    out = split(sample.fat, tmp_path / "out", effects, targets=parse_targets("sm_90"))
    other = Sample(folder=tmp_path, fat=sample.fat, out=out).site(tmp_path / "other", "cc90")
    site = sample.site(tmp_path / "site", "cc90")
    code = LOAD.replace("os.path.basename(path)", "path")
    paths = [str(each / "toyfat/lib/liba.so") for each in (site, other)]
    done = python(sample.folder, "9.0", "-c", code, *paths)
    assert (done.returncode, done.stderr) == (0, "")
    found, _ = json.loads(done.stdout)
    assert found == dict.fromkeys(paths, expected(0, *ONE_GPU["9.0"]))


@pytest.mark.parametrize("at", [0, 9, 30, 79, 100, 500])
def test_damaged_pack_is_refused(sample: Sample, tmp_path: Path, at: int) -> None:
    site = sample.site(tmp_path, "cc90")
    pack = site / "toyfat_plugins/cuda/cc90/device.pack"
    content = bytearray(pack.read_bytes())
    content[at] ^= 0x40
    pack.write_bytes(content)
    report = loaded(site, sample.folder, "9.0")
    assert f"{pack} is " in report.talk
    assert report.mapped == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root refuses what is its user's own")
def test_pack_writable_by_others_is_refused_by_root(sample: Sample, tmp_path: Path) -> None:
    site = sample.site(tmp_path, "cc90")
    folder = site / "toyfat_plugins/cuda/cc90"
    folder.chmod(0o777)
    report = loaded(site, sample.folder, "9.0")
    assert "users other than its owner can change its folder" in report.talk
    assert report.mapped == []


def doctor(site: Path, sample: Sample, gpus: str | None, *words: str) -> dict[str, Any]:
    done = python(sample.folder, gpus, str(site / "toyfat/_archsplit"), "--json", *words)
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (0 if found["healthy"] else 1)
    return found


def test_doctor_names_the_command_even_when_the_import_fails(
    sample: Sample, tmp_path: Path
) -> None:
    site = sample.site(tmp_path, "cc80")
    (site / "toyfat/__init__.py").write_text("raise ImportError\n")
    found = doctor(site, sample, "9.0")
    (device,) = found["devices"]
    assert device["served"]["command"] == 'pip install "toyfat[cc90]==1.0"'
    assert device["served"]["containers"]["missing"] == 6
    mixed = doctor(sample.site(tmp_path / "two", "cc80", "cc90"), sample, "8.0;9.0")
    assert mixed["healthy"]


def test_doctor_full_finds_a_changed_image(sample: Sample, tmp_path: Path) -> None:
    site = sample.site(tmp_path, "cc90")
    assert doctor(site, sample, "9.0", "--full")["candidates"][0]["verdict"] == "accepted"
    pack = site / "toyfat_plugins/cuda/cc90/device.pack"
    content = bytearray(pack.read_bytes())
    content[-1] ^= 1
    pack.write_bytes(content)
    assert doctor(site, sample, "9.0")["healthy"]
    assert doctor(site, sample, "9.0", "--full")["candidates"][0]["verdict"] == "damaged"


def test_require_raises_for_an_unserved_gpu(sample: Sample, tmp_path: Path) -> None:
    site = sample.site(tmp_path, "cc80")
    code = "from toyfat._archsplit import require; require(verify='full'); print('fine')"
    for gpu, said in (("8.0", "fine"), (None, "fine"), ("9.0", "toyfat[cc90]==1.0")):
        done = python(sample.folder, gpu, "-c", code, PYTHONPATH=str(site))
        assert said in done.stdout + done.stderr
    code = "from toyfat._archsplit import load; load()"
    done = python(sample.folder, "8.0", "-c", code, PYTHONPATH=str(site))
    assert "there is nothing to load" in done.stderr


def test_second_copy_of_a_core_is_reported_by_require(sample: Sample, tmp_path: Path) -> None:
    first, second = (sample.site(tmp_path / name, "cc90") for name in ("first", "second"))
    ask = "from toyfat._archsplit import require; require(); print('fine')"
    load = f"import ctypes; ctypes.CDLL({str(first / 'toyfat/lib/liba.so')!r}); "
    for site, start in ((second, ""), (first, load)):
        done = python(sample.folder, "9.0", "-c", start + ask, PYTHONPATH=str(site))
        assert done.stdout == "fine\n", done.stderr
    done = python(sample.folder, "9.0", "-c", load + ask, PYTHONPATH=str(second))
    said = f"libraries of {second}/toyfat have no device code in this process, because the copy in"
    assert f"{said} {first}/toyfat was loaded before" in done.stderr


def test_doctor_tells_of_a_second_copy_on_the_path(sample: Sample, tmp_path: Path) -> None:
    first, second = (sample.site(tmp_path / name, "cc90") for name in ("first", "second"))
    (tmp_path / "link").symlink_to(first)
    words = ("-m", "toyfat.doctor", "--json")
    for path, count in ((f"{first}:{tmp_path / 'link'}", 0), (f"{first}:{second}", 1)):
        done = python(sample.folder, "9.0", *words, PYTHONPATH=path)
        found = json.loads(done.stdout)
        copies = [
            note for note in found["warnings"] if note.startswith("another copy of this core")
        ]
        assert len(copies) == count
        assert all(f"is in {second}/toyfat:" in note for note in copies)
        assert found["healthy"]
