"""One recipe for several CUDA majors: a release for each, and a front package."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from archsplit.cli.main import main
from archsplit.nvcc.toolkit import installed_toolkits
from archsplit.wheels.metadata import decode_metadata
from archsplit.wheels.reader import open_wheel

if TYPE_CHECKING:
    from archsplit.nvcc.toolkit import Toolkit

TINYVEC = Path(__file__).parents[1] / "tinyvec"
PREFIX = "tinyvec-1.2.3"


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recipe for two majors, with one target that both compile."""
    folder: Path = tmp_path_factory.mktemp("majors") / "a recipe"
    shutil.copytree(TINYVEC, folder)
    text = (folder / "recipe.toml").read_text()
    text = text.replace('sass = ["sm_80", "sm_90"]\nptx = ["compute_90"]', 'sass = ["sm_80"]')
    (folder / "recipe.toml").write_text(f"{text}\n[cuda]\nmajors = [12, 13]\n")
    return folder


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory, toolkit: Toolkit) -> Path:
    """The toolkit of the tests, in a folder with a space, which calls itself CUDA 12.9.

    The index has no driver of CUDA 12; the programs behind it are not of interest here.
    """
    root: Path = tmp_path_factory.mktemp("majors") / "cuda 12.9"
    (root / "bin").mkdir(parents=True)
    for path in (*toolkit.root.iterdir(), *(toolkit.root / "bin").iterdir()):
        if path.name not in {"bin", "nvcc"}:
            (root / path.relative_to(toolkit.root)).symlink_to(path)
    # A copy: nvcc finds its toolkit beside itself, behind links.
    shutil.copy(toolkit.root / "bin" / "nvcc", root / "bin" / "nvcc-itself")
    nvcc = root / "bin" / "nvcc"
    shown = 'echo "Cuda compilation tools, release 12.9, V12.9.86"'
    # CUDA 12 has no Thor of that name.
    targets = '"$0-itself" --help | grep -vE "(sm|compute)_110"'
    nvcc.write_text(
        f"#!/bin/sh\ncase $1 in --version) {shown};; --help) {targets};;"
        ' *) exec "$0-itself" "$@";; esac\n'
    )
    nvcc.chmod(0o755)
    return root


@pytest.mark.stress
@pytest.mark.nvcc
def test_each_major_is_a_release_behind_one_front(
    recipe: Path,
    older: Path,
    toolkit: Toolkit,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    both = ["--nvcc", str(toolkit.nvcc), "--nvcc", str(older)]
    assert main(["build", str(recipe), "--out", str(out), *both, "--quiet"]) == 0
    text = capsys.readouterr().out
    front = f"{PREFIX}-py3-none-any.whl"
    assert f"{front}: the front package, with the extras cu12, cu13" in text
    assert sorted(path.name for path in out.iterdir()) == ["cu12", "cu13", front]
    for major in ("cu12", "cu13"):
        names = {path.name.split("-")[0] for path in (out / major).glob("*.whl")}
        assert names == {f"tinyvec_{major}", f"tinyvec_{major}_sm80"}
        core = next((out / major).glob(f"tinyvec_{major}-*.whl"))
        with zipfile.ZipFile(core) as archive:
            assert "tinyvec/__init__.py" in archive.namelist()
        manifest = json.loads((out / major / "archsplit-manifest.json").read_text())
        (nvcc,) = (tool for tool in manifest["toolchain"] if tool["name"] == "nvcc")
        release = {"cu12": "12.9.86", "cu13": toolkit.release}[major]
        assert (manifest["project"], nvcc["version"]) == (f"tinyvec-{major}", release)
        assert main(["verify", "--release", "--no-install", str(out / major)]) == 0
    assert "tinyvec-cu12 1.2.3\n" in capsys.readouterr().out
    with open_wheel(out / front) as wheel:
        metadata = decode_metadata(wheel.read(f"{wheel.dist_info}/METADATA"))
    requires = set(map(str, metadata.requires_dist or ()))
    assert 'tinyvec-cu12==1.2.3; extra == "cu12"' in requires
    assert 'tinyvec-cu13[sm80]==1.2.3; extra == "cu13-sm80"' in requires
    assert main(["build", str(recipe), "--out", str(out), *both]) == 10
    assert "has cu12, cu13 already" in capsys.readouterr().err


@pytest.mark.nvcc
def test_a_major_without_a_toolkit_is_named(
    recipe: Path, toolkit: Toolkit, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["build", str(recipe), "--out", str(tmp_path / "out")]
    nvcc = ["--nvcc", str(toolkit.nvcc)]
    assert main([*words, *nvcc]) == 4
    err = capsys.readouterr().err
    assert "no usable nvcc of CUDA 12; tried" in err
    assert f"CUDA {toolkit.release}" in err
    assert not (tmp_path / "out").exists()
    assert main([*words, *nvcc, "--cuda", "12"]) != 0
    assert f"is of CUDA {toolkit.release}, not 12" in capsys.readouterr().err
    text = (recipe / "recipe.toml").read_text().replace("[12, 13]", "[13]")
    one_major = Path(shutil.copytree(recipe, tmp_path / "one-major"))
    (one_major / "recipe.toml").write_text(text.replace('["sm_80"]', '["sm_80", "sm_999"]'))
    assert main(["build", str(one_major), "--out", str(tmp_path / "out"), *nvcc]) != 0
    err = capsys.readouterr().err
    assert "no toolkit of CUDA 13 can compile for\n  sm_999" in err
    (one_major / "recipe.toml").write_text(text.replace('["sm_80"]', '["sm_999"]'))
    assert main(["plan", str(one_major), "--cuda", "13", *nvcc]) != 0
    assert "can't compile any target of the recipe" in capsys.readouterr().err


def test_one_major_of_a_recipe_is_chosen(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(recipe)]) == 2
    assert "the recipe is for CUDA 12, 13, and makes a release for each" in capsys.readouterr().err
    assert main(["plan", str(recipe), "--cuda", "11"]) == 2
    assert "the recipe is not for CUDA 11: its cuda.majors are 12, 13" in capsys.readouterr().err
    assert main(["plan", str(TINYVEC), "--cuda", "12"]) == 2
    assert "its cuda.majors are not set" in capsys.readouterr().err
    out = ["--out", str(tmp_path / "out")]
    for option in ("--no-core", "--core-only", "--targets=sm_80", "--variants"):
        assert main(["build", str(recipe), *out, option]) == 2
        assert f"{option.partition('=')[0]} is for one release" in capsys.readouterr().err
    assert main(["build", str(TINYVEC), *out, "--nvcc", "a", "--nvcc", "b"]) == 2
    assert "a build of one release takes one --nvcc" in capsys.readouterr().err


def test_the_newest_installed_toolkit_comes_first(tmp_path: Path) -> None:
    for name in ("cuda-12.9", "cuda-12.10", "cuda-13.0"):
        (tmp_path / name / "bin").mkdir(parents=True)
        (tmp_path / name / "bin" / "nvcc").touch()
    (tmp_path / "cuda-11").mkdir()
    found = [str(one.nvcc and one.nvcc.parent.parent.name) for one in installed_toolkits(tmp_path)]
    assert found == ["cuda-13.0", "cuda-12.10", "cuda-12.9"]
