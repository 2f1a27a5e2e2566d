from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from archsplit.errors import RecipeError
from archsplit.recipe.load import load_recipe
from archsplit.recipe.pyproject_table import check_project_table, names_backend

TINYVEC = Path(__file__).parents[1] / "tinyvec"
FIELDS = (
    "authors",
    "description",
    "entry-points",
    "license",
    "license-files",
    "optional-dependencies",
    "readme",
    "requires-python",
    "urls",
    "version",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(TINYVEC, tmp_path / "tinyvec"))


def check(folder: Path, text: str) -> None:
    (folder / "pyproject.toml").write_text(text)
    recipe = load_recipe(folder)
    check_project_table(recipe.project, recipe.root)


def table(static: str = "", without: tuple[str, ...] = ()) -> str:
    dynamic = [name for name in FIELDS if name not in without]
    return f'[project]\nname = "tinyvec"\ndynamic = {dynamic!r}\n{static}'


def faults(folder: Path, text: str) -> str:
    with pytest.raises(RecipeError) as raised:
        check(folder, text)
    return str(raised.value)


def test_a_file_without_the_table_and_one_with_dynamic_fields_are_fine(folder: Path) -> None:
    check(folder, "")
    check(folder, table())


WRONG = (
    ('version = "1.2.3"', "version", "project.version has a value; the recipe has the metadata of"),
    ("urls = {}", "", "project.urls has a value; the recipe has"),
    ("", "urls", "project.urls is not in project.dynamic"),
    ('scripts = {tiny = "tinyvec:run"}', "", "project.scripts has a value; the recipe has"),
)


@pytest.mark.parametrize(("static", "without", "fault"), WRONG)
def test_a_contradiction_is_named(folder: Path, static: str, without: str, fault: str) -> None:
    assert f"pyproject.toml: {fault}" in faults(folder, table(static, (without,)))


def test_the_name_and_the_list_are_checked(folder: Path) -> None:
    text = faults(folder, '[project]\nname = "tiny_vec"\n')
    assert "project.name is 'tiny_vec', expected 'tinyvec'" in text
    # The hint is a table to copy.
    correct = text.partition("write\n")[2]
    check(folder, correct)
    text = faults(folder, '[project]\ndynamic = ["name", "scripts"]\n')
    assert "project.name is None, expected 'tinyvec'" in text
    assert "project.dynamic has scripts, which no wheel of a recipe has" in text
    assert "is not a list of names" in faults(folder, '[project]\ndynamic = "version"\n')
    assert "project is not a table" in faults(folder, "project = 1\n")
    assert "can't be read" in faults(folder, "[project\n")


def test_only_a_project_with_this_backend_is_compared(folder: Path) -> None:
    assert names_backend(folder)
    (folder / "pyproject.toml").write_text('[build-system]\nbuild-backend = "other"\n')
    assert not names_backend(folder)
    (folder / "pyproject.toml").unlink()
    assert not names_backend(folder)
    recipe = load_recipe(folder)
    check_project_table(recipe.project, recipe.root)
