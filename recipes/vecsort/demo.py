"""Install vecsort's wheels in a new environment and run it: ``demo.py WHEELS [ENVIRONMENT]``.

With a GPU, the plugin is the one that the core asks for; without one, all plugins are installed, so
that the doctor can say which of them would serve which GPU. Nothing is downloaded.
"""
# ruff: noqa: INP001 (a script, no part of a package)

from __future__ import annotations

import argparse
import json
import shlex
import subprocess  # noqa: TID251 (a script for users, who may have no archsplit)
import sys
import venv
from pathlib import Path
from typing import Any

NAME = "vecsort"
EXPLAIN = f"from {NAME}._archsplit import explain; print(explain().as_json())"


def main() -> int:
    """Return what ``python -m vecsort`` exits with."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheels", type=Path, help="the folder that archsplit built them into")
    parser.add_argument("environment", type=Path, nargs="?", default=Path("demo"))
    asked = parser.parse_args()
    if not any(asked.wheels.glob(f"{NAME}-*.whl")):
        parser.error(f"{asked.wheels} has no wheel of {NAME}")
    if not may_be_replaced(asked.environment):
        parser.error(f"{asked.environment} is neither empty nor an environment; name another place")
    venv.create(asked.environment, clear=True, with_pip=True)
    python = asked.environment.absolute() / "bin" / "python"
    pip_install(python, asked.wheels, NAME)
    pip_install(python, asked.wheels, fitting_requirement(explanation(python)))
    return run(python, "-m", NAME)


def may_be_replaced(environment: Path) -> bool:
    """Return True if this script can make the whole content of a folder again."""
    if not environment.is_dir():
        return not environment.exists()
    return (environment / "pyvenv.cfg").is_file() or not any(environment.iterdir())


def pip_install(python: Path, wheels: Path, requirement: str) -> None:
    """Install from a folder of wheels; if that fails, leave with its status."""
    options = ["--quiet", "--disable-pip-version-check", "--no-index", "--find-links", str(wheels)]
    status = run(python, "-m", "pip", "install", *options, requirement)
    if status != 0:
        sys.exit(status)


def explanation(python: Path) -> dict[str, Any]:
    """Return the doctor's report of the installed core."""
    command = [str(python), "-c", EXPLAIN]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout  # noqa: S603 (our own environment's Python)
    content: dict[str, Any] = json.loads(output)
    return content


def fitting_requirement(content: dict[str, Any]) -> str:
    """Return the requirement for the machine's first GPU: ``vecsort[sm90]==1.0.0``."""
    for device in content["devices"]:
        if device["served"]["command"] is not None:
            return shlex.split(device["served"]["command"])[-1]
    return f"{NAME}[all]=={content['version']}"


def run(python: Path, *arguments: str) -> int:
    """Run the environment's Python, say so, and return its exit status."""
    command = [str(python), *arguments]
    sys.stderr.write(f"$ {shlex.join(command)}\n")
    return subprocess.run(command, check=False).returncode  # noqa: S603 (our own environment's Python)


if __name__ == "__main__":
    sys.exit(main())
