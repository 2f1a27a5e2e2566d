# ruff: noqa: S603, TID251 - a script, which starts programs
"""Build archsplit's own release, check it, and use it as the README does.

    python tools/check_release.py [--out DIR] [--version VERSION] [--repository NAME] [--no-use]

The source distribution is built from the tree, and the wheel from the source distribution; both
twice, with the same bytes. `twine check --strict` and `check-wheel-contents` read them. Then the
wheel is installed into a new environment, and the commands below "Try it" in the README run there:
they download a wheel of 130 MB. `nox -s package` installs the programs and runs this script.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[1]
OWN_INSTALL = "pip install archsplit"
"""Line of the README that the built wheel replaces."""
OWN_ADDRESS = re.compile(r"\bgithub(?:usercontent)?\.com/([\w.-]+/archsplit)\b")


def run(*argv: str | Path, cwd: Path = ROOT, env: dict[str, str] | None = None) -> None:
    """Run a program, and show what it prints; end the script if it fails."""
    print("+", *argv, flush=True)
    done = subprocess.run(argv, cwd=cwd, env=env, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{argv[0]} failed with exit status {done.returncode}")


def build(out: Path) -> dict[str, str]:
    """Build the release into a folder; return the SHA-256 of each file."""
    out.mkdir(parents=True)
    # Without --wheel and --sdist, the wheel is built from the unpacked source distribution.
    run(sys.executable, "-m", "build", "--outdir", out)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in out.iterdir()}


def read_commands(text: str) -> str:
    """Return the commands below "Try it" in the README."""
    part = re.search(r"^## Try it$(.*?)^## ", text, re.DOTALL | re.MULTILINE)
    blocks = re.findall(r"^```sh\n(.*?)^```$", part[1] if part else "", re.DOTALL | re.MULTILINE)
    if not blocks or OWN_INSTALL not in blocks[0]:
        raise SystemExit(f'README.md has no commands with "{OWN_INSTALL}" below "Try it"')
    return "".join(blocks)


def check_repository(root: Path, repository: str) -> None:
    """End the script if a file names another repository on GitHub than the one that releases.

    The package index shows these addresses, and trusted publishing compares the repository.
    """
    wrong = {
        f"{name} has github.com/{found}"
        for name in ("pyproject.toml", "README.md")
        for found in OWN_ADDRESS.findall((root / name).read_text())
        if found.lower() != repository.lower()
    }
    if wrong:
        raise SystemExit(
            f"{'; '.join(sorted(wrong))}, expected github.com/{repository}\n"
            f"hint: write {repository} there, or release from the other repository"
        )


def use(wheel: Path, folder: Path) -> None:
    """Install the wheel into a new environment, and run the README's commands there."""
    environment = folder / "venv"
    run(sys.executable, "-m", "venv", environment)
    programs = environment / "bin"
    script = read_commands((ROOT / "README.md").read_text())
    script = script.replace(OWN_INSTALL, f"pip install '{wheel}'")
    # The README installs the core and its pack into an environment of their own.
    user = "try/bin/python" if "try/bin/" in script else "python"
    script += "python -c 'import archsplit; print(archsplit.__file__)'\n"
    script += f"{user} -c 'import xgboost; print(xgboost.__file__)'\n"
    hidden = ("PYTHONPATH", "VIRTUAL_ENV")
    own = {name: text for name, text in os.environ.items() if name not in hidden}
    path = os.pathsep.join([str(programs), own.get("PATH", os.defpath)])
    job = folder / "job"
    job.mkdir()
    run("bash", "-euxo", "pipefail", "-c", script, cwd=job, env={**own, "PATH": path})


def main(words: Sequence[str] | None = None) -> None:
    """Build, check, use."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--out", type=Path, default=ROOT / "dist" / "package", metavar="DIR")
    parser.add_argument("--version", help="the version that the files must have, as in the tag")
    parser.add_argument(
        "--repository", metavar="OWNER/NAME", default=os.environ.get("GITHUB_REPOSITORY"),
        help="the repository on GitHub that releases (default: $GITHUB_REPOSITORY)",
    )  # fmt: skip
    parser.add_argument("--no-use", action="store_true", help="only build and check")
    arguments = parser.parse_args(words)
    out = arguments.out.resolve()
    # Before the long build: a wrong address is seen at once.
    if arguments.repository:
        check_repository(ROOT, arguments.repository)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        first, second = (build(folder / each) for each in ("first", "second"))
        if first != second:
            raise SystemExit(
                f"two builds differ: {sorted(set(first.items()) ^ set(second.items()))}"
            )
        files = sorted((folder / "first").iterdir())
        (wheel,) = (path for path in files if path.suffix == ".whl")
        if arguments.version and wheel.name.split("-")[1] != arguments.version:
            raise SystemExit(f"{wheel.name} is not version {arguments.version}, which the tag has")
        run(sys.executable, "-m", "twine", "check", "--strict", *files)
        run(sys.executable, "-m", "check_wheel_contents", wheel)
        if not arguments.no_use:
            use(wheel, folder)
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(folder / "first", out)
    for file, digest in sorted(first.items()):
        print(f"{digest}  {out / file}")


if __name__ == "__main__":
    main()
