"""Prove on a GPU that an environment installed from a mirror computes the same bytes.

``python tests/gpu/prove_mirror.py --out FOLDER`` makes wheels of the CUDA packages that this
Python has, mirrors them for the GPU, serves the mirror, and installs it with pip, by hash, into a
new environment. All other files of that environment are links to this one. The operations of both
are compared. No network is needed. ``--timings`` measures the commands afterwards.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomllib
from gpu_environment import GpuEnvironment, copy_environment, run_archsplit, stored_wheel
from prove_unregistered import Proof, figures, parse, results_of, timings

if TYPE_CHECKING:
    from gpu_environment import OperationsRun

PACKAGES = (
    "nvidia_cublas",
    "nvidia_cusparse",
    "nvidia_cusolver",
    "nvidia_curand",
    "nvidia_cufft",
    "nvidia_cudnn_cu13",
    "nvidia_cusparselt_cu13",
    "nvidia_nccl_cu13",
    "torch",
    "torchvision",
    "cupy_cuda13x",
    "jax_cuda13_pjrt",
    "jax_cuda13_plugin",
)
"""The packages that are mirrored, where this Python has them."""


class MirrorProof(Proof):
    """The steps: wheels, mirror, installation, comparison."""

    def prove(self) -> bool:
        """Compare the operations before and after; return True if nothing differs."""
        fat = copy_environment(self.folder / "fat")
        before_size = fat.bytes_on_disk()
        self.say(f"{before_size / 1e6:.0f} MB on disk")
        with ThreadPoolExecutor() as pool:
            # Beside the operations: wheels and mirror need only the processor.
            making = pool.submit(self.install_new, fat)
            runs = self.operations(fat, times=2)
            new = making.result()
        if new is None:
            return False
        first, again = map(results_of, runs)
        steady = {name: one for name, one in first.items() if again.get(name) == one}
        good = {name: one for name, one in steady.items() if not one.startswith("error")}
        same_check = new.pip_check() == fat.pip_check()
        self.say(f"pip check {'unchanged' if same_check else 'CHANGED: ' + new.pip_check()[:300]}")
        after_runs = self.operations(new)[0]
        after = results_of(after_runs)
        self._describe(runs[0], after_runs)
        different = sorted(name for name, one in good.items() if after.get(name) != one)
        self.say(
            f"{len(good) - len(different)} of {len(good)} give the same bytes;"
            f" DIFFERENT: {different}"[:600]
        )
        for name in different[:8]:
            self.say(f"  {name}: {after.get(name, 'missing')[:110]}")
        size = new.bytes_on_disk()
        self.say(f"du: {before_size / 1e6:.0f} -> {size / 1e6:.0f} MB")
        self.evidence |= {
            "machine": self._machine(),
            "du_before": before_size,
            "du_after": size,
            "steady": len(good),
            "equal": len(good) - len(different),
            "different": different,
        }
        self.keep()
        return same_check and bool(good) and not different

    def _describe(self, before: dict[str, OperationsRun], after: dict[str, OperationsRun]) -> None:
        for word, runs in (("before", before), ("after", after)):
            rows = []
            for name, one in runs.items():
                rest = {key: value for key, value in one.summary.items() if key != "mapped"}
                self.evidence[f"{word} {name}"] = rest
                rows.append(
                    f"{name} import {rest.get('import_seconds')} s,"
                    f" first {rest.get('first_seconds')} s"
                )
            self.say(f"  {word}: {'; '.join(rows)}")

    def install_new(self, fat: GpuEnvironment) -> GpuEnvironment | None:
        """Return a new environment with the packages of a mirror, or None after an error."""
        folder, wheels = self.folder / "mirror", self.folder / "wheels"
        wheels.mkdir()
        names = [name for name in PACKAGES if any(fat.site.glob(f"{name}-*.dist-info"))]
        with ThreadPoolExecutor(4) as pool:
            write = partial(stored_wheel, fat, folder=wheels)
            paths = list(pool.map(write, names))
            lock = wheels / "pylock.toml"
            lock.write_text(_lock_text(paths, list(pool.map(_digest, paths))))
        self.say(f"{len(paths)} wheels, {sum(map(_size, paths)) / 1e6:.0f} MB, not compressed")
        made = run_archsplit(
            *("mirror", str(lock), "--device", self.arguments.device, "--out", str(folder)),
            *("--unregistered", "zero", "--json"),
            seconds=self.left,
        )
        self.say(f"mirror: {figures(made)}")
        if made.code:
            self.say(made.output[-800:])
            return None
        # Deflated files of the mirror beside stored originals: only edited wheels say something.
        state = json.loads((folder / "archsplit-mirror.json").read_text())
        kept = [f"{one['name']}: {one['unchanged']}" for one in state["wheels"] if one["unchanged"]]
        self.say(f"  {len(state['wheels']) - len(kept)} edited; kept: {kept}"[:500])
        self.evidence["mirror"] = {
            one["name"]: [one["version"], one["edit"], one["unchanged"]] for one in state["wheels"]
        }
        new = GpuEnvironment(folder=self.folder / "new")
        new.make_python()
        if not self._pip_install(folder, new):
            return None
        link_others(fat, new, [fat.distribution(name) for name in names])
        words = [str(new.python), "-m", "compileall", "-q", "-j", "0", str(new.site)]
        # Import times are compared, and pip compiled nothing.
        subprocess.run(words, env=new.variables(), check=False, capture_output=True)
        return new

    def _pip_install(self, folder: Path, new: GpuEnvironment) -> bool:
        handler = partial(_QuietHandler, directory=str(folder))
        with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            words = [sys.executable, "-m", "pip", "--python", str(new.python), "install", "-q"]
            words += ["--no-deps", "--no-compile", "--no-cache-dir", "--require-hashes"]
            words += ["--disable-pip-version-check", "--root-user-action=ignore"]
            words += ["--index-url", f"http://127.0.0.1:{server.server_port}/"]
            words += ["-r", str(folder / "requirements.txt")]
            # The settings of this machine may name another index.
            variables = dict(os.environ) | {"TMPDIR": str(self.folder)}
            variables["PIP_CONFIG_FILE"] = os.devnull
            variables.pop("PYTHONPATH", None)
            done = subprocess.run(words, env=variables, capture_output=True, text=True, check=False)
            server.shutdown()
        self.say(
            f"pip install from the mirror: exit {done.returncode} {done.stderr[-300:].strip()}"
        )
        return done.returncode == 0


class _QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Write nothing."""


