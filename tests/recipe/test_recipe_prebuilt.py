"""Recipes for prebuilt files: their content, and all possible faults."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

from archsplit.errors import InputError, RecipeError
from archsplit.recipe.load import load, load_recipe
from archsplit.recipe.model import Recipe
from archsplit.recipe.prebuilt import SplitRecipe

RECIPES = Path(__file__).parents[2] / "recipes"

LIBRARY = """\
[project]
name = "fast-sum"
version = "1.2"
summary = "Sums."
license = "MIT"
license-files = ["LICENSE"]

[source]
library = "build/libsum.so"
"""


def laid_out(folder: Path, recipe: str, *files: str) -> Path:
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("text\n")
    (folder / "recipe.toml").write_text(recipe)
    return folder


def message_for(folder: Path, recipe: str, *files: str) -> str:
    with pytest.raises(RecipeError) as caught:
        load(laid_out(folder, recipe, *files))
    return str(caught.value).replace(f"{folder}/", "").replace(str(folder), "FOLDER")


def test_recipe_may_have_only_a_wheel(tmp_path: Path) -> None:
    folder = laid_out(tmp_path, '[source]\nwheel = "dist/*.whl"\n', "dist/a-1-py3-none-any.whl")
    recipe = load(folder)
    assert isinstance(recipe, SplitRecipe)
    assert recipe.product == PurePosixPath("dist/a-1-py3-none-any.whl")
    assert (recipe.split.by, recipe.install.mode, recipe.targets) == ("capability", "core", None)
    assert not recipe.splits_library


def test_all_keys_are_read(tmp_path: Path) -> None:
    recipe = load(
        laid_out(
            tmp_path,
            """
            [source]
            build = "make 'the wheel' OUT={out}"
            wheel = "{out}/x*.whl"
            [split]
            name = "My.Core"
            by = "target"
            [targets]
            sass = ["sm_90", "sm_80"]
            ptx = ["compute_90"]
            [install]
            mode = "all"
            """,
        )
        / "recipe.toml"
    )
    assert isinstance(recipe, SplitRecipe)
    assert recipe.source.words == ("make", "the wheel", "OUT={out}")
    assert recipe.source.pattern == "{out}/x*.whl"
    assert (recipe.split.name, recipe.split.by, recipe.install.mode) == ("my-core", "target", "all")
    assert [str(target) for target in recipe.targets or ()] == ["sm_80", "sm_90", "compute_90"]
    assert recipe.product is None


def test_recipe_with_only_a_build_takes_the_wheel_in_its_folder(tmp_path: Path) -> None:
    recipe = load(laid_out(tmp_path, '[source]\nbuild = "make"\n'))
    assert isinstance(recipe, SplitRecipe)
    assert recipe.source.pattern == "{out}/*.whl"


def test_a_library_has_a_project_and_may_have_python_files(tmp_path: Path) -> None:
    files = ("LICENSE", "build/libsum.so", "python/fast_sum/__init__.py")
    recipe = load(laid_out(tmp_path, LIBRARY, *files))
    assert isinstance(recipe, SplitRecipe)
    assert recipe.project is not None
    assert recipe.splits_library
    assert recipe.project.license_files == (PurePosixPath("LICENSE"),)
    assert recipe.python is None
    recipe = load(laid_out(tmp_path, f"{LIBRARY}[python]\n"))
    assert isinstance(recipe, SplitRecipe)
    assert recipe.python is not None
    assert recipe.python.package == "fast_sum"
    assert recipe.python.files == (PurePosixPath("fast_sum/__init__.py"),)


def test_recipes_with_sources_are_others(tmp_path: Path) -> None:
    for text in ('[source]\nfiles = ["a.cu"]\n', "source = 1\n", ""):
        laid_out(tmp_path, text)
        with pytest.raises(RecipeError, match="table is missing"):
            load(tmp_path)
    with pytest.raises(InputError):
        load(tmp_path / "nothing")


def test_the_examples_are_right() -> None:
    recipe = load(RECIPES / "xgboost-split")
    assert isinstance(recipe, SplitRecipe)
    assert recipe.source.words[:4] == ("python3", "-m", "pip", "download")
    assert isinstance(load(RECIPES / "vecsort"), Recipe)
    own = load(RECIPES / "cuda-kernels")
    assert isinstance(own, SplitRecipe)
    assert own.source.wrapper
    assert "NVCC_APPEND_FLAGS" in own.source.words[2]


def test_prebuilt_recipe_is_refused_for_a_build(tmp_path: Path) -> None:
    laid_out(tmp_path, '[source]\nwheel = "a.whl"\n', "a.whl")
    with pytest.raises(RecipeError, match="splits a prebuilt file") as caught:
        load_recipe(tmp_path)
    assert caught.value.hint is not None
    assert "archsplit build" in caught.value.hint


def test_all_faults_are_said_at_once_each_with_its_line(tmp_path: Path) -> None:
    message = message_for(
        tmp_path,
        """\
