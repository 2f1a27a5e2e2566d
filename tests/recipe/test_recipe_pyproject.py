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


STATIC = """
version = "1.2.3"
description = "Add and scale vectors on a GPU."
readme = {file = "README.md", content-type = "text/markdown"}
license = "apache-2.0"
license-files = ["LICEN*"]
requires-python = ">= 3.10"
authors = [{name = "The archsplit authors"}]
urls = {Documentation = "https://example.org/tinyvec"}
"""


def test_static_fields_may_say_what_the_recipe_says(folder: Path) -> None:
    given = ("authors", "description", "license", "license-files", "readme")
    check(folder, table(STATIC, (*given, "requires-python", "urls", "version")))


WRONG = (
    ('version = "1.2.4"', "version", "project.version is '1.2.4', and the recipe has '1.2.3'"),
    ('version = "one"', "version", "project.version is not valid: 'one' is not a version"),
    ("version = 1", "version", "project.version is not valid: "),
    ('readme = "NOTES.md"', "readme", "project.readme is not valid: "),
    ('readme = {text = "Hi."}', "readme", "project.readme is {'text': 'Hi.'}, and the recipe has"),
    ('keywords = ["gpu"]', "", "project.keywords is ['gpu'], and the recipe has nothing"),
    (
        'authors = [{name = "Me"}]',
        "authors",
        "project.authors is [{'name': 'Me'}], and the recipe has [{'name': 'The archsplit authors'",
    ),
    ("urls = {}", "urls", "project.urls is {}, and the recipe has {'Documentation': "),
    ("urls = {}", "", "project.urls has a value, and is in project.dynamic too"),
    ("", "urls", "project.urls is neither there nor in project.dynamic"),
    ('scripts = {tiny = "tinyvec:run"}', "", "project.scripts has a value, which no wheel of a"),
    ('summary = "Add."', "", "project.summary is not a field of this table"),
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
    assert "can't be in project.dynamic" in faults(folder, '[project]\ndynamic = ["name"]\n')
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
