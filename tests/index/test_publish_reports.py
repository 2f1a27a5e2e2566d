"""Reports that aren't true: what they say of a wheel is held against the wheel."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from publish_samples import make_release

from archsplit.errors import InputError, VerifyError, WheelError
from archsplit.index.preflight import preflight_check
from archsplit.index.release import CORE, META, PLUGIN, read_release
from archsplit.release.completeness import CheckOptions
from archsplit.split.model import InstallDefaults

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from publish_samples import Scene

SPLIT = "archsplit-report.json"


def changed(dist: Path, change: Callable[[list[dict[str, Any]]], None]) -> None:
    report = json.loads((dist / SPLIT).read_text())
    change(report["wheels"])
    (dist / SPLIT).write_text(json.dumps(report))


def test_a_split_s_meta_wheel_goes_last(scene: Scene, tmp_path: Path) -> None:
    release = read_release([make_release(tmp_path / "meta", install=InstallDefaults.META)])
    assert [one.role for one in release.artifacts] == [PLUGIN, PLUGIN, CORE, META]
    preflight_check(release, scene.publisher().effects, CheckOptions())


def test_swapped_roles_in_the_report_are_refused(scene: Scene) -> None:
    def swap(wheels: list[dict[str, Any]]) -> None:
        for wheel in wheels[:2]:
            wheel["role"] = {"core": "plugin", "plugin": "core"}[wheel["role"]]

    changed(scene.dist, swap)
    with pytest.raises(VerifyError) as caught:
        preflight_check(read_release([scene.dist]), scene.publisher().effects, CheckOptions())
    core, pack = scene.wheel("").name, scene.wheel("_cc80").name
    found = {one.text for one in caught.value.findings}
    text = "archsplit-report.json: wheels.{}.role is {}, expected {}"
    assert text.format(core, "plugin", "core") in found
    assert text.format(pack, "core", "plugin") in found


@pytest.mark.parametrize("file", ["../toyfat-1.0-py3-none-any.whl", "/toyfat-1.0-py3-none-any.whl"])
def test_no_file_of_another_folder_is_published(scene: Scene, file: str) -> None:
    changed(scene.dist, lambda wheels: wheels[1].update(file=file))
    with pytest.raises(WheelError, match="is not the file name of a wheel"):
        read_release([scene.dist])


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda wheels: wheels[1].update(size="x"), r"wheels\.1\.size"),
        (lambda wheels: wheels[0].update(role="curiosity"), r"wheels\.0\.role"),
        (lambda wheels: wheels.append(7), r"wheels\.3"),
    ],
)
def test_fault_of_a_report_is_named_with_its_path(
    scene: Scene, change: Callable[[list[dict[str, Any]]], None], where: str
) -> None:
    changed(scene.dist, change)
    with pytest.raises(InputError, match=rf"is not a release's report: {where}") as caught:
        read_release([scene.dist])
    assert "\n" not in str(caught.value)


def test_truncated_report_is_refused_in_one_line(scene: Scene) -> None:
    path = scene.dist / SPLIT
    path.write_text(path.read_text()[:300])
    with pytest.raises(InputError, match=r"is not a release's report: Invalid JSON[^\n]*$"):
        read_release([scene.dist])
