"""Prove on a GPU that split CUDA packages compute the same bytes.

``python tests/gpu/prove_split.py --out FOLDER`` makes wheels of the CUDA packages that this Python
has, splits each of them, and installs the cores and this GPU's packs with pip into a new
environment. All other files of that environment are links to this one. The operations of both are
compared. No network is needed. ``--packages`` names some of the packages.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_environment import GpuEnvironment, run_archsplit, stored_wheel
from prove_mirror import PACKAGES, MirrorProof, link_others
from prove_unregistered import figures, parse

if TYPE_CHECKING:
    from collections.abc import Sequence

_AT_ONCE = 4
"""Splits that run at the same time: each has parts that one core does."""


class SplitProof(MirrorProof):
    """The steps: wheels, splits, installation, comparison."""

    def install_new(self, fat: GpuEnvironment) -> GpuEnvironment | None:
        """Return a new environment with the cores and packs, or None after an error."""
        wheels, splits = self.folder / "wheels", self.folder / "splits"
        wheels.mkdir()
        chosen = (self.arguments.packages or ",".join(PACKAGES)).split(",")
        names = [name for name in chosen if any(fat.site.glob(f"{name}-*.dist-info"))]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            paths = list(pool.map(partial(stored_wheel, fat, folder=wheels), names))
            made = list(pool.map(partial(self._split, splits), paths))
        new = GpuEnvironment(folder=self.folder / "new")
        new.make_python()
        if None in made or not self._pip_install_files(sorted(splits.glob("*/*.whl")), new):
            return None
        link_others(fat, new, [fat.distribution(name) for name in names])
        words = [str(new.python), "-m", "compileall", "-q", "-j", "0", str(new.site)]
        # Import times are compared, and pip compiled nothing.
        subprocess.run(words, env=new.variables(), check=False, capture_output=True)
        return new

    def _split(self, splits: Path, wheel: Path) -> Path | None:
        """Return the folder of a wheel's split, with only the packs of this GPU."""
        folder = splits / wheel.name.partition("-")[0]
        words = ("split", str(wheel), "--targets", self.arguments.device, "--out", str(folder))
        done = run_archsplit(*words, "--copy", seconds=self.left)
        self.say(f"{wheel.name}: {figures(done)}, {len(list(folder.glob('*.whl')))} wheels")
        if done.code:
            self.say(done.output[-500:])
        wheel.unlink()
        return None if done.code else folder

    def _pip_install_files(self, wheels: Sequence[Path], new: GpuEnvironment) -> bool:
        words = [sys.executable, "-m", "pip", "--python", str(new.python), "install", "-q"]
        words += ["--no-deps", "--no-index", "--no-compile", "--no-cache-dir"]
        words += ["--disable-pip-version-check", "--root-user-action=ignore", *map(str, wheels)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        self.say(
            f"pip install of {len(wheels)} wheels: exit {done.returncode} {done.stderr[-300:]}"
        )
        return done.returncode == 0


def main() -> int:
    """Prove it; exit with 1 if something differs."""
    arguments = parse(__doc__ or "")
    arguments.out.mkdir(parents=True, exist_ok=True)
    place: dict[str, Any] = {"prefix": "archsplit-proof-", "dir": Path(sys.prefix).parent}
    with tempfile.TemporaryDirectory(**place) as name:
        return 0 if SplitProof(arguments, Path(name)).prove() else 1


if __name__ == "__main__":
    sys.exit(main())
