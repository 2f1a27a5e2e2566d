"""pip and uv, with nothing but the index that they are given."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from warm_programs import run_pip


def environment() -> dict[str, str]:
    own = {name: text for name, text in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
    return {**own, "PIP_CONFIG_FILE": os.devnull}


def pip(url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    verb, *others = arguments
    options = ("--index-url", url, "--no-cache-dir", "--disable-pip-version-check")
    return run_pip((verb, *options, *others), environment())


def uv(url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    # It lies beside the interpreter of the tests' environment.
    program = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}")
    assert program is not None
    options = ("--index-url", url, "--no-cache", "--no-config", "--python", sys.executable)
    command = [program, "pip", arguments[0], *options, *arguments[1:]]
    return subprocess.run(
        command, env=environment(), capture_output=True, text=True, check=False, timeout=120
    )


def installed(folder: Path) -> set[str]:
    return {path.name.removesuffix(".dist-info") for path in folder.glob("*.dist-info")}
