"""Wheels for another machine: the host code is cross-compiled, the device code is the same."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING

import pytest

from archsplit.cli.main import main
from archsplit.errors import ToolNotFoundError
from archsplit.nvcc.toolkit import find_host_tools
from archsplit.system.process import SubprocessRunner

if TYPE_CHECKING:
    from archsplit.nvcc.toolkit import Toolkit

TINYVEC = Path(__file__).parents[1] / "tinyvec"
OTHER = {"x86_64": "aarch64", "aarch64": "x86_64"}[platform.machine()]


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """The recipe with one target."""
    folder = Path(shutil.copytree(TINYVEC, tmp_path / "tinyvec"))
    text = (folder / "recipe.toml").read_text()
    text = text.replace('sass = ["sm_80", "sm_90"]\nptx = ["compute_90"]', 'sass = ["sm_80"]')
    (folder / "recipe.toml").write_text(text)
    return folder


def with_other_machine(toolkit: Toolkit, root: Path, runtime: Path | None) -> Path:
    """The toolkit of the tests in another folder, with the static runtime of another machine."""
    (root / "bin").mkdir(parents=True)
    for path in (*toolkit.root.iterdir(), *(toolkit.root / "bin").iterdir()):
        if path.name not in {"bin", "nvcc", "targets"}:
            (root / path.relative_to(toolkit.root)).symlink_to(path)
    # A copy: nvcc finds its toolkit beside itself, behind links.
    shutil.copy(toolkit.nvcc, root / "bin" / "nvcc")
    if runtime is not None:
        folder = root / "targets" / f"{OTHER}-linux" / "lib"
        folder.mkdir(parents=True)
        shutil.copy(runtime, folder / "libcudart_static.a")
    return root


@pytest.mark.nvcc
def test_cross_build_without_its_libraries_names_them(
    recipe: Path, toolkit: Toolkit, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = with_other_machine(toolkit, tmp_path / "cuda", None)
    out = tmp_path / "out"
    words = ["build", str(recipe), "--out", str(out), "--nvcc", str(root)]
    assert main([*words, "--machine", OTHER]) == 4
    err = capsys.readouterr().err
    assert f"has no libcudart_static.a for {OTHER} in targets/" in err
    assert not out.exists()
    text = (recipe / "recipe.toml").read_text()
    (recipe / "recipe.toml").write_text(f'{text}\n[link]\ncuda-libraries = ["cublas"]\n')
    assert main(["plan", str(recipe), "--nvcc", str(root), "--machine", OTHER]) != 0
    assert f"link.cuda-libraries can't be linked for {OTHER}" in capsys.readouterr().err


def test_cross_tools_have_the_machine_in_their_names(tmp_path: Path) -> None:
    environment = {"PATH": str(tmp_path), "CXX": "g++"}
    with pytest.raises(ToolNotFoundError) as caught:
        find_host_tools(environment, SubprocessRunner(), cross="aarch64")
    assert "aarch64-linux-gnu-g++" in str(caught.value)
    assert "apt-get install g++-aarch64-linux-gnu" in str(caught.value)


def download_runtime(folder: Path, toolkit: Toolkit) -> Path:
    """The static runtime of the other machine, from its wheel."""
    release = ".".join(toolkit.release.split(".")[:2])
    words = ["download", "--no-deps", "--only-binary=:all:", "--dest", str(folder), "--quiet"]
    platforms = [f"--platform=manylinux{tag}_{OTHER}" for tag in ("2014", "_2_17", "_2_28")]
    subprocess.run(
        [sys.executable, "-m", "pip", *words, *platforms, f"nvidia-cuda-runtime=={release}.*"],
        check=True,
    )
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [one for one in archive.namelist() if one.endswith("/libcudart_static.a")]
        return Path(archive.extract(name, folder))


@pytest.mark.nvcc
@pytest.mark.download
@pytest.mark.skipif(which(f"{OTHER}-linux-gnu-g++") is None, reason="needs a cross compiler")
def test_both_machines_have_the_same_device_code(
    recipe: Path, toolkit: Toolkit, tmp_path: Path
) -> None:
    runtime = download_runtime(tmp_path, toolkit)
    root = with_other_machine(toolkit, tmp_path / "cuda", runtime)
    out = tmp_path / "out"
    words = ("build", str(recipe), "--nvcc", str(root), "--quiet")
    digests: dict[str, set[str]] = {}
    for machine in (platform.machine(), OTHER):
        assert main([*words, "--machine", machine, "--out", str(out / machine)]) == 0
        assert main(["verify", "--release", "--no-install", str(out / machine)]) == 0
        manifest = json.loads((out / machine / "archsplit-manifest.json").read_text())
        (plugin,) = [one for one in manifest["wheels"] if one["role"] == "plugin"]
        assert plugin["file"].endswith(f"_{machine}.whl")
        digests[machine] = {one["sha256"] for one in plugin["images"]}
    assert digests[OTHER] == digests[platform.machine()] != set()
