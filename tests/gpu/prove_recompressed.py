"""Measure on a GPU what the compression of device code costs when a library is loaded.

Made on a machine with archsplit, from the wheel of xgboost or cupy, for one kind of GPU:

    python tests/gpu/prove_recompressed.py --prepare xgboost-3.2.0-*.whl 9.0 xgboost.tar.xz

The archive has the split of the wheel four times: with the vendor's images, uncompressed, and as
zstd frames of levels 9 and 19. On the machine with the GPU, ``python
tests/gpu/prove_recompressed.py xgboost.tar.xz`` runs each of them in new processes, in turn, and
compares the results. For xgboost it needs the driver and Python, and nothing else; for cupy also
NumPy.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from statistics import median
from typing import Any

ROUNDS = 7
VARIANTS = {"vendor": None, "uncompressed": 9, "zstd 9": 9, "zstd 19": 19}

_USE = """
usage = dict(row.split(":", 1) for row in open("/proc/self/status") if ":" in row)
print(json.dumps({
    "load": loaded - start, "first": first - loaded,
    "peak": int(usage["VmHWM"].split()[0]) / 1024,
    "anonymous": int(usage["RssAnon"].split()[0]) / 1024,
    "packs": sorted({row.split("/")[-2] for row in open("/proc/self/maps") if "device.p" in row}),
    "result": result.hexdigest(),
}))
"""
PROGRAMS = {
    "xgboost": """
import array, ctypes, glob, hashlib, json, random, sys, time
start = time.perf_counter()
library = ctypes.CDLL(glob.glob(sys.argv[1] + "/xgboost/lib/libxgboost.so")[0])
loaded = time.perf_counter()
library.XGBGetLastError.restype = ctypes.c_char_p
def call(name, *words):
    if getattr(library, name)(*words):
        raise SystemExit(name + ": " + library.XGBGetLastError().decode())
rows, columns = 20000, 20
numbers = random.Random(0)
data = array.array("f", (numbers.gauss(0, 1) for _ in range(rows * columns)))
labels = array.array("f", (data[i * columns] * data[i * columns + 1] > 0 for i in range(rows)))
def pointer(values):
    return (ctypes.c_float * len(values)).from_buffer(values)
matrix, booster = ctypes.c_void_p(), ctypes.c_void_p()
call("XGDMatrixCreateFromMat", pointer(data), ctypes.c_uint64(rows), ctypes.c_uint64(columns),
     ctypes.c_float(float("nan")), ctypes.byref(matrix))
call("XGDMatrixSetFloatInfo", matrix, b"label", pointer(labels), ctypes.c_uint64(rows))
call("XGBoosterCreate", ctypes.byref(matrix), ctypes.c_uint64(1), ctypes.byref(booster))
for name, value in ((b"device", b"cuda"), (b"tree_method", b"hist"), (b"max_depth", b"6"),
                    (b"objective", b"binary:logistic"), (b"seed", b"0")):
    call("XGBoosterSetParam", booster, name, value)
loaded_data = time.perf_counter()
call("XGBoosterUpdateOneIter", booster, 0, matrix)
first = time.perf_counter() - (loaded_data - loaded)
for number in range(1, 40):
    call("XGBoosterUpdateOneIter", booster, number, matrix)
shape, dimensions = ctypes.POINTER(ctypes.c_uint64)(), ctypes.c_uint64()
values = ctypes.POINTER(ctypes.c_float)()
config = b'{"type":0,"training":false,"iteration_begin":0,"iteration_end":0,"strict_shape":false}'
call("XGBoosterPredictFromDMatrix", booster, matrix, config, ctypes.byref(shape),
     ctypes.byref(dimensions), ctypes.byref(values))
result = hashlib.sha256(ctypes.string_at(values, 4 * rows))
"""
    + _USE,
    "cupy": """
