"""Programs in one file that PEX and shiv make from a core's wheel and the wheels of its packs."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from split_samples import PACKAGE, environment, fat_wheel, library, split

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.release.context import Effects

PROGRAM = """
import sys, toyfat, toyfat._archsplit
def main():
    toyfat._archsplit.require()
    print(*toyfat.sizes(), len(toyfat._archsplit.explain().candidates))
"""
LAYOUTS = {"zipapp": (), "loose": ("--layout", "loose"), "packed": ("--layout", "packed")}
LAYOUTS |= {"venv": ("--venv",), "venv copies": ("--venv", "--venv-site-packages-copies")}


@pytest.mark.download
def test_programs_of_pex_and_shiv_have_the_device_code(tmp_path: Path, effects: Effects) -> None:
    members: dict[str, Path | bytes] = {
        "toyfat/__init__.py": PACKAGE,
        "toyfat/lib/liba.so": library(tmp_path, "liba", 0),
    }
    out = split(fat_wheel(tmp_path / "fat", members), tmp_path / "out", effects)
    names = ("toyfat", "toyfat_cc80", "toyfat_cc90")
    wheels = [str(next(out.glob(f"{name}-1.0-*.whl"))) for name in names]
    place = tmp_path / "tools"
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    tools = place / "bin"
    install = (str(tools / "pip"), "install", "-q")
    subprocess.run([*install, "pex==2.105.2", "shiv==1.0.8"], check=True)
    source = tmp_path / "source"
    source.mkdir()
    (source / "program.py").write_text(PROGRAM)
    child = environment(tmp_path, "9.0")
    child |= {"PATH": os.defpath, "HOME": str(tmp_path)}
    child |= {"PEX_ROOT": str(tmp_path / "pex"), "SHIV_ROOT": str(tmp_path / "shiv")}
    programs = {}
    for layout, options in LAYOUTS.items():
        output = programs[layout] = tmp_path / f"{layout}.pex"
        command = [str(tools / "pex"), *wheels, "--no-transitive", "--no-pypi", *options]
        command += ["-D", str(source), "-m", "program:main", "-o", str(output)]
        subprocess.run(command, env=os.environ | child, check=True)
    programs["shiv"] = tmp_path / "program.pyz"
    command = [str(tools / "shiv"), "-q", "--no-deps", "--site-packages", str(source)]
    command += ["-e", "program:main", "-o", str(programs["shiv"]), *wheels]
    subprocess.run(command, env=os.environ | child, check=True)
    for name, program in programs.items():
        done = subprocess.run(
            [sys.executable, program], env=child, capture_output=True, text=True, check=False
        )
        assert (done.stdout, done.stderr) == ("8256 9280 10304 2\n", ""), name
