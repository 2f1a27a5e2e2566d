"""Wheels of a split: names, pins, metadata, and no lost byte."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shutil
import zipfile
from typing import TYPE_CHECKING, Any

import pytest
from split_samples import Sample, compiled, fat_wheel, split
from split_samples import library as made_library

from archsplit.cli import options
from archsplit.cli.main import main
from archsplit.devicecode.partition import PackBy
from archsplit.errors import (
    InputError,
    NothingToDoError,
    OutputError,
    TargetError,
    UsageError,
    VerifyError,
    WheelError,
)
from archsplit.release.checks import CheckScope
from archsplit.release.manifest import MANIFEST_FILE as MANIFEST
from archsplit.release.manifest import read_manifest
from archsplit.release.report import REPORT_FILE
from archsplit.release.sbom import SPLIT
from archsplit.release.summary import split_summary
from archsplit.release.verify import verify_release
from archsplit.split.model import InstallDefaults, SplitRequest
from archsplit.split.restore import join_split
from archsplit.split.split import split_wheel
from archsplit.wheels.reader import open_wheel
from archsplit.wheels.rewrite import WheelRewrite
from archsplit.wheels.zip_writer import pack
from target_lists import parse_targets

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from archsplit.nvcc.toolkit import Toolkit
    from archsplit.release.context import Effects


IMAGES = 19


def metadata(path: Path) -> Any:  # noqa: ANN401 (packaging's Metadata)
    with open_wheel(path) as wheel:
        wheel.check_contents()
        return wheel.metadata()


def members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_wheels_are_named_by_their_gpus(sample: Sample) -> None:
    report = json.loads((sample.out / "archsplit-report.json").read_text())
    plugins = [each["plugin"] for each in report["wheels"] if each["plugin"]]
    served = {plugin["name"]: plugin["serves"] for plugin in plugins}
    assert served["cc80"] == ["8.0"]
    assert served["cc86"] == ["8.6", "8.9"]
    assert served["cc90"] == ["9.0"]
    assert served["rest"] == []
    assert {each.name for each in sample.out.iterdir()} == {
        "archsplit-manifest.json",
        "archsplit-report.json",
        *(each["file"] for each in report["wheels"]),
    }


def test_core_keeps_the_fat_wheels_metadata(sample: Sample) -> None:
    before, after = members(sample.fat), members(sample.wheel())
    entry_points = "toyfat-1.0.dist-info/entry_points.txt"
    gone = {f"toyfat-1.0.dist-info/{name}" for name in ("METADATA", "RECORD", "WHEEL")}
    gone.add(entry_points)
    changed = {name for name in before if before[name] != after[name]}
    assert after[entry_points].startswith(before[entry_points] + b"\n[pyinstaller40]\n")
    assert changed == gone | {"toyfat/lib/liba.so", "toyfat/lib/libb.so"}
    said = metadata(sample.wheel())
    assert said.name == "toyfat"
    assert "more" in said.provides_extra
    requires = sorted(map(str, said.requires_dist))
    assert "packaging>=20" in requires
    assert 'toyfat-cc86==1.0; extra == "cc89"' in requires
    assert 'toyfat-ptx==1.0; extra == "all"' in requires
    assert not any("toyfat-rest" in each for each in requires)


def test_packs_are_for_every_python(tmp_path: Path, effects: Effects) -> None:
    # One release has a wheel for each Python; what the packs hold is the same for all of them.
    fat_library = made_library(tmp_path, "liba", 0)
    members: dict[str, Path | bytes] = {"toyfat/__init__.py": b"", "toyfat/liba.so": fat_library}
    fat = fat_wheel(tmp_path / "fat", members, tags="2b-cp311-abi3.cp311-linux_x86_64")
    out = split(fat, tmp_path / "out", effects, install=InstallDefaults.META)
    for each in json.loads((out / REPORT_FILE).read_text())["wheels"]:
        same = {
            "core": "cp311-abi3.cp311-linux_x86_64",
            "plugin": "py3-none-linux_x86_64",
            "meta": "py3-none-any",
        }[each["role"]]
        distribution = each["distribution"].replace("-", "_")
        assert each["file"] == f"{distribution}-1.0-2b.split-{same}.whl"
        with open_wheel(out / each["file"]) as wheel:
            assert wheel.info.build == "2b.split"


def test_a_core_has_a_build_tag_unless_it_is_published_in_the_fat_wheels_place(
    sample: Sample, tmp_path: Path, effects: Effects
) -> None:
    assert sample.wheel().name == "toyfat-1.0-0split-py3-none-linux_x86_64.whl"
    with open_wheel(sample.wheel()) as wheel:
        assert wheel.info.build == "0split"
    release = split(sample.fat, tmp_path / "release", effects, release=True)
    assert (release / sample.fat.name).exists()
    with pytest.raises(OutputError, match="already has a different split"):
        split(sample.fat, tmp_path / "release", effects)


def test_wheel_with_two_roots_is_split_as_pip_installs_it(
    sample: Sample, tmp_path: Path, effects: Effects
) -> None:
    fat, place = tmp_path / sample.fat.name, "toyfat-1.0.dist-info/WHEEL"
    root = b"Root-Is-Purelib: false\n"
    with open_wheel(sample.fat) as wheel, fat.open("wb") as file:
        text = wheel.read(place).replace(root, root + b"Root-Is-Purelib: true\n")
        changed = {place: pack(text)}
        WheelRewrite(wheel=wheel, name=wheel.name, changed=changed, added={}).write(file)
    report = split_wheel(SplitRequest(source=fat, out=tmp_path / "out"), effects)
    said = "WHEEL has 2 lines Root-Is-Purelib; the first one counts, as for pip: false"
    assert said in split_summary(report)
    core = members(next((tmp_path / "out").glob("toyfat-1.0-*.whl")))
    assert core[place].count(b"Root-Is-Purelib") == 1


@pytest.mark.parametrize("verb", [("slim", "--keep", "sm_80"), ("split",)])
@pytest.mark.parametrize("record", [b"\xff", None])
def test_damaged_record_gets_a_useful_hint(
    verb: tuple[str, ...],
    record: bytes | None,
    sample: Sample,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fat = tmp_path / sample.fat.name
    with zipfile.ZipFile(sample.fat) as old, zipfile.ZipFile(fat, "w") as new:
        for name in old.namelist():
            content = record if name.endswith("/RECORD") else old.read(name)
            if content is not None:
                new.writestr(name, content, zipfile.ZIP_DEFLATED)
    words = [*verb, str(fat), "--out", str(tmp_path / "out")]
    assert main(words) == WheelError.exit_code
    is_hinted = "--ignore-record" in capsys.readouterr().err
    assert is_hinted == (record is not None)
    assert (main([*words, "--ignore-record"]) == 0) == is_hinted
    assert is_hinted or "hint: download it again" in capsys.readouterr().err
    for wheel in (tmp_path / "out").glob("*.whl"):
        with open_wheel(wheel) as written:
            written.check_contents()


def test_wrong_record_is_named_and_with_an_option_replaced(
    sample: Sample, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fat, place = tmp_path / sample.fat.name, "toyfat-1.0.dist-info/RECORD"
    with zipfile.ZipFile(sample.fat) as old, zipfile.ZipFile(fat, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name == place:
                (row,) = re.findall(rb"toyfat-1.0.dist-info/WHEEL,.*\n", content)
                content = content.replace(row, row.rpartition(b",")[0] + b",92\n")
            new.writestr(name, content, zipfile.ZIP_DEFLATED)
    words = ["split", str(fat), "--out", str(tmp_path / "out")]
    assert main(words) == WheelError.exit_code
    fault = (
        r"WHEEL: \d+ bytes, and 92 bytes in RECORD \(row \d+\)\nhint: .*--ignore-record accepts it"
    )
    assert re.search(fault, capsys.readouterr().err)
    assert main(["slim", *words[1:], "--keep", "sm_80"]) == WheelError.exit_code
    assert re.search(fault, capsys.readouterr().err)
    assert not (tmp_path / "out").exists()
    assert main([*words, "--ignore-record"]) == 0
    assert re.search(r"RECORD is wrong: .*WHEEL: \d+ bytes, and 92", capsys.readouterr().out)
    for wheel in (tmp_path / "out").glob("*.whl"):
        with open_wheel(wheel) as written:
            written.check_contents()


def test_pack_requires_exactly_its_core(sample: Sample) -> None:
    said = metadata(sample.wheel("cc90"))
    assert list(map(str, said.requires_dist)) == ["toyfat==1.0"]
    assert (said.license_expression, said.license_files) == ("Apache-2.0", ["LICENSE"])
    assert str(said.requires_python) == ">=3.10"
    assert "toyfat_cc90-1.0.dist-info/licenses/LICENSE" in members(sample.wheel("cc90"))


def test_same_wheel_gives_the_same_bytes(sample: Sample, tmp_path: Path, effects: Effects) -> None:
    again = split(sample.fat, tmp_path / "again", effects)
    for path in sorted(sample.out.iterdir()):
        assert (again / path.name).read_bytes() == path.read_bytes(), path.name


def test_join_gives_the_fat_libraries_back(sample: Sample, tmp_path: Path) -> None:
    before = members(sample.fat)
    for library in join_split(sample.out, tmp_path):
        assert library.path.read_bytes() == before[library.name]
        assert library.sha256 == hashlib.sha256(before[library.name]).hexdigest()


def copied(sample: Sample, folder: Path) -> Path:
    shutil.copytree(sample.out, folder)
    return folder


def test_join_into_the_folder_of_the_wheels_is_refused(sample: Sample, tmp_path: Path) -> None:
    before = sorted(sample.out.rglob("*"))
    link = tmp_path / "link"
    link.symlink_to(sample.out)
    for out in (sample.out, link):
        with pytest.raises(OutputError, match=r"has the wheels of the split.*\n.*--out"):
            join_split(sample.out, out)
    assert sorted(sample.out.rglob("*")) == before


def test_join_names_missing_packs(sample: Sample, tmp_path: Path) -> None:
    out = copied(sample, tmp_path / "out")
    next(out.glob("toyfat_rest-*")).unlink()
    with pytest.raises(InputError, match="images in no pack here: ") as caught:
        join_split(out, tmp_path / "joined")
    assert "without --targets in a folder; an index has no `rest`" in (caught.value.hint or "")


def rewrite(path: Path, change: Callable[[bytes], bytes]) -> None:
    """Change the pack in a wheel, and RECORD with it, as no accident would."""
    from archsplit.wheels.filename import WheelName  # noqa: PLC0415 (the same)
    from archsplit.wheels.rewrite import write_members  # noqa: PLC0415 (only one function's)
    from archsplit.wheels.zip_writer import pack  # noqa: PLC0415 (the same)

    content = {name: text for name, text in members(path).items() if "RECORD" not in name}
    changed = {
        name: pack(change(text) if name.endswith(".pack") else text)
        for name, text in content.items()
    }
    with path.open("wb") as file:
        write_members(file, WheelName.parse(path.name), changed)


def last_bit(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


def test_verify_finds_a_changed_image(sample: Sample, tmp_path: Path) -> None:
    out = copied(sample, tmp_path / "out")
    assert verify_release(out, scope=CheckScope(complete=True)).images == IMAGES
    rewrite(next(out.glob("toyfat_cc90-*")), last_bit)
    with pytest.raises(VerifyError, match="differs from the one in the fat wheel"):
        verify_release(out)


def test_verify_finds_a_missing_pack_and_one_of_another_build(
    sample: Sample, tmp_path: Path, effects: Effects
) -> None:
    out = copied(sample, tmp_path / "out")
    pack = next(out.glob("toyfat_cc90-*"))
    pack.unlink()
    with pytest.raises(VerifyError, match="toyfat-cc90: no wheel, but the core names it for 9"):
        verify_release(out)
    assert main(["verify", str(out), "--targets", "sm_80,sm_86"]) == 0
    other = split(sample.fat, tmp_path / "other", effects, targets=parse_targets("sm_90"))
    shutil.copy(other / pack.name, pack)
    with pytest.raises(VerifyError, match="its descriptor says build id"):
        verify_release(out)


def test_verify_names_every_damaged_wheel_at_once(sample: Sample, tmp_path: Path) -> None:
    out = copied(sample, tmp_path / "out")
    cut, flipped, foreign = (
        next(out.glob(f"toyfat_{each}-*")) for each in ("cc80", "cc90", "rest")
    )
    cut.write_bytes(cut.read_bytes()[:-100])
    rewrite(flipped, lambda pack: b"?" + pack[1:])
    foreign.write_bytes(fat_wheel(tmp_path, {"toyfat.py": b""}).read_bytes())
    with pytest.raises(VerifyError) as caught:
        verify_release(out)
    assert [finding.subject for finding in caught.value.findings] == sorted(
        path.name for path in (cut, flipped, foreign)
    )
    with pytest.raises(VerifyError, match=cut.name):
        join_split(out, tmp_path / "joined")


def test_join_of_an_image_with_other_bytes_is_refused(sample: Sample, tmp_path: Path) -> None:
    out = copied(sample, tmp_path / "out")
    # The last byte of an image: neither the index nor a header is damaged, and RECORD fits.
    rewrite(next(out.glob("toyfat_cc90-*")), lambda pack: pack[:-1] + bytes([pack[-1] ^ 1]))
    with pytest.raises(VerifyError, match="is not the one that was split"):
        join_split(out, tmp_path / "joined")


@pytest.mark.parametrize(
    "file",
    [
        "toyfat-1.0-py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
        "ToyFat-1.0-py3-none-linux_x86_64.whl",
    ],
)
def test_core_of_a_release_has_the_fat_wheel_s_file_name(
    sample: Sample, tmp_path: Path, effects: Effects, file: str
) -> None:
    fat = tmp_path / file
    shutil.copy(sample.fat, fat)
    out = split(fat, tmp_path / "out", effects, release=True)
    assert (out / file).exists()
    assert json.loads((out / REPORT_FILE).read_text())["split"]["sources"][0]["core"] == file
    verify_release(out)


def test_packs_by_target_come_together_by_extras(
    sample: Sample, tmp_path: Path, effects: Effects
) -> None:
    out = split(sample.fat, tmp_path, effects, by=PackBy.TARGET, install=InstallDefaults.ALL)
    said = sorted(map(str, metadata(next(out.glob("toyfat-1*"))).requires_dist))
    of_hopper = [each for each in said if each.endswith('extra == "cc90"')]
    assert [each.partition("=")[0] for each in of_hopper] == [
        "toyfat-compute80",
        "toyfat-sm90",
        "toyfat-sm90a",
    ]
    assert "toyfat-sm86==1.0" in said
    assert verify_release(out, scope=CheckScope(complete=True)).covered == IMAGES
    join_split(out, tmp_path / "joined")


def test_dropped_extra_keeps_the_earlier_release_installed(
    sample: Sample, tmp_path: Path, effects: Effects
) -> None:
    newer = split(sample.fat, tmp_path / "1.1", effects, version="1.1", dropped=("cc50",))
    core = metadata(next(newer.glob("toyfat-1.1-*")))
    assert "cc50" in (core.provides_extra or [])
    assert 'toyfat-cc50==1.1; extra == "cc50"' in map(str, core.requires_dist or [])
    verify_release(newer)
    with pytest.raises(UsageError, match="cc90 can't be dropped: this split has packs for it"):
        split(sample.fat, tmp_path / "again", effects, dropped=("cc50", "cc90"))


def test_core_can_have_a_name_of_its_own(sample: Sample, tmp_path: Path, effects: Effects) -> None:
    out = split(sample.fat, tmp_path, effects, name="Toy.Core", targets=parse_targets("sm_80"))
    core = next(out.glob("toy_core-1*"))
    assert metadata(core).name == "toy-core"
    assert "toy_core-1.0.dist-info/entry_points.txt" in members(core)
    assert [each.name for each in sorted(out.glob("toy_core_*"))] == [
        "toy_core_cc80-1.0-py3-none-linux_x86_64.whl"
    ]
    release = verify_release(out)
    assert release.covered < release.images
    assert set(release.needs) == {"8.0"}


def test_targets_without_images_are_named(
    sample: Sample, tmp_path: Path, effects: Effects, capsys: pytest.CaptureFixture[str]
) -> None:
    # A promise of a GPU that has no pack would be kept by an error at its first kernel.
    targets = parse_targets("sm_60,sm_90,compute_75,sm_75")
    for by, also in ((PackBy.CAPABILITY, ""), (PackBy.TARGET, ", compute_75")):
        message = f"^{sample.fat.name}: nothing in it is for sm_60, sm_75{also}; it has sm_"
        with pytest.raises(TargetError, match=message):
            split(sample.fat, tmp_path / "out", effects, targets=targets, by=by)
    assert main(["verify", str(sample.out), "--targets", "sm_90,sm_60"]) == VerifyError.exit_code
    assert "6.0: the core names no plugin for it" in capsys.readouterr().err


def test_commands_verify_join_and_doctor_a_split(
    sample: Sample, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(sample.out)]) == 0
    assert f"images in at least one pack: {IMAGES} of {IMAGES}" in capsys.readouterr().out
    assert main(["verify", "--json", str(sample.out)]) == 0
    assert json.loads(capsys.readouterr().out)["covered"] == IMAGES
    assert main(["join", str(sample.out), "--out", str(tmp_path / "joined")]) == 0
    assert "toyfat/lib/liba.so" in capsys.readouterr().out
    assert main(["join", str(sample.out), "--out", str(tmp_path / "joined"), "--json"]) == 0
    files = json.loads(capsys.readouterr().out)["libraries"]
    assert [one["name"] for one in files] == ["toyfat/lib/liba.so", "toyfat/lib/libb.so"]
    assert sorted(path.name for path in (tmp_path / "joined").iterdir()) == ["toyfat"]
    site = sample.site(tmp_path / "site", "cc90")
    assert main(["doctor", str(site / "toyfat")]) in {0, 1}
    assert "core: toyfat 1.0" in capsys.readouterr().out
    assert main(["doctor", "json"]) == InputError.exit_code
    assert main(["doctor", "no_such_package"]) == InputError.exit_code


def test_split_command_writes_packs_and_reports_them(
    sample: Sample,
    tmp_path: Path,
    effects: Effects,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(options, "effects", lambda *_, **__: contextlib.nullcontext(effects))
    words = ["--out", str(tmp_path), "--targets", "sm_90", "--install", "all"]
    assert main(["split", str(sample.fat), *words]) == 0
    assert "toyfat_cc90-1.0-0split-py3-none-linux_x86_64.whl\n" in capsys.readouterr().out
    assert main(["split", "--json", str(sample.fat), *words]) == 0
    assert json.loads(capsys.readouterr().out)["split"]["needs"] == {"9.0": ["cc90"]}


def test_single_library_gets_its_own_package(
    tmp_path: Path, effects: Effects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "effects", lambda *_, **__: contextlib.nullcontext(effects))
    library = made_library(tmp_path, "libsolo", 0)
    words = ["--name", "solo", "--version", "2.1", "--out", str(tmp_path / "out")]
    assert main(["split", str(library), *words]) == 0
    assert "solo/lib/libsolo.so" in members(next((tmp_path / "out").glob("solo-2.1-*")))
    (joined,) = join_split(tmp_path / "out", tmp_path / "joined")
    assert joined.path.read_bytes() == library.read_bytes()
    given = (library.name, hashlib.sha256(library.read_bytes()).hexdigest())
    report = json.loads((tmp_path / "out" / REPORT_FILE).read_text())
    (fat,) = report["split"]["sources"]
    assert (fat["file"], fat["sha256"]) == given
    (source,) = read_manifest(tmp_path / "out" / MANIFEST).sources
    assert (source.path, source.sha256) == given
    for wheel in (tmp_path / "out").glob("*.whl"):
        bill = next(text for name, text in members(wheel).items() if name.endswith(SPLIT))
        (ancestor,) = json.loads(bill)["metadata"]["component"]["pedigree"]["ancestors"]
        assert (ancestor["name"], ancestor["hashes"][0]["content"]) == given
        assert "purl" not in ancestor
    assert main(["split", str(library), "--out", str(tmp_path / "out")]) == UsageError.exit_code


def test_core_of_a_wheel_has_the_named_version(sample: Sample, tmp_path: Path) -> None:
    words = ["--version", "2.1", "--out", str(tmp_path / "out")]
    assert main(["split", str(sample.fat), *words]) == 0
    assert {path.name.split("-")[1] for path in (tmp_path / "out").glob("*.whl")} == {"2.1"}


def test_wheel_without_device_code_is_refused(tmp_path: Path, effects: Effects) -> None:
    fat = fat_wheel(tmp_path / "fat", {"toyfat/__init__.py": b""})
    with pytest.raises(NothingToDoError, match="can be moved\n  it has no device code"):
        split(fat, tmp_path / "out", effects)
    assert not (tmp_path / "out").exists()
    words = ["split", str(fat), "--out", str(tmp_path / "out")]
    assert main(words) == NothingToDoError.exit_code
    assert main([*words, "--copy"]) == 0
    assert [path.name for path in (tmp_path / "out").iterdir()] == [fat.name]


@pytest.mark.nvcc
def test_join_restores_libraries_of_nvcc_byte_for_byte(
    tmp_path: Path, effects: Effects, small_toolkit: Toolkit
) -> None:
    fat = fat_wheel(tmp_path / "fat", compiled(tmp_path, small_toolkit))
    out = split(fat, tmp_path / "out", effects)
    before = members(fat)
    for library in join_split(out, tmp_path / "joined"):
        assert library.path.read_bytes() == before[library.name]