[source]
build = "make && make install"
files = ["a.cu"]
wheels = "a"
[split]
by = "gpu"
[targets]
sass = ["sm-90"]
[compile]
std = "c++17"
[policies.nightly]
[splits]
""",
    )
    assert message.splitlines()[0] == "recipe.toml has 8 faults"
    for line, text in (
        (2, "source.build: has && in it, but no shell runs it"),
        (3, "source.files: unknown key in a recipe for a prebuilt file"),
        (4, "source.wheels: unknown key"),
        (6, "split.by: must be 'capability' or 'target', not 'gpu'"),
        (8, "targets.sass[0]: "),
        (9, "compile: unknown key in a recipe for a prebuilt file"),
        (11, "policies: unknown key"),
        (12, "splits: unknown key"),
    ):
        assert f"recipe.toml:{line}: {text}" in message
    assert "hint: did you mean wheel?" in message
    assert "hint: did you mean split?" in message
    assert "sh -c" in message


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ('wheel = "a.whl"\nlibrary = "b.so"', "source: names a wheel and a library"),
        ('wheel = "{out}/a.whl"', "source: '{out}/a.whl' is where nothing is built"),
        ('wheel = "a.whl"', "source.wheel: no file matches a.whl"),
        ('wheel = "*.txt"', "source.wheel: 2 files match *.txt: 1.txt, 2.txt"),
        ('wheel = "no/*.whl"', "source.wheel: no file matches no/*.whl"),
        ('wheel = "../a.whl"', "source.wheel: '../a.whl' leads out of the recipe's folder"),
        ("wheel = 1", "source.wheel: must be text, not 1"),
        ('build = "make \'it"', 'source.build: invalid command "make \'it": No closing quotation'),
        ('build = " "', "source.build: is an empty command"),
        ("build = 1", "source.build: must be text, not 1"),
    ],
)
def test_unsplittable_source_is_refused(tmp_path: Path, source: str, said: str) -> None:
    assert said in message_for(tmp_path, f"[source]\n{source}\n", "1.txt", "2.txt")


def test_tables_have_to_fit_each_other(tmp_path: Path) -> None:
    message = message_for(tmp_path, '[source]\nlibrary = "*.so"\n[split]\nname = "x"\n', "a.so")
    assert "project: the table is missing" in message
    assert "split.name: is for wheels" in message
    message = message_for(tmp_path, LIBRARY.replace("library", "wheel") + "[python]\n")
    assert "recipe.toml:1: project: is for libraries" in message
    assert "recipe.toml:10: python: is for libraries" in message
    message = message_for(tmp_path, LIBRARY + "[python]\n", "LICENSE", "python/other.py")
    assert "python.files: other.py is outside of fast_sum" in message


def test_a_split_keeps_the_platform_tags_of_its_wheel(tmp_path: Path) -> None:
    recipe = '[source]\nwheel = "dist/*.whl"\n\n[targets]\nsass = ["sm_90"]\nmanylinux = "2_28"\n'
    text = message_for(tmp_path, recipe, "dist/a-1-py3-none-any.whl")
    assert "targets.manylinux: is for recipes with sources" in text


def test_dropped_targets_of_a_wheel_belong_into_the_table_of_the_split(tmp_path: Path) -> None:
    recipe = '[source]\nwheel = "dist/*.whl"\n\n[targets]\nsass = ["sm_90"]\ndropped = ["sm_70"]\n'
    text = message_for(tmp_path, recipe, "dist/a-1-py3-none-any.whl")
    assert "targets.dropped: is for recipes with sources" in text
    assert 'dropped = ["cc70"] in [split]' in text


@pytest.mark.parametrize(
    ("text", "is_release"),
    [
        ('[source]\nbuild = "make"\n', True),
        ('[source]\nbuild = "make"\n[split]\nrelease = false\n', False),
        ('[source]\nwheel = "w.whl"\n', False),
    ],
)
def test_product_of_a_build_stands_for_the_fat_wheel(
    tmp_path: Path, text: str, is_release: bool
) -> None:
    folder = laid_out(tmp_path, text)
    (folder / "w.whl").touch()
    recipe = load(folder / "recipe.toml")
    assert isinstance(recipe, SplitRecipe)
    assert recipe.is_release is is_release
