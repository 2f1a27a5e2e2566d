"""Install a recipe's core and packs, and run its kernels: ``run_on_gpu.py RECIPE WHEELS``.

In: the folder of a recipe that has a script ``…_on_gpu.py``, and the folder that ``archsplit
build`` wrote to. The wheels go into the environment of this script's Python. Without a GPU, the
core is imported and the kernels are left out; ``--gpu`` makes that a failure.
"""
# ruff: noqa: INP001 (a script, no part of a package)

from __future__ import annotations

import argparse
import json
import shlex
import subprocess  # noqa: TID251 (a script for users, who may have no archsplit)
import sys
import tempfile
from pathlib import Path
from typing import Any


def main() -> int:
    """Return 0 if the kernels ran, or if they could not and ``--gpu`` is not given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe", type=Path, help="a folder with a script …_on_gpu.py")
    parser.add_argument("wheels", type=Path, help="the folder that archsplit built them into")
    parser.add_argument("--gpu", action="store_true", help="fail without a GPU")
    asked = parser.parse_args()
    check = next(asked.recipe.absolute().glob("*_on_gpu.py"), None)
    if check is None:
        parser.error(f"{asked.recipe} has no script …_on_gpu.py")
    wheels = asked.wheels.absolute()
    core = find_core(wheels)
    if core is None:
        parser.error(f"{asked.wheels} has no archsplit-manifest.json with a core")
    package = core.name.split("-")[0]
    pip = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    # The file itself, so that pip takes no other wheel of that version.
    run(*pip, "--force-reinstall", "--no-deps", str(core))
    gpus = doctor_report(package)["devices"]
    if not gpus:
        run("-c", f"import {package}")
        sys.stdout.write(f"{package}: no GPU here: imported, and the kernels were left out\n")
        return 1 if asked.gpu else 0
    run("-m", f"{package}.doctor", "--install", "--find-links", str(wheels))
    run("-m", f"{package}.doctor")
    run(str(check))
    sys.stdout.write(f"{package}: the kernels ran on {gpus[0]['name']}\n")
    return 0


def find_core(wheels: Path) -> Path | None:
    """Return the core's wheel, as the manifest of the release names it."""
    manifest = wheels / "archsplit-manifest.json"
    if not manifest.is_file():
        return None
    content: dict[str, Any] = json.loads(manifest.read_text())
    files = [each["file"] for each in content["wheels"] if each["role"] == "core"]
    return wheels / files[0] if files else None


def doctor_report(package: str) -> dict[str, Any]:
    """Return the report of an installed core about this machine."""
    command = [sys.executable, "-m", f"{package}.doctor", "--json"]
    # Its exit status tells that packs are missing, which is so before their installation.
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, cwd=tempfile.gettempdir())  # noqa: S603 (our own Python)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def run(*arguments: str) -> None:
    """Run this Python outside of the project's folder; if that fails, leave with its status."""
    sys.stderr.write(f"$ {shlex.join(('python', *arguments))}\n")
    command = [sys.executable, *arguments]
    status = subprocess.run(command, check=False, cwd=tempfile.gettempdir()).returncode  # noqa: S603 (our own Python)
    if status != 0:
        sys.exit(status)


if __name__ == "__main__":
    sys.exit(main())
