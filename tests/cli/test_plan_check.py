"""``archsplit plan --check``: recipes are read, and nothing is planned."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from archsplit.cli.main import main
from archsplit.errors import RecipeError

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).parents[2]


def test_recipes_are_read_without_a_compiler(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["plan", "--check", str(ROOT / "recipes" / "vecsort")]) == 0
    assert capsys.readouterr().out.endswith(": ok\n")
    bad = tmp_path / "recipe.toml"
    bad.write_text("[sources]\n")
    assert main(["plan", "--check", str(bad)]) == RecipeError.exit_code
    assert "sources" in capsys.readouterr().err


def test_the_hook_reports_every_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    programs = Path(sys.executable).parent
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    bad = tmp_path / "a b" / "recipe.toml"
    bad.parent.mkdir()
    bad.write_text("[sources]\n")
    good = ROOT / "recipes" / "vecsort" / "recipe.toml"
    # pre-commit splits the entry as a shell does, and adds the names of files.
    done = subprocess.run(
        ["bash", "-c", f'{hook["entry"]} "$@"', "-", bad, good],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == RecipeError.exit_code
    assert f"{good}: ok" in done.stdout
