from __future__ import annotations

import json
import shutil
import zipfile
from typing import TYPE_CHECKING

import pytest

from archsplit.arch.target import Target
from archsplit.build.pipeline import build_recipe
from archsplit.build.plan import BuildRequest
from archsplit.errors import InputError, VerifyError
from archsplit.recipe.load import load_recipe
from archsplit.release.checks import CheckScope
from archsplit.release.report import REPORT_FILE
from archsplit.release.verify import verify_release
from changed_wheels import in_metadata, only, rewrite

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.release.context import Effects

pytestmark = pytest.mark.nvcc


def complaint(folder: Path, effects: Effects, *targets: str) -> str:
    wanted = tuple(map(Target.parse, targets)) or None
    with pytest.raises(VerifyError) as caught:
        verify_release(folder, effects, CheckScope(targets=wanted))
    assert caught.value.exit_code == 9
    return str(caught.value)


def test_a_missing_plugin_is_named(dist: Path, effects: Effects) -> None:
    only(dist, "tinyvec_sm90*").unlink()
    text = complaint(dist, effects)
    assert "tinyvec-sm90: no wheel, but the core names it for sm_90" in text
    verify_release(dist, effects, CheckScope(targets=(Target.parse("sm_80"),)))


def test_target_not_named_by_the_core_is_found(dist: Path, effects: Effects) -> None:
    assert "sm_100: the core names no plugin for it" in complaint(dist, effects, "sm_100")


def test_missing_core_is_found(dist: Path, effects: Effects) -> None:
    only(dist, "tinyvec-1*").unlink()
    assert "one core is needed, but found none" in complaint(dist, effects)


def test_two_releases_in_one_folder_are_found(dist: Path, recipe: Path, effects: Effects) -> None:
    path = recipe / "recipe.toml"
    path.write_text(path.read_text().replace('version = "1.2.3"', 'version = "1.2.4"'))
    build_recipe(BuildRequest(recipe=load_recipe(recipe), targets=()), effects, out=dist)
    text = complaint(dist, effects)
    assert "one core is needed, but found tinyvec-1.2.3" in text
    assert "tinyvec-1.2.4" in text


def test_missing_wheel_of_the_report_is_found(dist: Path, effects: Effects) -> None:
    gone = only(dist, "tinyvec_sm80*")
    gone.unlink()
    assert f"{gone.name}: archsplit-report.json lists it" in complaint(dist, effects)
    verify_release(dist, effects, CheckScope(targets=(Target.parse("sm_90"),)))


def test_missing_folder_is_refused(tmp_path: Path, effects: Effects) -> None:
    with pytest.raises(InputError, match="is not a folder"):
        verify_release(tmp_path / "gone", effects)


def test_empty_folder_is_refused(tmp_path: Path, effects: Effects) -> None:
    with pytest.raises(InputError, match="no wheel in"):
        verify_release(tmp_path, effects)


def test_foreign_code_is_read_from_the_binary(dist: Path, effects: Effects) -> None:
    # The library for sm_80 where the one for sm_90 should be; name, metadata, RECORD are right.
    with zipfile.ZipFile(only(dist, "tinyvec_sm80*")) as archive:
        foreign = archive.read("tinyvec_plugins/cuda/sm_80/libtinyvec.so")
    rewrite(
        only(dist, "tinyvec_sm90*"),
        lambda name, content: foreign if name.endswith(".so") else content,
    )
    text = complaint(dist, effects)
    assert "container 0 has foreign code for sm_80, expected only sm_90" in text
    assert "container 1 has no code for sm_90" in text
    assert "its descriptor says targets sm_80, expected sm_90" in text


def test_inexact_pins_are_found(dist: Path, effects: Effects) -> None:
    rewrite(only(dist, "tinyvec_sm80*"), in_metadata(b"tinyvec==1.2.3", b"tinyvec>=1.2"))
    rewrite(only(dist, "tinyvec-1*"), in_metadata(b"tinyvec-sm90==1.2.3", b"tinyvec-sm90"))
    text = complaint(dist, effects)
    assert "requires tinyvec>=1.2, expected tinyvec==1.2.3" in text
    assert "[sm90] requires tinyvec-sm90, expected tinyvec-sm90==1.2.3" in text


