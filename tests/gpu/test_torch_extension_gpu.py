"""docs/how-to/projects.md on a GPU: built, split, and used from its pack."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from source_roots import SOURCE_PATH

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]
PROJECT = ROOT / "docs" / "how-to" / "projects" / "torch"
RUN = "from archsplit.cli.{module} import {name}; {name}()"
USE = """
import sys, torch
import fastscale_torch
values = torch.arange(100_000, dtype=torch.float32, device="cuda")
fastscale_torch.scale_(values, 3.0)
assert torch.equal(values.cpu(), torch.arange(100_000, dtype=torch.float32) * 3.0)
print([line.split("/")[-2] for line in open("/proc/self/maps") if "device.pack" in line][:1])
"""


def launcher(path: Path, module: str, name: str) -> Path:
    """Write the console script that pip would install."""
    path.parent.mkdir(exist_ok=True)
    code = RUN.format(module=module, name=name)
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{code}" "$@"\n')
    path.chmod(0o755)
    return path


def run(
    folder: Path, environment: dict[str, str], *command: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_a_split_extension_runs_from_its_pack(tmp_path: Path) -> None:
    project = Path(shutil.copytree(PROJECT, tmp_path / "project"))
    archsplit = launcher(tmp_path / "bin" / "archsplit", "main", "entry_point")
    nvcc = launcher(tmp_path / "bin" / "archsplit-nvcc", "nvcc", "launcher")
    inherited = os.environ.get("PYTHONPATH", "")
    environment = {
        **os.environ,
        "PATH": f"{archsplit.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": f"{SOURCE_PATH}{os.pathsep}{inherited}",
        "PYTORCH_NVCC": str(nvcc),
        "TORCH_CUDA_ARCH_LIST": "8.0;9.0+PTX",
        "ARCHSPLIT_CACHE_DIR": str(tmp_path / "cache"),
    }
    build = (sys.executable, "setup.py", "-q", "bdist_wheel", "--dist-dir", "fat")
    done = run(project, environment, *build)
    assert done.returncode == 0, done.stdout + done.stderr
    (fat,) = (project / "fat").glob("*.whl")
    done = run(project, environment, str(archsplit), "split", str(fat), "--out", "dist")
    assert done.returncode == 0, done.stdout + done.stderr
    for packs, expected in ((["cc90"], "['cc90']"), ([], None)):
        site = tmp_path / f"site{len(packs)}"
        names = ["fastscale_torch-", *(f"fastscale_torch_{pack}-" for pack in packs)]
        for name in names:
            (wheel,) = (project / "dist").glob(f"{name}*.whl")
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(site)
        using = {**environment, "PYTHONPATH": f"{site}{os.pathsep}{environment['PYTHONPATH']}"}
        done = run(tmp_path, using, sys.executable, "-c", USE)
        if expected is None:
            assert done.returncode != 0
            assert "no kernel image is available" in done.stderr
        else:
            assert done.returncode == 0, done.stderr
            assert expected in done.stdout