def _size(path: Path) -> int:
    return path.stat().st_size


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _lock_text(paths: list[Path], digests: list[str]) -> str:
    """Return a lock of wheels beside it, which nothing has to resolve."""
    lines = ['lock-version = "1.0"', 'created-by = "prove_mirror"']
    for path, digest in zip(paths, digests, strict=True):
        name, version = path.name.split("-")[:2]
        wheel = f'name = "{path.name}", path = "{path.name}", hashes = {{ sha256 = "{digest}" }}'
        lines += ["[[packages]]", f'name = "{name.replace("_", "-").lower()}"']
        lines += [f'version = "{version}"', f"wheels = [{{ {wheel} }}]"]
    text = "\n".join(lines) + "\n"
    tomllib.loads(text)
    return text


def link_others(fat: GpuEnvironment, new: GpuEnvironment, infos: list[Path]) -> None:
    """Link all files of the fat environment that belong to no mirrored package."""
    owned = {row for info in infos for row in fat.record_paths(info)}
    folders = {info.name for info in infos}
    for parent, _, files in os.walk(fat.site):
        place = Path(parent).relative_to(fat.site)
        if place.parts[:1] and place.parts[0] in folders:
            continue
        # Byte code is of the file beside its folder.
        source = place.parent if place.name == "__pycache__" else place
        for file in files:
            module = f"{file.partition('.')[0]}.py" if place.name == "__pycache__" else file
            if str(source / module) in owned or str(place / file) in owned:
                continue
            target = new.site / place / file
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                os.link(Path(parent, file), target, follow_symlinks=False)


def main() -> int:
    """Prove it; exit with 1 if something differs."""
    arguments = parse(__doc__ or "")
    arguments.out.mkdir(parents=True, exist_ok=True)
    place: dict[str, Any] = {"prefix": "archsplit-proof-", "dir": Path(sys.prefix).parent}
    with tempfile.TemporaryDirectory(**place) as name:
        proof = MirrorProof(arguments, Path(name))
        right = proof.prove()
        if arguments.timings:
            timings(proof)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
