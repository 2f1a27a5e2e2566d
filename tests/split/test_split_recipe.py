"""Recipes for something finished, carried out: what is built, found, split, and refused."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from split_samples import Sample, library

from archsplit import backend
from archsplit.cli.main import main
from archsplit.errors import RecipeError, ToolFailedError, ToolNotFoundError
from archsplit.recipe.load import load
from archsplit.recipe.prebuilt import SplitRecipe
from archsplit.release import context
from archsplit.release.checks import CheckScope
from archsplit.release.verify import verify_release
from archsplit.split.from_recipe import plan_split, split_by_recipe
from archsplit.split.product import find_product
from archsplit.system.terminal import SilentProgress
from archsplit.wheels.reader import open_wheel
from child_processes import running
from target_lists import parse_targets

if TYPE_CHECKING:
    from archsplit.release.context import Effects

LIBRARY = """
[project]
name = "fast-sum"
version = "1.2"
summary = "Sums."
license = "MIT"
license-files = ["LICENSE"]
dependencies = ["packaging"]

[source]
library = "lib?.so"

[install]
mode = "all"
"""


def recipe_of(folder: Path, text: str) -> SplitRecipe:
    folder.mkdir(exist_ok=True)
    (folder / "recipe.toml").write_text(text)
    recipe = load(folder)
    assert isinstance(recipe, SplitRecipe)
    return recipe


def building(folder: Path, script: str, more: str = "") -> SplitRecipe:
    """A recipe whose build is a script of the shell's."""
    folder.mkdir(exist_ok=True)
    (folder / "build.sh").write_text(script)
    return recipe_of(folder, f'[source]\nbuild = "sh build.sh {{out}} a"\n{more}')


def test_a_built_wheel_is_split_as_the_recipe_says(
    sample: Sample, tmp_path: Path, effects: Effects
) -> None:
    script = f'test "$1" = "$ARCHSPLIT_OUT" && cp {sample.fat} "$1" && echo "$PWD" > seen'
    recipe = building(
        tmp_path / "recipe",
        script,
        '[split]\nname = "other"\n[targets]\nsass = ["sm_90"]\n[install]\nmode = "meta"\n',
    )
    report = split_by_recipe(recipe, effects, out=tmp_path / "out")
    assert (tmp_path / "recipe" / "seen").read_text() == f"{recipe.root}\n"
    assert {wheel.role: wheel.distribution for wheel in report.wheels} == {
        "core": "other",
        "meta": "other-all",
        "plugin": "other-cc90",
    }
    assert verify_release(tmp_path / "out").package == "other"
    with open_wheel(tmp_path / "out" / "other_all-1.0-py3-none-any.whl") as wheel:
        assert list(map(str, wheel.metadata().requires_dist or ())) == ["other[all]==1.0"]


def test_the_packs_are_the_same_as_those_of_the_verb(
    sample: Sample, tmp_path: Path, effects: Effects
) -> None:
    shutil.copy(sample.fat, tmp_path)
    recipe = recipe_of(tmp_path, '[source]\nwheel = "toyfat-*.whl"\n')
    split_by_recipe(recipe, effects, out=tmp_path / "out")
    for wheel in sample.out.iterdir():
        assert (tmp_path / "out" / wheel.name).read_bytes() == wheel.read_bytes()


def test_targets_of_the_command_line_come_first(
    sample: Sample, tmp_path: Path, effects: Effects
) -> None:
    recipe = building(tmp_path, f'cp {sample.fat} "$1"', '[targets]\nsass = ["sm_90"]\n')
    targets = tuple(parse_targets("sm_80"))
    report = split_by_recipe(recipe, effects, out=tmp_path / "out", targets=targets)
    assert [wheel.label for wheel in report.wheels] == ["core", "cc80"]