def test_undeclared_extra_is_found(dist: Path, effects: Effects) -> None:
    rewrite(only(dist, "tinyvec-1*"), in_metadata(b"Provides-Extra: sm90\n", b""))
    assert "doesn't declare the extra sm90" in complaint(dist, effects)


def test_content_not_matching_its_record_is_found(dist: Path, effects: Effects) -> None:
    wheel = only(dist, "tinyvec_sm80*")
    with zipfile.ZipFile(wheel) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content + b"\0" if name.endswith(".so") else content)
    text = complaint(dist, effects)
    assert "libtinyvec.so" in text
    assert wheel.name in text


def test_truncated_wheel_is_found(dist: Path, effects: Effects) -> None:
    wheel = only(dist, "tinyvec_sm80*")
    wheel.write_bytes(wheel.read_bytes()[:-100])
    assert f"{wheel.name}: " in complaint(dist, effects)


def test_platform_tag_older_than_auditwheels_is_found(dist: Path, effects: Effects) -> None:
    wheel = only(dist, "tinyvec_sm80*")
    real = wheel.name.split("-")[-1].removesuffix(".whl")
    claimed = "manylinux_2_17_x86_64"
    rewrite(
        wheel,
        lambda name, content: content.replace(real.encode(), claimed.encode())
        if name.endswith("WHEEL")
        else content,
    )
    wheel.rename(wheel.with_name(wheel.name.replace(real, claimed)))
    assert f"is tagged {claimed}, but auditwheel says {real}" in complaint(dist, effects)


def test_descriptor_of_another_build_is_found(
    dist: Path, recipe: Path, tmp_path: Path, effects: Effects
) -> None:
    with (recipe / "src" / "add.cu").open("a") as file:
        file.write("// another build\n")
    order = BuildRequest(recipe=load_recipe(recipe), targets=(Target.parse("sm_80"),), core=False)
    build_recipe(order, effects, out=tmp_path / "other")
    shutil.copy(only(tmp_path / "other", "*.whl"), dist)
    assert "tinyvec_sm80" in (text := complaint(dist, effects))
    assert "its descriptor says build id" in text


def test_wheel_of_another_project_is_found(dist: Path, effects: Effects) -> None:
    wheel = only(dist, "tinyvec_sm80*")
    stranger = dist / wheel.name.replace("tinyvec_sm80", "tinyvec_sm81")
    shutil.copy(wheel, stranger)
    with zipfile.ZipFile(stranger) as archive:
        members = {
            name.replace("tinyvec_sm80", "tinyvec_sm81"): archive.read(name)
            for name in archive.namelist()
        }
    with zipfile.ZipFile(stranger, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content.replace(b"tinyvec_sm80", b"tinyvec_sm81"))
    rewrite(stranger, in_metadata(b"Name: tinyvec-sm80", b"Name: tinyvec-sm81"))
    assert "is neither the core nor one of its plugins" in complaint(dist, effects)


def test_incomplete_identity_is_found(dist: Path, effects: Effects) -> None:
    core = only(dist, "tinyvec-1*")

    def cut(name: str, content: bytes) -> bytes:
        if not name.endswith("core.json"):
            return content
        fields = json.loads(content)
        del fields["build_id"]
        return json.dumps(fields).encode()

    rewrite(core, cut)
    assert "core.json is not a core's identity: build_id" in complaint(dist, effects)


def test_every_finding_is_listed_at_once(dist: Path, effects: Effects) -> None:
    (dist / REPORT_FILE).unlink()
    only(dist, "tinyvec_compute90*").unlink()
    rewrite(only(dist, "tinyvec_sm80*"), in_metadata(b"tinyvec==1.2.3", b"tinyvec"))
    rewrite(only(dist, "tinyvec_sm90*"), in_metadata(b"tinyvec==1.2.3", b"tinyvec"))
    assert len(complaint(dist, effects).splitlines()) == 4


def test_wheel_not_matching_the_report_is_found(dist: Path, effects: Effects) -> None:
    rewrite(only(dist, "tinyvec_sm80*"), lambda _, content: content)
    assert "is not the file that archsplit-report.json lists" in complaint(dist, effects)


def test_unreadable_report_is_found(dist: Path, effects: Effects) -> None:
    (dist / REPORT_FILE).write_text('{"schema": 2}')
    assert "archsplit-report.json is not a release's report: project" in complaint(dist, effects)
