"""A second environment with the files of this Python's, and runs of operations in it.

The files are hard links: `archsplit slim` writes new files and never into one that is there, so the
environment of this Python stays as it is.
"""

from __future__ import annotations

import base64
import csv
import io
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archsplit.system.fs import sha256

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PROGRAM = Path(__file__).with_name("operations_on_gpu.py")
FRAMEWORKS = ("torch", "cupy", "jax")
_FRAMEWORK_FOLDERS = frozenset(
    [
        "nvidia",
        "torch",
        "torchvision",
        "cupy",
        "cupyx",
        "cupy_backends",
        "jax",
        "jaxlib",
        "jax_plugins",
        "jax_cuda13_plugin",
        "jax_cuda12_plugin",
    ]
)
_POLL = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationsRun:
    """The results of one process, by operation; ``summary`` is empty if the process died."""

    results: Mapping[str, str] = field(repr=False)
    libraries: Mapping[str, tuple[str, ...]] = field(repr=False)
    summary: Mapping[str, Any] = field(repr=False)
    code: int
    complaints: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuEnvironment:
    """A folder that is an environment of Python."""

    folder: Path

    @property
    def python(self) -> Path:
        """The program."""
        return self.folder / "bin" / "python3"

    @property
    def site(self) -> Path:
        """The site-packages folder."""
        version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        return self.folder / "lib" / version / "site-packages"

    def libraries(self) -> list[Path]:
        """Return all shared libraries."""
        return sorted(self.site.rglob("*.so*"))

    def distribution(self, name: str) -> Path:
        """Return the ``.dist-info`` folder of a package."""
        return next(self.site.glob(f"{name}-*.dist-info"))

    def record_paths(self, info: Path) -> list[str]:
        """Return the files that a ``.dist-info`` folder lists, without byte code and programs."""
        with (info / "RECORD").open(newline="") as file:
            paths = [row[0] for row in csv.reader(file) if row]
        return [path for path in paths if not path.startswith("..") and "__pycache__" not in path]

    def make_python(self) -> None:
        """Make what ``python -m venv`` makes, without its copy of pip."""
        self.python.parent.mkdir(parents=True)
        base = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
        self.python.symlink_to(base)
        version = ".".join(map(str, sys.version_info[:3]))
        settings = (
            f"home = {base.parent}\ninclude-system-site-packages = false\nversion = {version}\n"
        )
        (self.folder / "pyvenv.cfg").write_text(settings)

    def digests(self) -> dict[str, str]:
        """Return the SHA-256 of all shared libraries."""
        paths = self.libraries()
        with ThreadPoolExecutor() as pool:
            values = pool.map(sha256, paths)
            return {
                str(path.relative_to(self.site)): one
                for path, one in zip(paths, values, strict=True)
            }

    def bytes_on_disk(self) -> int:
        """Return what ``du`` says, without the old files that an undo needs."""
        words = ["du", "-s", "--block-size=1", "--exclude=.archsplit-slim", str(self.site)]
        return int(
            subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()[0]
        )

    def variables(self) -> dict[str, str]:
        """Return the environment variables of processes that use it."""
        old, new = str(Path(sysconfig.get_path("purelib")).parents[2]), str(self.folder)
        variables = {name: value.replace(old, new) for name, value in os.environ.items()}
        for name in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"):
            variables.pop(name, None)
        return variables | {"PYTHONDONTWRITEBYTECODE": "1", "CUPY_CACHE_DIR": f"{new}/cupy-cache"}

    def pip_check(self) -> str:
        """Return what ``pip check`` prints."""
        done = subprocess.run(
            [self.python, "-m", "pip", "check"],
            env=self.variables(),
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        return f"{done.returncode} {done.stdout}"

    def run(self, framework: str, seconds: float, *words: str) -> OperationsRun:
        """Run operations of a framework in a new process."""
        command = [str(self.python), str(PROGRAM), "--framework", framework, *words]
        with subprocess.Popen(
            command,
            env=self.variables(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                output, errors = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                output, errors = process.communicate()
        rows = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        operations = [row for row in rows if "name" in row]
        return OperationsRun(
            results={row["name"]: row["result"] for row in operations},
            libraries={row["name"]: tuple(row["libraries"]) for row in operations},
            summary=next((row for row in rows if "mapped" in row), {}),
            code=process.returncode,
            complaints=errors[-2000:],
        )


def copy_environment(folder: Path) -> GpuEnvironment:
    """Make an environment of hard links to the site-packages folder of this Python."""
    environment = GpuEnvironment(folder=folder)
    environment.make_python()
    environment.site.parent.mkdir(parents=True)
    _copy_tree(Path(sysconfig.get_path("purelib")), environment.site)
    return environment


def _copy_tree(source: Path, target: Path) -> None:
    if subprocess.run(["cp", "-al", str(source), str(target)], check=False).returncode:
        # A file system without hard links, or a folder on another one.
        shutil.rmtree(target, ignore_errors=True)
        subprocess.run(["cp", "-a", str(source), str(target)], check=True)


def link_environment(folder: Path, original: GpuEnvironment) -> GpuEnvironment:
    """Make an environment whose frameworks can be changed; all else are symbolic links.

    Libraries find others by ``..``, which leads out of a linked folder: so frameworks are copies.
    """
    environment = GpuEnvironment(folder=folder)
    environment.make_python()
    environment.site.mkdir(parents=True)
    for path in original.site.iterdir():
        target = environment.site / path.name
        if path.name in _FRAMEWORK_FOLDERS:
            _copy_tree(path, target)
        elif path.name != ".archsplit-slim":
            target.symlink_to(path)
    return environment


def stored_wheel(environment: GpuEnvironment, distribution: str, folder: Path) -> Path:
    """Write the wheel of an installed distribution, without compression.

    Its RECORD lists the files as they are.
    """
    info = environment.distribution(distribution)
    # A wheel may have several tags, and each of them fits this machine.
    tag = next(
        line.partition(": ")[2]
        for line in (info / "WHEEL").read_text().splitlines()
        if line.startswith("Tag: ")
    )
    own = {"RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json"}
    names = [
        path
        for path in environment.record_paths(info)
        if path.removeprefix(f"{info.name}/") not in own
    ]
    path = folder / f"{info.name.removesuffix('.dist-info')}-{tag}.whl"
    rows = io.StringIO(newline="")
    record = csv.writer(rows, lineterminator="\n")
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            file = environment.site / name
            archive.write(file, name)
            digest = base64.urlsafe_b64encode(bytes.fromhex(sha256(file))).decode().rstrip("=")
            record.writerow((name, f"sha256={digest}", file.stat().st_size))
        record.writerow((f"{info.name}/RECORD", "", ""))
        archive.writestr(f"{info.name}/RECORD", rows.getvalue())
    return path


@dataclass(slots=True)
class TimedCommand:
    """A command with its seconds, its CPU seconds and its memory."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_bytes: int = 0
    output: str = field(default="", repr=False)
    code: int = 0


def run_archsplit(*words: str, cores: Iterable[int] = (), seconds: float = 300) -> TimedCommand:
    """Run archsplit, and measure it with all of its child processes."""
    result = TimedCommand()
    chosen = list(cores)
    prefix = ["taskset", "-c", ",".join(map(str, chosen))] if chosen else []
    before, start = os.times(), time.monotonic()
    command = [*prefix, sys.executable, "-m", "archsplit", *words]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        watcher = threading.Thread(target=_watch, args=(process, result))
        watcher.start()
        try:
            result.output = process.communicate(timeout=seconds)[0]
        except subprocess.TimeoutExpired:
            process.kill()
            result.output = process.communicate()[0]
        watcher.join()
    after = os.times()
    result.seconds = time.monotonic() - start
    result.cpu_seconds = sum(after[2:4]) - sum(before[2:4])
    result.code = process.returncode
    return result


def _watch(process: subprocess.Popen[str], result: TimedCommand) -> None:
    before = _memory_files()
    while process.poll() is None:
        memory = _own_memory(process.pid) + max(0, _memory_files() - before)
        result.peak_bytes = max(result.peak_bytes, memory)
        time.sleep(_POLL)


def _memory_files() -> int:
    """Return the bytes of all files in memory on this machine, which no process maps."""
    rows = Path("/proc/meminfo").read_text().splitlines()
    return next(int(row.split()[1]) * 1024 for row in rows if row.startswith("Shmem:"))


def _own_memory(root: int) -> int:
    """Return the memory of a process and its children, without the pages of any files."""
    parents: dict[int, int] = {}
    sizes: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            rows = dict(line.split(":", 1) for line in (path / "status").read_text().splitlines())
        except OSError:
            continue
        parents[int(path.name)] = int(rows["PPid"])
        sizes[int(path.name)] = int(rows.get("RssAnon", "0 kB").split()[0]) * 1024
    total = 0
    for number, size in sizes.items():
        current = number
        while current not in {0, root}:
            current = parents.get(current, 0)
        total += size if current == root else 0
    return total
