"""``archsplit init``: the recipe of a source tree, and the paths that are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from archsplit.arch.target import Target
from archsplit.cli.main import main
from archsplit.recipe.load import load, load_recipe
from archsplit.recipe.prebuilt import SplitRecipe
from archsplit.recipe.starter import usual_targets

if TYPE_CHECKING:
    from pathlib import Path

KERNEL = "__global__ void dot() {}\n"
HEADER = """\
#ifdef __cplusplus
extern "C" {
#endif
typedef int (*foo_callback)(int code);
int foo_dot(const float *left,
            foo_callback done);
const char *foo_error(void);
#ifdef __cplusplus
}
#endif
"""
C_LIBRARY = {
    "LICENSE": "MIT\n",
    "include/foo.h": HEADER,
    "include/other.hpp": "int other(int);\n",
    "src/dot.cu": KERNEL,
    "src/help.c": "int help;\n",
    "python/foo/__init__.py": "",
    "tests/test.cu": KERNEL,
    ".cache/old.cu": KERNEL,
}


def tree(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture(autouse=True)
def no_toolkit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recipe can be written on a machine without a toolkit."""
    monkeypatch.setattr("archsplit.build.context.probe_nvcc", lambda *_: ())


def test_project_with_a_build_system_keeps_its_build(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project = '[project]\nname = "foo"\nversion = "1.2"\n[build-system]\nrequires = []\n'
    tree(tmp_path, {"pyproject.toml": project, "a.cu": KERNEL})
    assert main(["init", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"{tmp_path / 'recipe.toml'}\n"
    assert f"next: archsplit plan {tmp_path}" in printed.err
    assert "# foo 1.2\n" in (tmp_path / "recipe.toml").read_text()
    recipe = load(tmp_path)
    assert isinstance(recipe, SplitRecipe)
    assert recipe.source.build == "python3 -m pip wheel --no-deps --wheel-dir {out} ."
    assert main(["plan", str(tmp_path)]) == 0


@pytest.mark.parametrize("broken", ["", "[not toml"])
def test_setup_py_is_a_build_system(tmp_path: Path, broken: str) -> None:
    files = {"setup.py": "", "PKG-INFO": "Name: foo\nVersion: 3\n", "pyproject.toml": broken}
    assert main(["init", str(tree(tmp_path, files))]) == 0
    assert "# foo 3\n" in (tmp_path / "recipe.toml").read_text()


def test_sources_without_a_build_system_are_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tree(tmp_path / "foo", C_LIBRARY)
    assert main(["init", str(root)]) == 0
    assert "warning: fill in each FILL IN; the file has 2" in capsys.readouterr().err
    recipe = load_recipe(root)
    assert (recipe.project.name, recipe.project.version) == ("foo", "0.1.0")
    assert list(map(str, recipe.source.files)) == ["src/dot.cu", "src/help.c"]
    assert recipe.interface.symbols == ("foo_dot", "foo_error")
    assert (recipe.python.package, str(recipe.python.root)) == ("foo", "python")
    assert main(["plan", str(root), "--check"]) == 0


def test_sources_without_a_header_name_the_missing_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tree(tmp_path / "-", {"a.cu": KERNEL})
    assert main(["init", str(root)]) == 0
    assert 'name = "project"' in (root / "recipe.toml").read_text()
    assert main(["plan", str(root), "--check"]) == 3
    assert "interface.header" in capsys.readouterr().err


def test_targets_are_the_usual_ones_of_the_toolkit() -> None:
    known = {Target.parse(name) for name in ("sm_80", "sm_90", "sm_90a", "compute_90")}
    assert list(map(str, usual_targets(known))) == ["sm_80", "sm_90", "compute_90"]
    assert [*map(str, usual_targets(()))][-2:] == ["sm_120", "compute_120"]


def test_tree_without_cuda_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", str(tree(tmp_path, {"a.py": ""}))]) == 17
    assert "has no CUDA sources (*.cu), and no pyproject.toml" in capsys.readouterr().err
    assert not (tmp_path / "recipe.toml").exists()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gone", "no such folder"),
        ("a.whl", "hint: archsplit split"),
        ("a.tar.gz", "hint: tar xf"),
    ],
)
def test_path_of_a_file_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, words: str
) -> None:
    tree(tmp_path, {"a.whl": "", "a.tar.gz": ""})
    assert main(["init", str(tmp_path / name)]) == 14
    assert words in capsys.readouterr().err


def test_existing_recipe_is_kept_without_force(tmp_path: Path) -> None:
    tree(tmp_path, {"setup.py": "", "recipe.toml": "mine"})
    assert main(["init", str(tmp_path)]) == 10
    assert (tmp_path / "recipe.toml").read_text() == "mine"
    assert main(["init", str(tmp_path), "--force"]) == 0