import hashlib, json, sys, time
import numpy
values = numpy.random.default_rng(0).normal(size=1 << 20)
sys.path.insert(0, sys.argv[1])
start = time.perf_counter()
import cupy
loaded = time.perf_counter()
ordered = cupy.sort(cupy.asarray(values))
cupy.cuda.runtime.deviceSynchronize()
first = time.perf_counter()
result = hashlib.sha256(cupy.asnumpy(ordered).tobytes())
result.update(cupy.asnumpy(cupy.argsort(cupy.asarray(values))).tobytes())
"""
    + _USE,
}


def say(*words: object) -> None:
    print(*words, flush=True)  # noqa: T201 - the report


def prepare(wheel: Path, device: str, archive: Path) -> None:
    """Split a wheel four times, and write all of them into one archive."""
    # The machine with the GPU has no archsplit.
    target: Any = importlib.import_module("archsplit.arch.target")
    context: Any = importlib.import_module("archsplit.release.context")
    terminal: Any = importlib.import_module("archsplit.system.terminal")
    model: Any = importlib.import_module("archsplit.split.model")
    split: Any = importlib.import_module("archsplit.split.split")
    stored: Any = importlib.import_module("archsplit.split.stored_images")
    effects = context.Effects(progress=terminal.SilentProgress(), environment=os.environ)
    targets = (target.Target.parse(f"sm_{device.replace('.', '')}"),)
    compress, files = stored.recompress_images, dict[str, Path]()
    with tempfile.TemporaryDirectory() as name:
        for variant, level in VARIANTS.items():
            stored.recompress_images = _plain if variant == "uncompressed" else compress
            out, site = Path(name, "out", variant), Path(name, "sites", variant)
            request = model.SplitRequest(source=wheel, out=out, targets=targets, recompress=level)
            split.split_wheel(request, effects)
            for path in out.glob("*.whl"):
                with zipfile.ZipFile(path) as members:
                    members.extractall(site)
            sizes = {path.name.split("-")[0]: path.stat().st_size for path in out.glob("*.whl")}
            say(variant, {key: f"{size / 1e6:.1f} MB" for key, size in sizes.items()})
            # Equal files once: four libraries wouldn't fit.
            for path in filter(Path.is_file, site.rglob("*")):
                same = files.setdefault(hashlib.sha256(path.read_bytes()).hexdigest(), path)
                if same != path:
                    path.unlink()
                    path.hardlink_to(same)
        with tarfile.open(archive, "w:xz", preset=6) as packed:
            packed.add(Path(name, "sites"), ".")


def _plain(images: Any, *, level: int) -> list[Any]:  # noqa: ANN401 - a sequence of pairs
    """Return the images uncompressed, in place of `recompress_images`."""
    recompress: Any = importlib.import_module("archsplit.devicecode.recompress")
    results = recompress.recompress_images(images, level=level)
    made = []
    for (container, entry), result in zip(images, results, strict=True):
        if result.form is None:
            made.append(result)
            continue
        raw = recompress.decompress(entry, container.payload(entry))
        head = bytearray(result.content[: entry.header_size])
        padding = bytes(-len(raw) % 8)
        flags = int.from_bytes(head[40:48], "little") & ~0xA000
        head[8:20] = (len(raw) + len(padding)).to_bytes(8, "little") + bytes(4)
        head[40:48], head[56:64] = flags.to_bytes(8, "little"), bytes(8)
        content = bytes(head) + raw + padding
        digest = hashlib.sha256(content).digest()
        made.append(recompress.ImageResult(content=content, digest=digest, form=result.form))
    return made


def drop_pages(folder: Path) -> None:
    """Take all files of a folder out of the page cache."""
    for path in filter(Path.is_file, folder.rglob("*")):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def run(site: Path, program: str) -> dict[str, Any]:
    environment = {**os.environ, "CUDA_CACHE_DISABLE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", program, str(site)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{site.name}: {done.stdout[-500:]}{done.stderr[-1500:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(folder: Path) -> int:
    """Print a row for each variant; exit with 1 if results differ."""
    sites = {name: folder / name for name in VARIANTS}
    package = next(name for name in PROGRAMS if (sites["vendor"] / name).is_dir())
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in VARIANTS}
    cold: dict[str, list[dict[str, Any]]] = {name: [] for name in VARIANTS}
    run(sites["vendor"], PROGRAMS[package])
    for _ in range(ROUNDS):
        for name, site in sites.items():
            # Hard links share pages, so the library is cold only in the first of its runs.
            drop_pages(folder)
            cold[name].append(run(site, PROGRAMS[package]))
            runs[name].append(run(site, PROGRAMS[package]))
    say(f"| {package} | pack MB | load | first kernel | cold load | first kernel | peak | own MB |")
    say("|---|" + "---|" * 7)
    for name, site in sites.items():
        size = sum(path.stat().st_size for path in site.rglob("device.pack")) / 1e6
        figures = [
            f"{median(each[key] for each in found):.3f} s"
            for found in (runs[name], cold[name])
            for key in ("load", "first")
        ]
        memory = [f"{median(e[key] for e in runs[name]):.0f}" for key in ("peak", "anonymous")]
        say("| " + " | ".join([name, f"{size:.1f}", *figures, *memory]) + " |")
    everything = [one for found in (*runs.values(), *cold.values()) for one in found]
    packs, results = (
        {str(one["packs"]) for one in everything},
        {one["result"] for one in everything},
    )
    say(f"packs: {packs}; {len(everything)} runs, {len(results)} different results")
    return int(len(results) != 1)


def main() -> int:
    """Prepare, or measure."""
    if sys.argv[1] == "--prepare":
        prepare(Path(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
        return 0
    with tempfile.TemporaryDirectory() as name:
        with tarfile.open(sys.argv[1]) as packed:
            packed.extractall(name)
        return measure(Path(name))


if __name__ == "__main__":
    sys.exit(main())
