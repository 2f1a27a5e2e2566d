"""``archsplit build --policy`` of a recipe that splits something finished, and a split's log."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest

from archsplit.cli.main import main
from archsplit.errors import BudgetError
from archsplit.release import context

if TYPE_CHECKING:
    from pathlib import Path

    from split_samples import Sample

    from archsplit.release.context import Effects


@pytest.fixture
def recipe(
    sample: Sample, tmp_path: Path, effects: Effects, monkeypatch: pytest.MonkeyPatch
) -> Path:
    monkeypatch.setattr(context, "Effects", lambda **_: effects)
    folder = tmp_path / "recipe"
    folder.mkdir()
    shutil.copy(sample.fat, folder)
    (folder / "recipe.toml").write_text(
        '[source]\nwheel = "*.whl"\n[policy.nightly]\nsass = ["sm_90"]\nbudget = "10MB"\n'
    )
    return folder


def test_policy_builds_fewer_packs(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["build", str(recipe), "--out", str(tmp_path / "out"), "--policy", "nightly", "--json"]
    assert main(words) == 0
    wheels = json.loads(capsys.readouterr().out)["wheels"]
    assert [(wheel["plugin"] or {}).get("name") for wheel in wheels] == [None, "cc90"]
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names >= {wheel["file"] for wheel in wheels}
    assert not [name for name in names if name.startswith(".")]
    assert main(["plan", str(recipe), "--policy", "nightly", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["targets"] == ["sm_90"]


def test_a_broken_budget_writes_nothing(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = recipe / "recipe.toml"
    path.write_text(path.read_text().replace("10MB", "5kB"))
    words = ["build", str(recipe), "--out", str(tmp_path / "out"), "--policy", "nightly"]
    assert main(words) == BudgetError.exit_code
    stderr = capsys.readouterr().err
    assert "more than budget = 5.00 kB" in stderr
    assert "(cc90)" in stderr
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


def test_a_log_of_a_split_has_a_line_for_each_stage(
    sample: Sample, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["split", str(sample.fat), "--out", str(tmp_path / "out")]) == 0
    lines = [line.rpartition(" in ")[0] for line in capsys.readouterr().err.splitlines()]
    stages = [line for line in lines if line]
    assert stages == [f"Read {sample.fat.name}", "Compressed device code", "Checked all wheels"]
