"""Install vecsort's wheels, built elsewhere, on a machine with a GPU, and check what they do there.

``python tests/gpu/vecsort_on_gpu.py WHEELS`` prints what it did and exits with 1 if something is
wrong. It needs Python with pip, NumPy, and PyTorch or CuPy; no network and no compiler.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent

EXPLAIN = "from vecsort._archsplit import explain; print(explain().as_json())"
LOAD = "from vecsort._archsplit import load; load()"


class WrongError(Exception):
    """Something is not as it must be."""


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def require(condition: bool, text: str) -> None:
    if not condition:
        raise WrongError(text)


class Installed:
    """A folder with installed wheels, and a Python that sees it."""

    def __init__(self, wheels: Path, folder: Path, *requirements: str) -> None:
        self.folder = folder
        options = ["--quiet", "--no-index", "--find-links", str(wheels), "--target", str(folder)]
        command = [sys.executable, "-m", "pip", "install", *options, *requirements]
        say(f"$ {shlex.join(command)}")
        subprocess.run(command, check=True)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        paths = [str(self.folder), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        return subprocess.run(
            [sys.executable, *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    def explanation(self) -> dict[str, Any]:
        done = self.run("-c", EXPLAIN)
        require(done.returncode == 0, done.stdout)
        content: dict[str, Any] = json.loads(done.stdout)
        return content


def first_device(core: Installed) -> dict[str, Any]:
    content = core.explanation()
    require(bool(content["devices"]), f"no GPU found: {content['driver']['reason']}")
    device: dict[str, Any] = content["devices"][0]
    say(f"device 0 is {device['name']}, capability {device['served']['capability']}")
    return device


def refuses(installed: Installed, command: str, name: str) -> None:
    """Loading fails, and the message names the GPU and the command that helps."""
    done = installed.run("-c", LOAD)
    message = done.stdout.strip().splitlines()
    say("load() says:\n   " + "\n   ".join(message[-6:]))
    require(done.returncode != 0, "load() opened something")
    require("PluginNotFoundError" in done.stdout, "the error is not a PluginNotFoundError")
    require(command in done.stdout, f"the error doesn't say: {command}")
    require(name in done.stdout, f"the error doesn't name the {name}")


def wrong_plugin(capability: str) -> str:
    """The target of a plugin that doesn't run on the GPU: sm_80 where that is so."""
    return "sm75" if capability.startswith("8.") else "sm80"


def doctor_is_content(installed: Installed, device: dict[str, Any]) -> None:
    done = installed.run("-m", "vecsort.doctor")
    say(f"$ python -m vecsort.doctor\n{done.stdout}")
    require(done.returncode == 0, f"the doctor exits with {done.returncode}")
    require(device["name"] in done.stdout, f"the doctor doesn't name the {device['name']}")


def checks_pass(installed: Installed) -> None:
    done = installed.run("-m", "vecsort")
    say(f"$ python -m vecsort\n{done.stdout}")
    require(done.returncode == 0, f"python -m vecsort exits with {done.returncode}")
    done = installed.run(str(HERE / "vecsort_checks.py"))
    say(f"$ python {HERE.name}/vecsort_checks.py\n{done.stdout}")
    require(done.returncode == 0, "checks failed")


def check_wheels(wheels: Path, folder: Path) -> None:
    """Core without plugins, core with a plugin for another GPU, core with the right one.

    Raises:
        WrongError: something is not as it must be.
        CalledProcessError: pip can't install.
    """
    core = Installed(wheels, folder / "core", "vecsort")
    device = first_device(core)
    command = device["served"]["command"]
    require(command is not None, "the core doesn't say what to install")
    refuses(core, command, device["name"])
    other = f"vecsort[{wrong_plugin(device['served']['capability'])}]"
    refuses(Installed(wheels, folder / "other", other), command, device["name"])
    right = Installed(wheels, folder / "right", shlex.split(command)[-1])
    target = right.explanation()["devices"][0]["served"]["target"]
    require(target is not None, "the right plugin doesn't serve")
    say(f"{target} serves it")
    doctor_is_content(right, device)
    checks_pass(right)


def main() -> int:
    """Return 0 if all is right."""
    if len(sys.argv) != 2:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    with tempfile.TemporaryDirectory() as folder:
        try:
            check_wheels(Path(sys.argv[1]).absolute(), Path(folder))
        except (WrongError, subprocess.CalledProcessError) as error:
            say(f"FAILED: {error}")
            return 1
    say("all right")
    return 0


if __name__ == "__main__":
    sys.exit(main())
