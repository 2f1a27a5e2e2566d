"""``verify --release``: each way in which a release can be less than whole, on a damaged one."""

from __future__ import annotations

import json
import re
import shutil
import sys
import zipfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from release_samples import TINYVEC

from archsplit.build.pipeline import build_recipe
from archsplit.build.plan import BuildRequest
from archsplit.cli.main import main
from archsplit.errors import DiskFullError, InputError, ToolNotFoundError, VerifyError
from archsplit.index.preflight import check_descriptions_with_twine
from archsplit.recipe.load import load_recipe
from archsplit.release import completeness
from archsplit.release.completeness import CheckOptions, CheckResult, kernel_faults
from archsplit.release.manifest import MANIFEST_FILE as MANIFEST
from archsplit.release.report import REPORT_FILE as REPORT
from archsplit.release.report import Release
from archsplit.release.verify import verify_release
from archsplit.split.model import SplitRequest
from archsplit.split.restore import join_split
from archsplit.split.split import split_wheel
from archsplit.system.fs import sha256
from archsplit.wheels.filename import WheelName
from archsplit.wheels.rewrite import write_members
from archsplit.wheels.zip_writer import pack
from changed_wheels import in_metadata, only, rewrite
from full_disk import needs_mounts, run_on_full_disk

if TYPE_CHECKING:
    from archsplit.release.context import Effects

pytestmark = pytest.mark.nvcc

STAY = CheckOptions(install=False)
GAP = "allow it with --allow-missing-kernels"
FIRST_ONLY = CheckOptions(install=False, allowed=("second",))


def check_release(folder: Path, effects: Effects, options: CheckOptions) -> CheckResult:
    describe = partial(check_descriptions_with_twine, effects=effects)
    return completeness.check_release(folder, effects, options, describe=describe)


def complaint(folder: Path, effects: Effects, options: CheckOptions = STAY) -> str:
    with pytest.raises(VerifyError) as caught:
        check_release(folder, effects, options)
    assert str(caught.value).startswith(f"{folder} can't be published:")
    return "\n".join(map(str, caught.value.findings))


def unlisted(folder: Path) -> Path:
    """The same wheels, without the lists that would tell every change."""
    (folder / MANIFEST).unlink()
    (folder / REPORT).unlink()
    return folder


def relist(folder: Path) -> Path:
    """The same folder after a change of wheels, with lists that have the new digests."""
    for file in (MANIFEST, REPORT):
        content = json.loads((folder / file).read_text())
        for row in content["wheels"]:
            path = folder / row["file"]
            row.update(sha256=sha256(path), size=path.stat().st_size)
        (folder / file).write_text(json.dumps(content))
    return folder


