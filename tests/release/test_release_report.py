"""Reports of releases: written, read back, and refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from archsplit.errors import BudgetError, InputError, OutputError
from archsplit.recipe.policy import Policy
from archsplit.release.identity import ReleaseKind
from archsplit.release.report import (
    REPORT_FILE,
    BuildDetails,
    Plugin,
    Release,
    ReleaseWheel,
    SplitDetails,
    SplitLibrary,
    SplitSource,
    UnmovedCode,
    find_report,
    read_report,
    refuse_other_release,
    require_report,
)

if TYPE_CHECKING:
    from pathlib import Path

BUILT = Release(
    project="toy",
    version="1.2",
    build_id="b1",
    interface_hash="i1",
    wheels=(
        ReleaseWheel(
            file="toy-1.2-py3-none-manylinux_2_17_x86_64.whl",
            size=5,
            sha256="aa",
            role="core",
            distribution="toy",
        ),
        ReleaseWheel(
            file="toy_all-1.2-py3-none-any.whl",
            size=2,
            sha256="ab",
            role="meta",
            distribution="toy-all",
        ),
        ReleaseWheel(
            file="toy_sm90-1.2-py3-none-manylinux_2_17_x86_64.whl",
            size=7,
            sha256="ac",
            role="plugin",
            distribution="toy-sm90",
            plugin=Plugin(kind="library", name="sm_90", targets=("sm_90",)),
        ),
    ),
    build=BuildDetails(
        epoch=315532800,
        targets=("sm_80", "sm_90"),
    ),
)
SPLIT = Release(
    project="toy",
    version="2.0",
    build_id="b2",
    interface_hash="i2",
    wheels=(
        ReleaseWheel(
            file="toy-2.0-0split-py3-none-linux_x86_64.whl",
            size=4,
            sha256="ba",
            role="core",
            distribution="toy",
        ),
        ReleaseWheel(
            file="toy_cc80-2.0-0split-py3-none-linux_x86_64.whl",
            size=6,
            sha256="bb",
            role="plugin",
            distribution="toy-cc80",
            plugin=Plugin(kind="pack", name="cc80", serves=("8.0", "8.6")),
        ),
    ),
    split=SplitDetails(
        sources=(
            SplitSource(
                core="toy-2.0-0split-py3-none-linux_x86_64.whl",
                file="toy-2.0-py3-none-linux_x86_64.whl",
                size=20,
                sha256="f0",
            ),
        ),
        needs={"8.0": ("cc80",), "8.6": ("cc80",)},
        libraries=(
            SplitLibrary(
                name="toy/liba.so", size_before=9, size_after=3, containers=2, notes=("padded",)
            ),
        ),
        unmoved=(UnmovedCode(name="toy/libb.a", images=1, size=8, why="a static library"),),
        notes=("WHEEL had no tag",),
    ),
)


@pytest.mark.parametrize("release", [BUILT, SPLIT])
def test_a_report_is_read_back(tmp_path: Path, release: Release) -> None:
    assert find_report(tmp_path) is None
    (tmp_path / REPORT_FILE).write_text(release.as_json())
    assert json.loads(release.as_json())["schema"] == 2
    assert read_report(tmp_path / REPORT_FILE) == release


def test_a_release_names_its_wheels_by_their_roles() -> None:
    assert (BUILT.core, BUILT.plugins) == (BUILT.wheels[0], BUILT.wheels[2:])
    assert (BUILT.kind, SPLIT.kind) == (ReleaseKind.BUILT, ReleaseKind.SPLIT)
    assert [wheel.gpus for wheel in BUILT.wheels] == [(), (), ("sm_90",)]
    assert [wheel.gpus for wheel in SPLIT.wheels] == [(), ("8.0", "8.6")]
    assert [wheel.label for wheel in SPLIT.wheels] == ["core", "cc80"]


def test_wheels_of_an_earlier_part_are_joined(tmp_path: Path) -> None:
    (tmp_path / REPORT_FILE).write_text(SPLIT.as_json())
    (tmp_path / SPLIT.wheels[1].file).touch()
    core_only = replace(SPLIT, wheels=SPLIT.wheels[:1])
    assert core_only.together_with(tmp_path).wheels == SPLIT.wheels


def test_a_folder_of_another_release_is_refused(tmp_path: Path) -> None:
    (tmp_path / REPORT_FILE).write_text(SPLIT.as_json())
    refuse_other_release(tmp_path, "b2")
    with pytest.raises(OutputError, match=r"already has a different split of toy-2\.0-py3"):
        refuse_other_release(tmp_path, "b3")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{", "not a release's report: Invalid JSON"),
        ('{"schema": 3}', "has schema 3, expected 2"),
        ('{"schema": 2, "project": 7}', "project: Input should be a valid string; version: "),
        (BUILT.as_json().replace('"meta"', '"mate"'), r"wheels\.1\.role: Input should be 'core'"),
    ],
)
def test_fault_of_a_release_report_has_its_path(tmp_path: Path, text: str, fault: str) -> None:
    (tmp_path / REPORT_FILE).write_text(text)
    with pytest.raises(InputError, match=fault):
        find_report(tmp_path)


def test_wheels_of_another_version_are_not_joined(tmp_path: Path) -> None:
    (tmp_path / REPORT_FILE).write_text(replace(BUILT, version="0.9").as_json())
    assert BUILT.together_with(tmp_path) == BUILT


def test_folder_without_a_report_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no "):
        require_report(tmp_path)


def test_wheels_of_another_frontend_have_no_report_and_say_so(tmp_path: Path) -> None:
    (tmp_path / "toy-1.0-py3-none-any.whl").touch()
    with pytest.raises(InputError, match="the core has no digests") as caught:
        require_report(tmp_path)
    assert "archsplit build" in (caught.value.hint or "")


def test_wheels_beyond_a_policy_are_refused_by_name() -> None:
    BUILT.check_budget(Policy(budget=14), "nightly")
    with pytest.raises(BudgetError, match="wheels of policy nightly are too big") as refused:
        BUILT.check_budget(Policy(budget=13), "nightly")
    assert "toy_sm90-1.2-py3-none-manylinux_2_17_x86_64.whl" in refused.value.message
