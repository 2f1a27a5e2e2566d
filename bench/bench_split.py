# ruff: noqa: INP001, S603, TID251 - a script, which starts programs to measure them
"""Split a wheel, against slimming it; and what the loader costs when a core is imported.

``python bench/bench_split.py WHEEL [ROUNDS]`` prints a table: wall and CPU seconds of `split` and
`slim` (the best of all rounds, in turn) and once of `wheel unpack` and `wheel pack`. Below it are
two limits: the seconds to read and write the wheel's bytes once, and the seconds that ISA-L takes
to deflate its content, divided by the cores (``taskset -c 0,1`` before the command leaves two).
Then medians of what happens in a new process: the loader's own time with ten packs installed, from
opening it to its return, and the import of its Python face beside an empty package's. The wheel's
first fat library is the one that is loaded; the machine needs no GPU, and where NVML is there the
loader asks it. ``split_on_gpu.py`` has the rest.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from bench_slim import repacked
from isal import isal_zlib
from program_usage import Run, run

PACKS = 10
TRIES = 15
PIECE = 4 << 20
MOST_TIMES_SLIM, MOST_LOADER_MS, MOST_FACE_MS = 2.0, 3.0, 5.0

LOADER = """
import ctypes, sys, time
library, folder, stub = sys.argv[1:]
sys.path.insert(0, folder)
ctypes.CDLL(library)
begun = time.perf_counter()
loader = ctypes.CDLL(f"{folder}/libarchsplit_loader.so")
loader.archsplit_graft(folder.encode(), stub.encode())
print(time.perf_counter() - begun)
"""
IMPORT = """
import sys, time
sys.path.insert(0, sys.argv[1])
begun = time.perf_counter()
__import__(sys.argv[2])
print(time.perf_counter() - begun)
"""


def split(wheel: Path, out: Path) -> Run:
    """Split a wheel, with all checks."""
    return run("archsplit", "split", str(wheel), "--out", str(out))


def slim(wheel: Path, out: Path) -> Run:
    """Slim a wheel, with all checks."""
    return run("archsplit", "slim", str(wheel), "--device", "9.0", "--out", str(out))


def in_turn(wheel: Path, rounds: int, folder: Path) -> dict[str, Run]:
    """Return the best of each; the output of `split` stays in ``folder``."""
    best: dict[str, Run] = {}
    for _ in range(rounds):
        for name, verb in (("slim", slim), ("split", split)):
            shutil.rmtree(folder / name, ignore_errors=True)
            took = verb(wheel, folder / name)
            best[name] = min(took, best.get(name, took), key=lambda one: one.wall)
    return best


def copy_seconds(wheel: Path, folder: Path) -> float:
    """Read and write the bytes of the wheel once."""
    begun = time.perf_counter()
    # Through the program, as the bytes that a split changes: not by a call that clones a file.
    with wheel.open("rb") as source, (folder / "copy").open("wb") as target:
        shutil.copyfileobj(source, target, PIECE)
    (folder / "copy").unlink()
    return time.perf_counter() - begun


def deflate_seconds(wheel: Path) -> float:
    """Deflate the wheel's content by ISA-L in pieces; divide the seconds by the cores."""
    seconds = 0.0
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            with archive.open(name) as member:
                while piece := member.read(PIECE):
                    begun = time.thread_time()
                    isal_zlib.compress(piece, 2)
                    seconds += time.thread_time() - begun
    return seconds / len(os.sched_getaffinity(0))


def installed(wheels: Path, site: Path) -> tuple[Path, Path]:
    """Install a core and ten packs; return the library and the folder of the loader package."""
    report = json.loads((wheels / "archsplit-report.json").read_text())
    for wheel in report["wheels"]:
        with zipfile.ZipFile(wheels / wheel["file"]) as archive:
            archive.extractall(site)
    (face,) = site.glob("*/_archsplit")
    (packs,) = site.glob("*_plugins/cuda")
    there = sorted(packs.iterdir())
    for number in range(PACKS - len(there)):
        shutil.copytree(there[number], packs / f"{there[number].name}-{number}")
    return site / report["split"]["libraries"][0]["name"], face


def quiet_stub(library: Path, face: Path) -> str:
    """Replace the library's stub with one that makes no calls, and return the stub's name."""
    stubs = [path for path in face.glob("libarchsplit_*.so") if "loader" not in path.name]
    (name,) = (path.name for path in stubs if path.name.encode() in library.read_bytes())
    words = ("-shared", "-x", "c", "/dev/null", f"-Wl,-soname,{name}", "-o", str(face / name))
    subprocess.run(("gcc", *words), check=True)
    return name


def milliseconds(code: str, *words: str) -> float:
    """Return the median of the numbers that new processes print, in milliseconds."""
    argv = (sys.executable, "-c", code, *words)
    times = [
        float(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)
        for _ in range(TRIES)
    ]
    return 1e3 * statistics.median(times)


def loader_time(wheels: Path, folder: Path) -> float:
    """Return the loader's own time, in a process that has the library already."""
    library, face = installed(wheels, folder)
    return milliseconds(LOADER, str(library), str(face), quiet_stub(library, face))


def face_times(folder: Path) -> tuple[float, float]:
    """Time the import of an empty package, and of one whose only content is the face."""
    for name in ("empty", "faced"):
        (folder / name / "inner").mkdir(parents=True)
        (folder / name / "__init__.py").write_text("")
        (folder / name / "inner" / "__init__.py").write_text("")
    (face,) = folder.glob("*/_archsplit")
    shutil.copytree(face, folder / "faced" / "inner", dirs_exist_ok=True)
    return tuple(milliseconds(IMPORT, str(folder), f"{name}.inner") for name in ("empty", "faced"))  # type: ignore[return-value]


def main(wheel: Path, rounds: int = 3) -> None:
    """Measure, and print the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        took = in_turn(wheel, rounds, folder)
        copied, deflated = copy_seconds(wheel, folder), deflate_seconds(wheel)
        with tempfile.TemporaryDirectory() as other:
            unpacked, _ = repacked(wheel, Path(other))
        loader = loader_time(folder / "split", folder / "site")
        empty, faced = face_times(folder / "site")
    lines = [f"{wheel.name}, {wheel.stat().st_size / 1e6:.1f} MB, best of {rounds}"]
    lines.append(f"{'':20} {'wall s':>8} {'CPU s':>8} {'MB peak':>8}")
    for verb, one in took.items():
        lines.append(f"archsplit {verb:10} {one.wall:8.2f} {one.cpu:8.2f} {one.memory:8.0f}")
    lines.append(f"{'wheel unpack, pack':20} {unpacked.wall:8.2f} {unpacked.cpu:8.2f}")
    cores = len(os.sched_getaffinity(0))
    limits = (
        f"read and write once {copied:.2f} s; deflate by ISA-L on {cores} cores {deflated:.2f} s"
    )
    lines.append(f"limits: {limits}")
    times = took["split"].wall / took["slim"].wall
    lines.append(f"split takes {times:.2f} times as long as slim; goal: {MOST_TIMES_SLIM:.1f}")
    lines.append(f"loader, {PACKS} packs: {loader:.2f} ms; goal: {MOST_LOADER_MS:.0f}")
    over = f"{faced - empty:.2f} ms over an empty package's {empty:.2f}"
    lines.append(f"import of the face: {over}; goal: {MOST_FACE_MS:.0f}")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