@pytest.fixture
def only_uv(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python without pip, whose installations take six times as long."""
    monkeypatch.setattr("archsplit.release.install_test.has_pip", lambda: False)


@pytest.fixture(scope="session")
def gapped(tmp_path_factory: pytest.TempPathFactory, effects: Effects) -> Path:
    """A build of changed sources, in which only sm_80 has one of the kernels."""
    recipe = Path(shutil.copytree(TINYVEC, tmp_path_factory.mktemp("gapped") / "tinyvec"))
    with (recipe / "src" / "scale.cu").open("a") as file:
        file.write("#if __CUDA_ARCH__ == 800\n__global__ void rare(int *at) { *at = 7; }\n#endif\n")
    out = recipe.parent / "out"
    build_recipe(BuildRequest(recipe=load_recipe(recipe)), effects, out=out)
    return out


def test_complete_release_installs_by_pip_and_by_uv(
    built: tuple[Path, Release], effects: Effects
) -> None:
    verdict = check_release(built[0], effects, CheckOptions())
    assert (verdict.project, verdict.version) == ("tinyvec", "1.2.3")
    assert len(verdict.wheels) == 4
    assert verdict.kernels == 2
    assert verdict.installed == ("pip", "uv")
    assert verdict.notes == ()


def test_missing_target_is_found_and_fails_the_installers(dist: Path, effects: Effects) -> None:
    gone = only(dist, "tinyvec_sm90*")
    gone.unlink()
    text = complaint(dist, effects, CheckOptions())
    assert (
        "tinyvec-sm90: no wheel, but the core names it for sm_90; add its wheel with archsplit"
        in text
    )
    assert f"{gone.name}: {MANIFEST} lists it, but it is not here; copy it again" in text
    assert "pip can't install tinyvec[all]==1.2.3 from the folder" in text
    assert "uv can't install tinyvec[all]==1.2.3 from the folder" in text


def test_kernel_missing_from_some_targets_is_found_unless_allowed(
    gapped: Path, effects: Effects
) -> None:
    text = complaint(gapped, effects)
    lacking = [only(gapped, f"tinyvec_{target}*").name for target in ("compute90", "sm90")]
    assert text.startswith(f"{', '.join(lacking)}: no ")
    assert "rare" in text
    assert f"which {only(gapped, 'tinyvec_sm80*').name} has" in text
    assert GAP in text
    assert check_release(gapped, effects, replace(STAY, allowed=("*rare*",))).kernels == 3


def test_wheel_with_another_build_id_is_found(dist: Path, gapped: Path, effects: Effects) -> None:
    shutil.copy(only(gapped, "tinyvec_sm80*"), dist)
    text = complaint(unlisted(dist), effects)
    assert "tinyvec_sm80" in text
    assert "its descriptor says build id" in text


def test_library_with_a_digest_unknown_to_the_core_is_found(dist: Path, effects: Effects) -> None:
    with zipfile.ZipFile(only(dist, "tinyvec-1*")) as archive:
        (core,) = [each for each in archive.namelist() if each.endswith("/core.json")]
        digests = json.loads(archive.read(core))["digests"]
    assert sorted(digests) == ["compute_90", "sm_80", "sm_90"]
    wheel = only(dist, "tinyvec_sm80*")
    # The last bytes of an ELF file are section headers, which no check reads.
    rewrite(wheel, lambda name, text: text + b"\0" if name.endswith(".so") else text)
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [each for each in archive.namelist() if each.endswith(".so")]
    assert f"{wheel.name}: {name} has the SHA-256 " in complaint(unlisted(dist), effects).replace(
        "\n", " "
    )


@pytest.mark.usefixtures("only_uv")
def test_pin_of_another_core_version_is_found(dist: Path, effects: Effects) -> None:
    rewrite(only(dist, "tinyvec_sm80*"), in_metadata(b"tinyvec==1.2.3", b"tinyvec==1.2.4"))
    text = complaint(unlisted(dist), effects, CheckOptions())
    assert "requires tinyvec==1.2.4, expected tinyvec==1.2.3" in text
    assert "uv can't install tinyvec[all]==1.2.3 from the folder" in text


def test_extra_requiring_a_missing_wheel_is_found(dist: Path, effects: Effects) -> None:
    core = only(dist, "tinyvec-1*")
    extra = b'Provides-Extra: sm90\nRequires-Dist: tinyvec-sm91==1.2.3; extra == "sm90"\n'
    rewrite(core, in_metadata(b"Provides-Extra: sm90\n", extra))
    text = complaint(unlisted(dist), effects)
    assert "[sm90] requires tinyvec-sm90==1.2.3, tinyvec-sm91==1.2.3" in text


def test_requirement_missing_on_the_index_is_reported(dist: Path, effects: Effects) -> None:
    need = b"Version: 1.2.3\nRequires-Dist: archsplit-has-no-such-thing>=7\n"
    rewrite(only(dist, "tinyvec-1*"), in_metadata(b"Version: 1.2.3\n", need))
    nowhere = {"PIP_NO_INDEX": "1", "UV_NO_INDEX": "1", "UV_OFFLINE": "1"}
    offline = replace(effects, environment={**effects.environment, **nowhere})
    text = complaint(unlisted(dist), offline, CheckOptions())
    for program in ("pip", "uv"):
        assert f"{program} can't install what the wheels need of others" in text
    assert "archsplit-has-no-such-thing" in text


def test_incomplete_extra_is_found(dist: Path, effects: Effects) -> None:
    extra = b'Requires-Dist: tinyvec-sm90==1.2.3; extra == "all"\n'
    rewrite(only(dist, "tinyvec-1*"), in_metadata(extra, b""))
    assert "[all] requires" in complaint(unlisted(dist), effects)


def test_changed_wheel_is_found_by_manifest_and_report(dist: Path, effects: Effects) -> None:
    path = only(dist, "tinyvec_sm80*")
    rewrite(path, lambda _, content: content)
    text = complaint(dist, effects)
    assert f"{path.name}: is not the file that {MANIFEST} lists" in text
    assert f"{path.name}: is not the file that {REPORT} lists" in text


def test_unlisted_wheel_is_reported(dist: Path, effects: Effects) -> None:
    content = json.loads((dist / MANIFEST).read_text())
    content["wheels"] = [one for one in content["wheels"] if one["role"] == "core"]
    (dist / MANIFEST).write_text(json.dumps(content))
    text = complaint(dist, effects)
    assert f"{only(dist, 'tinyvec_sm80*').name}: {MANIFEST} doesn't list it" in text


WRONG = "0" * 64
EVIL: dict[str, object] = {
    "project": "evil-name",
    "version": "99.0",
    "build_id": WRONG,
    "interface_hash": WRONG,
    "wheels.size": 7,
    "wheels.distribution": "evil-name",
    "wheels.role": "meta",
}


@pytest.mark.parametrize("kind", ["dist", "packs"])
def test_each_wrong_field_of_a_list_is_found(
    kind: str, effects: Effects, request: pytest.FixtureRequest
) -> None:
    folder: Path = request.getfixturevalue(kind)
    for file in (REPORT, MANIFEST):
        text = (folder / file).read_text()
        for field, value in EVIL.items():
            content = json.loads(text)
            at = content
            *parents, last = field.split(".")
            for name in parents:
                at = at[name]
                # The last wheel is a plugin.
                at = at[-1] if isinstance(at, list) else at
            at[last] = value
            (folder / file).write_text(json.dumps(content))
            with pytest.raises(VerifyError) as caught:
                check_release(folder, effects, STAY)
            found = [one for one in caught.value.findings if one.subject == file]
            assert {one.code for one in found} == {"wrong-listing"}
            assert any(last in one.found and one.expected for one in found), field
            if file == REPORT:
                with pytest.raises(VerifyError) as caught:
                    verify_release(folder)
                assert {one.code for one in caught.value.findings} == {"wrong-listing"}
        (folder / file).write_text(text)
    assert check_release(folder, effects, STAY).cells


@needs_mounts
def test_test_installation_on_a_full_disk_is_no_finding(packs: Path, tmp_path: Path) -> None:
    argv = (sys.executable, "-m", "archsplit", "verify", "--release", "{out}")
    # The wheels can be unpacked, and not be installed.
    done = run_on_full_disk(tmp_path, argv, outputs=packs, free=512 << 10)
    assert (done.code, "no space left in" in done.stderr) == (DiskFullError.exit_code, True)


def test_a_matrix_without_wheels_is_found(packs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (packs / REPORT).read_text()
    changed = text.replace('"project": "toy"', '"project": "evil-name"')
    (packs / REPORT).write_text(changed.replace('"version": "2.0"', '"version": "99.0"'))
    assert main(["verify", "--release", "--no-install", str(packs)]) == VerifyError.exit_code
    shown = " ".join(capsys.readouterr().err.split())
    assert f"{REPORT}: project is evil-name, expected toy; copy it again" in shown
    assert f"{REPORT}: version is 99.0, expected 2.0; copy it again" in shown
    assert "no wheel of evil-name-cc" in shown


def test_wheel_missing_from_the_report_is_found(packs: Path, effects: Effects) -> None:
    content = json.loads((packs / REPORT).read_text())
    gone = content["wheels"].pop()
    (packs / REPORT).write_text(json.dumps(content))
    assert f"{gone['file']}: {REPORT} doesn't list it" in complaint(packs, effects)


def test_unreadable_manifest_is_found(dist: Path, effects: Effects) -> None:
    (dist / MANIFEST).write_text('{"schema": 1}')
    assert "is not a release's manifest: origin" in complaint(dist, effects)


@pytest.mark.parametrize("name", [MANIFEST, REPORT])
def test_folder_without_a_list_is_refused(dist: Path, effects: Effects, name: str) -> None:
    (dist / name).unlink()
    text = complaint(dist, effects, STAY)
    assert text.startswith(f"{name}: is not in {dist}; make the release again in an empty folder")


def test_truncated_core_is_found_without_trying_an_installer(dist: Path, effects: Effects) -> None:
    core = only(dist, "tinyvec-1*")
    core.write_bytes(core.read_bytes()[:-100])
    text = complaint(dist, effects, CheckOptions())
    assert f"{core.name}: " in text
    # An installer would only repeat that the wheel is damaged.
    assert "can't install" not in text


def test_all_kinds_of_faults_are_reported_at_once(
    dist: Path, gapped: Path, effects: Effects
) -> None:
    only(dist, "tinyvec_compute90*").unlink()
    shutil.copy(only(gapped, "tinyvec_sm80*"), dist)
    rewrite(only(dist, "tinyvec_sm90*"), in_metadata(b"tinyvec==1.2.3", b"tinyvec"))
    text = complaint(dist, effects, CheckOptions())
    for part in (
        "tinyvec-compute90: no wheel",
        "its descriptor says build id",
        "requires tinyvec, expected tinyvec==1.2.3",
        f"{MANIFEST} lists it, but it is not here",
        "is not the file that",
        GAP,
        "pip can't install",
        "uv can't install",
    ):
        assert part in text


@pytest.mark.usefixtures("only_uv")
def test_unimportable_core_is_reported(dist: Path, effects: Effects) -> None:
    def broken(name: str, content: bytes) -> bytes:
        is_core = name == "tinyvec/__init__.py"
        return b"raise ImportError('nothing works')\n" if is_core else content

    rewrite(only(unlisted(dist), "tinyvec-1*"), broken)
    with pytest.raises(VerifyError) as caught:
        check_release(dist, effects, CheckOptions())
    found = [(one.code, one.subject) for one in caught.value.findings]
    assert found[-2:] == [
        ("import-failed", "tinyvec==1.2.3"),
        ("import-failed", "tinyvec[all]==1.2.3"),
    ]
    assert "ImportError: nothing works" in caught.value.findings[-1].found


@pytest.mark.usefixtures("only_uv")
def test_import_with_the_driver_missing_is_a_note(dist: Path, effects: Effects) -> None:
    text = b"raise ImportError('libcuda.so.1: cannot open shared object file: No such file')\n"

    def driven(name: str, content: bytes) -> bytes:
        return text if name == "tinyvec/__init__.py" else content

    rewrite(only(dist, "tinyvec-1*"), driven)
    verdict = check_release(relist(dist), effects, CheckOptions())
    assert verdict.notes[-1] == (
        "import tinyvec can't be tested here: it needs libcuda of NVIDIA's driver"
    )


@pytest.mark.usefixtures("only_uv")
@pytest.mark.parametrize(
    ("module", "is_note"), [("archsplit_has_no_such_module.sub", True), ("toy.left_out", False)]
)
def test_module_not_required_by_the_fat_wheel_is_a_note(
    packs: Path, effects: Effects, module: str, is_note: bool
) -> None:
    def importing(name: str, content: bytes) -> bytes:
        return f"import {module}\n".encode() if name == "toy/__init__.py" else content

    rewrite(only(packs, "toy-2*"), importing)
    relist(packs)
    if not is_note:
        assert "import toy fails" in complaint(packs, effects, CheckOptions())
        return
    assert check_release(packs, effects, CheckOptions()).notes[-1] == (
        "import toy can't be tested here: it needs archsplit_has_no_such_module, which the fat"
        " wheel doesn't require either"
    )


@pytest.mark.usefixtures("only_uv")
def test_packages_with_other_names_than_the_project_are_imported(
    fat: Path, effects: Effects, tmp_path: Path
) -> None:
    with zipfile.ZipFile(fat) as archive:
        old = {name: archive.read(name) for name in archive.namelist() if "RECORD" not in name}
    members = {re.sub("^toy/", "other/", name): pack(content) for name, content in old.items()}
    members["other/__init__.py"] = pack(b"raise ImportError('nothing works')\n")
    with (tmp_path / fat.name).open("wb") as file:
        write_members(file, WheelName.parse(fat.name), members)
    out = tmp_path / "out"
    split_wheel(SplitRequest(source=tmp_path / fat.name, out=out, release=True), effects)
    text = complaint(out, effects, CheckOptions())
    assert "import other fails" in text
    assert "import toy fails" not in text


def test_check_without_pip_and_uv_is_refused(
    dist: Path, effects: Effects, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = dist.parent / "bare"
    bare.mkdir()
    python = bare / "python"
    python.write_text("#!/bin/sh\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))
    monkeypatch.setattr("archsplit.release.install_test.has_pip", lambda: False)
    bare_effects = replace(effects, environment={"PATH": str(bare)}, python_path="")
    with pytest.raises(ToolNotFoundError, match="neither pip nor uv is installed"):
        check_release(dist, bare_effects, CheckOptions())


def test_without_uv_pip_is_enough(
    dist: Path, effects: Effects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("archsplit.release.install_test.find_uv", lambda _: None)
    verdict = check_release(dist, effects, CheckOptions())
    assert verdict.installed == ("pip",)
    assert "uv was not tried, because it is not installed" in verdict.notes


def test_pip_too_new_for_a_python_is_noted_and_only_uv_is_tried(
    built: tuple[Path, Release], effects: Effects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path(sys.executable)
    refusing = tmp_path / "python"
    text = "This version of pip does not support python 3.9 (requires >=3.10)."
    refusing.write_text(
        '#!/bin/sh\ncase " $* " in *" -m pip --python "*)'
        f' echo "{text}" >&2; exit 1;; esac\nexec "{real}" "$@"\n'
    )
    refusing.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(refusing))
    if (uv := real.with_name("uv")).exists():
        (tmp_path / "uv").symlink_to(uv)
    # The Python has that pip as its own, or an older one.
    verdict = check_release(built[0], effects, CheckOptions(pythons=(str(real),)))
    (note,) = verdict.notes
    assert note.startswith("pip was not tried")
    refused, older = verdict.sample
    assert refused == f"{older} (only uv)"


def test_a_truncated_pack_is_to_be_copied_or_split_again(packs: Path, effects: Effects) -> None:
    def cut(name: str, content: bytes) -> bytes:
        return content[:-100] if name.endswith("/device.pack") else content

    rewrite(only(packs, "toy_cc80*"), cut)
    with pytest.raises(VerifyError) as caught:
        check_release(packs, effects, FIRST_ONLY)
    name = only(packs, "toy_cc80*").name
    (found,) = (
        one for one in caught.value.findings if (one.code, one.subject) == ("damaged-pack", name)
    )
    assert "size of the file" in found.found
    assert found.hint == "copy it again from where it was made, or make it again"
    assert "build" not in "".join(one.hint for one in caught.value.findings)


def test_split_with_a_damaged_core_stays_a_split(packs: Path, effects: Effects) -> None:
    core = only(packs, "toy-2*")
    core.write_bytes(core.read_bytes()[:-100])
    with pytest.raises(VerifyError) as caught:
        check_release(packs, effects, FIRST_ONLY)
    assert {"damaged-wheel", "changed-file"} <= {one.code for one in caught.value.findings}
    assert "build" not in "".join(one.hint for one in caught.value.findings)


def test_a_built_release_and_a_split_have_the_same_kinds_of_findings(
    dist: Path, packs: Path, effects: Effects
) -> None:
    codes = []
    for folder, core, plugin, project, version in (
        (dist, "tinyvec-1*", "tinyvec_sm80*", b"tinyvec", b"1.2.3"),
        (packs, "toy-2*", "toy_cc80*", b"toy", b"2.0"),
    ):
        rewrite(only(folder, plugin), in_metadata(project + b"==" + version, project))
        rewrite(only(folder, core), in_metadata(b"Provides-Extra: all\n", b""))
        with pytest.raises(VerifyError) as caught:
            check_release(folder, effects, FIRST_ONLY)
        codes.append({one.code for one in caught.value.findings})
        only(folder, core).unlink()
        with pytest.raises(VerifyError) as caught:
            check_release(folder, effects, FIRST_ONLY)
        codes[-1] |= {one.code for one in caught.value.findings}
    both = {"wrong-requirement", "undeclared-extra", "changed-file", "missing-file", "one-core"}
    assert codes[0] & codes[1] >= both


def test_findings_are_written_as_json(packs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    only(packs, "toy_cc80*").unlink()
    for words in (("--release", "--no-install"), ()):
        assert main(["verify", *words, "--json", str(packs)]) == VerifyError.exit_code
        content = json.loads(capsys.readouterr().out)
        rows = {row["code"]: row for row in content["findings"]}
        assert content["schema"] == 1
        assert set(rows["missing-plugin"]) == {"code", "subject", "found", "expected", "hint"}
        assert rows["missing-plugin"]["subject"] == "toy-cc80"


def test_empty_folder_is_refused(tmp_path: Path, effects: Effects) -> None:
    with pytest.raises(InputError, match="no wheel in"):
        check_release(tmp_path, effects, STAY)


def test_gap_of_the_fat_wheel_is_a_note_of_its_split(split: Path, effects: Effects) -> None:
    verdict = check_release(split, effects, STAY)
    assert verdict.kernels == 2
    (note,) = verdict.notes
    assert re.fullmatch(
        r"\S+\.so: missing kernels, as in the fat wheel: of 2, 1 for [\d., ]+; one is second", note
    )


def test_truncated_pack_of_a_split_is_one_damaged_wheel(packs: Path, effects: Effects) -> None:
    pack_file = only(packs, "toy_cc80*")
    pack_file.write_bytes(pack_file.read_bytes()[:-100])
    with pytest.raises(VerifyError) as caught:
        check_release(packs, effects, CheckOptions())
    assert {one.subject for one in caught.value.findings} == {pack_file.name}
    assert {one.code for one in caught.value.findings} == {"damaged-wheel", "changed-file"}


def test_complete_split_installs(split: Path, effects: Effects) -> None:
    options = replace(FIRST_ONLY, install=True)
    assert check_release(split, effects, options).installed == ("pip", "uv")


def test_missing_pack_of_a_split_is_found(packs: Path, effects: Effects) -> None:
    gone = only(packs, "toy_cc80*")
    gone.unlink()
    text = complaint(packs, effects, FIRST_ONLY)
    assert "toy-cc80: no wheel, but the core names it for " in text
    assert f"{gone.name}: {MANIFEST} lists it" in text


def test_wrong_pins_of_a_split_are_found(packs: Path, effects: Effects) -> None:
    (packs / MANIFEST).unlink()

    def change(name: str, content: bytes) -> bytes:
        if not name.endswith("METADATA"):
            return content
        loose = content.replace(b'toy-cc80==2.0; extra == "cc80"', b'toy-cc80>=2; extra == "cc80"')
        assert loose != content
        return loose.replace(b"Provides-Extra: all\n", b"Provides-Extra: everything\n")

    rewrite(only(packs, "toy-2*"), change)
    rewrite(only(packs, "toy_cc80*"), in_metadata(b"toy==2.0", b"toy"))
    text = complaint(packs, effects, FIRST_ONLY)
    assert "requires toy-cc80>=2; extra" in text
    assert "doesn't declare the extra all; make the core again" in text
    assert "requires toy, expected toy==2.0" in text


def test_pack_of_another_split_is_found(
    packs: Path, fat: Path, tmp_path: Path, effects: Effects
) -> None:
    from archsplit.split.model import SplitRequest  # noqa: PLC0415 (the same)
    from archsplit.split.split import split_wheel  # noqa: PLC0415 (the same)
    from target_lists import parse_targets  # noqa: PLC0415 (only for this test)

    out = tmp_path / "other"
    targets = tuple(parse_targets("sm_80"))
    split_wheel(SplitRequest(source=fat, out=out, targets=targets, release=True), effects)
    shutil.copy(only(out, "toy_cc80*"), packs)
    (packs / MANIFEST).unlink()
    text = complaint(packs, effects, FIRST_ONLY)
    assert "its descriptor says build id" in text
    assert "take all wheels from one release" in text


def test_wheels_with_the_same_missing_kernels_share_a_line() -> None:
    found = {
        "a": frozenset({"x", "y"}),
        "b": frozenset({"x"}),
        "c": frozenset({"x"}),
        "d": frozenset({f"k{n}" for n in range(7)} | {"x", "y"}),
    }
    lines = [str(one) for one in kernel_faults(found, ())]
    assert lines[0].startswith("a: no k0, k1, k2, k3, k4 and 2 more, which d has; ")
    assert lines[1].startswith("b, c: no k0")
    assert list(kernel_faults(found, ("k?", "y"))) == []
    assert list(kernel_faults({}, ())) == []


def test_verify_command_reports_sound_and_faulty_releases(
    dist: Path, gapped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", "--release", "--no-install", str(dist)]) == 0
    assert ": 4 wheels, 2 kernels for every target" in capsys.readouterr().out
    assert main(["verify", "--release", "--no-install", "--json", str(dist)]) == 0
    assert json.loads(capsys.readouterr().out)["installed"] == []
    assert main(["verify", "--release", "--no-install", str(gapped)]) == 9
    assert GAP in capsys.readouterr().err
    (dist / MANIFEST).unlink()
    assert main(["verify", "--release", "--no-install", str(dist)]) == 9
    assert f"{MANIFEST}: is not in" in capsys.readouterr().err
    assert main(["verify", "--release", "--targets", "sm_80", str(dist)]) == 2


def test_the_checks_of_a_build_hold_for_a_split_too(packs: Path) -> None:
    core = only(packs, "toy-2*")
    with zipfile.ZipFile(core) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    kept = {
        name: pack(text.replace(b"Provides-Extra: all\n", b""))
        for name, text in members.items()
        if not name.endswith(("RECORD", "libarchsplit_loader.so"))
    }
    with core.open("wb") as file:
        write_members(file, WheelName.parse(core.name), kept)
    with pytest.raises(VerifyError) as caught:
        verify_release(unlisted(packs))
    assert {one.code for one in caught.value.findings} == {"missing-loader", "undeclared-extra"}


def test_a_damaged_plugin_is_not_a_missing_one(dist: Path, packs: Path) -> None:
    for folder, pattern in ((dist, "tinyvec_sm80*"), (packs, "toy_cc80*")):
        path = only(folder, pattern)
        path.write_bytes(path.read_bytes()[:-100])
        with pytest.raises(VerifyError) as caught:
            verify_release(folder)
        found = [(one.code, one.subject) for one in caught.value.findings]
        assert found == [("damaged-wheel", path.name)]


def test_a_build_cannot_be_joined(dist: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no table of images"):
        join_split(dist, tmp_path / "joined")