class Notes(SilentProgress):
    """Keeps what a user would read."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        """Keep a line."""
        self.notes.append(text)


def test_uncompiled_targets_are_named(sample: Sample, tmp_path: Path, effects: Effects) -> None:
    def notes(recipe: SplitRecipe) -> list[str]:
        told = Notes()
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        split_by_recipe(recipe, replace(effects, progress=told), out=tmp_path / "out")
        return [note for note in told.notes if "the build has no code" in note]

    more = '[targets]\nsass = ["sm_90", "sm_87"]\n'
    script = f'cp {sample.fat} "$1"'
    (note,) = notes(building(tmp_path / "more", script, more))
    assert note.startswith("the build has no code for sm_87, only for sm_80")
    assert "$ARCHSPLIT_GENCODE" in note
    # Without a list, or with code for all of it, or with a wheel from elsewhere: none.
    assert notes(building(tmp_path / "none", script)) == []
    assert notes(building(tmp_path / "all", script, '[targets]\nsass = ["sm_90"]\n')) == []
    shutil.copy(sample.fat, tmp_path / "more")
    assert notes(recipe_of(tmp_path / "more", f'[source]\nwheel = "toyfat-*.whl"\n{more}')) == []


def test_a_library_gets_the_project_of_its_recipe(tmp_path: Path, effects: Effects) -> None:
    library(tmp_path, "liba", 0)
    (tmp_path / "LICENSE").write_text("Do what you like.\n")
    package = tmp_path / "python" / "fast_sum"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("ANSWER = 42\n")
    recipe = recipe_of(tmp_path, f"{LIBRARY}[python]\n")
    report = split_by_recipe(recipe, effects, out=tmp_path / "out")
    assert report.split is not None
    assert report.split.sources[0].file == "liba.so"
    (path,) = (tmp_path / "out").glob("fast_sum-1.2-*manylinux*.whl")
    with open_wheel(path) as wheel:
        wheel.check_contents()
        said = wheel.metadata()
        assert wheel.read("fast_sum/__init__.py") == b"ANSWER = 42\n"
        assert wheel.read("fast_sum-1.2.dist-info/licenses/LICENSE") == b"Do what you like.\n"
    assert (said.summary, said.license_expression) == ("Sums.", "MIT")
    requires = list(map(str, said.requires_dist or ()))
    assert {"packaging", "fast-sum-cc90==1.2"} < set(requires)
    assert verify_release(tmp_path / "out").version == "1.2"


def test_library_left_in_the_build_tree_is_split_with_or_without_a_rebuild(
    tmp_path: Path, effects: Effects
) -> None:
    made = library(tmp_path, "liba", 0)
    (tmp_path / "LICENSE").write_text("Do what you like.\n")
    source = f'[source]\nbuild = "cp {made} libz.so"'
    recipe = recipe_of(tmp_path / "tree", _in_tree(tmp_path, source))
    report = split_by_recipe(recipe, effects, out=tmp_path / "out")
    assert report.split is not None
    assert report.split.sources[0].file == "libz.so"
    # A build with nothing to do leaves what is there as it is, which is as good.
    (tmp_path / "tree" / "recipe.toml").write_text(_in_tree(tmp_path, '[source]\nbuild = "true"'))
    recipe = recipe_of(tmp_path / "tree", _in_tree(tmp_path, '[source]\nbuild = "true"'))
    again = split_by_recipe(recipe, effects, out=tmp_path / "again")
    assert again.wheels == report.wheels


def _in_tree(folder: Path, source: str) -> str:
    (folder / "tree").mkdir(exist_ok=True)
    shutil.copy(folder / "LICENSE", folder / "tree")
    return LIBRARY.replace("[source]", source)


def test_product_is_the_newly_built_file(tmp_path: Path, effects: Effects) -> None:
    for name in ("a-1-py3-none-any.whl", "a-2-py3-none-any.whl"):
        (tmp_path / name).write_text("old")
    recipe = building(tmp_path, "echo new > a-2-py3-none-any.whl")
    recipe = replace(recipe, source=replace(recipe.source, wheel="*.whl"))
    with find_product(recipe, effects) as product:
        assert product == tmp_path / "a-2-py3-none-any.whl"
    recipe = replace(recipe, source=replace(recipe.source, build="true"))
    with pytest.raises(ToolFailedError, match=r"2 files that match \*\.whl: a-1.*, a-2"):
        find_product(recipe, effects).__enter__()


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo so what; echo oh no >&2; exit 7", ["exit status 7", "so what", "oh no"]),
        ("exit 0", ["no file matches {out}/*.whl", "{out} is empty"]),
        ('mkdir "$1/a"; touch "$1/a/b"', ["no file matches", "{out} has {out}/a/b"]),
        ('touch "$1/a.whl" "$1/b.whl"', ["left 2 files", "{out}/a.whl, {out}/b.whl"]),
    ],
)
def test_failed_build_is_explained_and_leaves_nothing(
    tmp_path: Path, effects: Effects, script: str, said: list[str]
) -> None:
    recipe = building(tmp_path / "recipe", script)
    before = _private_folders()
    with pytest.raises(ToolFailedError) as caught:
        split_by_recipe(recipe, effects, out=tmp_path / "out")
    for words in ("recipe.toml: source.build", *said):
        assert words in str(caught.value)
    assert not (tmp_path / "out").exists()
    assert _private_folders() <= before


def test_missing_program_is_named(tmp_path: Path, effects: Effects) -> None:
    recipe = recipe_of(tmp_path, '[source]\nbuild = "no-such-program {out}"\n')
    with pytest.raises(ToolNotFoundError, match="no-such-program"):
        split_by_recipe(recipe, effects, out=tmp_path / "out")


def test_the_build_has_the_callers_environment_and_an_epoch(
    tmp_path: Path, effects: Effects
) -> None:
    script = 'echo "$MINE $SOURCE_DATE_EPOCH" > seen; touch "$1/a.whl"; touch "$TMPDIR/left"'
    recipe = building(tmp_path, script)
    given = {"PATH": os.environ["PATH"], "MINE": "yes"}
    for environment, seen in (
        (given, "yes 315532800\n"),
        ({**given, "SOURCE_DATE_EPOCH": "1700000000"}, "yes 1700000000\n"),
    ):
        with find_product(recipe, replace(effects, environment=environment)) as product:
            assert product.name == "a.whl"
        assert not product.exists()
        assert (tmp_path / "seen").read_text() == seen


def test_ctrl_c_kills_the_build_and_its_children(tmp_path: Path) -> None:
    building(tmp_path, "sleep 300 & echo $! > pid; wait")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary)}
    words = ("-m", "archsplit.cli", "build", str(tmp_path), "--out", str(tmp_path / "out"))
    code = "import sys; from archsplit.cli.main import main; sys.exit(main(sys.argv[1:]))"
    argv = [sys.executable, "-c", code, *words[2:]]
    with running(argv, env=environment, stderr=subprocess.PIPE) as process:
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().strip():
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, talk = process.communicate(timeout=200)
    assert process.returncode == 130, talk
    # SIGKILL is sent; the death of a grandchild, which no process waits for, takes its time.
    end = time.monotonic() + 200
    while _lives(int((tmp_path / "pid").read_text())) and time.monotonic() < end:
        time.sleep(0.02)
    assert not _lives(int((tmp_path / "pid").read_text()))
    assert not (tmp_path / "out").exists()
    assert not list(temporary.iterdir())


def test_plan_prints_the_build_command(tmp_path: Path) -> None:
    recipe = building(tmp_path, "touch ran", '[split]\nby = "target"\n[install]\nmode = "meta"\n')
    plan = plan_split(recipe)
    assert not (tmp_path / "ran").exists()
    assert plan.packs is None
    text = plan.text()
    for words in (
        f"in {tmp_path}, with ARCHSPLIT_OUT={{out}}",
        "sh build.sh '{out}' a",
        "matches {out}/*.whl",
        "by target, for every GPU",
        "installed as meta",
    ):
        assert words in text


def test_plan_of_an_existing_product_lists_the_wheels(
    sample: Sample, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(sample.fat, tmp_path)
    (tmp_path / "recipe.toml").write_text('[source]\nwheel = "*.whl"\n[split]\nname = "other"\n')
    assert main(["plan", str(tmp_path), "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["schema"], plan["kind"], plan["source"]) == (1, "split", sample.fat.name)
    manifest = json.loads((sample.out / "archsplit-manifest.json").read_text())
    made = {
        wheel["distribution"].rpartition("-")[2]: wheel
        for wheel in manifest["wheels"]
        if wheel["role"] == "plugin"
    }
    assert {pack["pack"] for pack in plan["packs"]} == set(made)
    for pack in plan["packs"]:
        wheel = made[pack["pack"]]
        assert pack["serves"] == wheel["serves"]
        assert pack["images"] == len(wheel["images"])
        assert pack["image_bytes"] == sum(image["size"] for image in wheel["images"])
    assert plan["extras"]["cc89"] == ["cc86"]
    assert main(["plan", str(tmp_path), "--targets", "sm_80"]) == 0
    text = capsys.readouterr().out
    assert "cc80       GPUs of capability 8.0" in text
    assert "cc90" not in text
    assert "named other" in text


def test_plan_of_a_library_names_its_packs(tmp_path: Path) -> None:
    library(tmp_path, "liba", 0, others=((b"\x50\xed\x55\xba\x01\0\x10\0" + bytes(8), 1),))
    (tmp_path / "LICENSE").write_text("Do what you like.\n")
    plan = plan_split(recipe_of(tmp_path, LIBRARY))
    assert plan.name == "fast-sum"
    assert {pack.pack for pack in plan.packs or ()} == {
        "cc80",
        "cc86",
        "cc87",
        "cc90",
        "ptx",
        "rest",
    }


def test_verb_splits_and_refuses_meaningless_options(
    sample: Sample,
    tmp_path: Path,
    effects: Effects,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(context, "Effects", lambda **_: effects)
    building(tmp_path, f'cp {sample.fat} "$1"')
    words = ["build", str(tmp_path), "--out", str(tmp_path / "out")]
    finished = tmp_path / "finished.toml"
    shutil.copy(sample.fat, tmp_path / "finished.whl")
    finished.write_text('[source]\nwheel = "finished.whl"\n')
    # A command of the recipe has an nvcc behind its wrapper, and a finished wheel has none.
    refused = ((tmp_path, "--no-core"), (finished, "--nvcc=/nvcc"))
    for recipe, more in refused:
        assert main(["build", str(recipe), *words[2:], more]) == 2
        assert f"{more.partition('=')[0]} is for recipes with sources" in capsys.readouterr().err
    assert main([*words, "--json", "--quiet", "--targets", "sm_80"]) == 0
    assert [wheel["role"] for wheel in json.loads(capsys.readouterr().out)["wheels"]] == [
        "core",
        "plugin",
    ]


def test_the_build_backend_refuses_clearly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe_of(tmp_path, '[source]\nbuild = "pip wheel ."\n')
    monkeypatch.chdir(tmp_path)
    for hook in (backend.build_wheel, backend.build_sdist):
        with pytest.raises(RecipeError, match="this needs sources"):
            hook(str(tmp_path / "out"))


def _private_folders() -> set[Path]:
    """This user's folders that a build would leave; others' tests may be making theirs."""
    place = Path(os.environ.get("TMPDIR", "/tmp"))
    return {path for path in place.glob(".archsplit-*") if (path / "out").exists()}


def _lives(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return status[0] not in {"Z", "X"}


@pytest.mark.download
def test_example_splits_a_wheel_of_the_index(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "recipes" / "xgboost-split"
    assert main(["build", str(example), "--out", str(tmp_path), "--quiet"]) == 0
    release = verify_release(tmp_path, scope=CheckScope(complete=True))
    assert (release.package, release.version) == ("xgboost", "3.2.0")
    assert release.covered == release.images == 520
    assert "9.0" in release.needs
    assert (tmp_path / "xgboost_all-3.2.0-py3-none-any.whl").exists()
