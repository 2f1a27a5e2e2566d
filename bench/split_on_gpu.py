# ruff: noqa: INP001, S603, TID251 - a script, which starts programs to measure them
"""From import to the first kernel, on a machine with a GPU: folders with packages, in turn.

``python bench/split_on_gpu.py PROGRAM FOLDER…`` runs a program (``xgboost`` or ``cupy``) with each
folder first on its path, ten times in turn after two that don't count, and prints a row for each:
medians of the seconds of the import and until the end of the first kernels, the peak
of resident memory, and what the program computed, which has to be the same in all rows. Name the
folder with the original first: the others are printed as multiples of it.

With ``CUDA_VISIBLE_DEVICES`` set to a GPU's UUID the loader of a split package asks NVML; without,
it reads the kernel driver's files, if they are enough.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from typing import NamedTuple

ROUNDS, WARM = 10, 2

BEGIN = """
import hashlib, json, resource, time
begun = time.perf_counter()
"""
XGBOOST = """
import xgboost
imported = time.perf_counter()
import numpy
data = numpy.random.default_rng(7).random((20000, 20), dtype=numpy.float32)
matrix = xgboost.DMatrix(data, label=data[:, 0] + data[:, 1] * data[:, 2])
booster = xgboost.train({"device": "cuda", "max_depth": 6}, matrix, num_boost_round=1)
first = time.perf_counter()
booster = xgboost.train({"device": "cuda", "max_depth": 6}, matrix, num_boost_round=20)
found, place = booster.predict(matrix).tobytes(), xgboost.__file__
"""
CUPY = """
import cupy
imported = time.perf_counter()
data = cupy.arange(1 << 20, dtype=cupy.int64)[::-1] % 1009
sorted_ = cupy.sort(data)
cupy.cuda.Device().synchronize()
first = time.perf_counter()
import os
os.environ["CUPY_ACCELERATORS"] = "cub"
sums = cupy.cumsum(sorted_)
draws = cupy.random.default_rng(7).binomial(100, 0.3, 100000)
order = cupy.lexsort(cupy.stack((data, sorted_)))
found = b"".join(each.get().tobytes() for each in (sorted_, sums, order, draws))
place = cupy.__file__
"""
END = """
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
result = hashlib.sha256(found).hexdigest()[:16]
print(json.dumps([imported - begun, first - begun, peak, result, place]))
"""
PROGRAMS = {"xgboost": BEGIN + XGBOOST + END, "cupy": BEGIN + CUPY + END}


class Run(NamedTuple):
    """A run: seconds to the import and to the first kernels' end, peak MB, result, place."""

    imported: float
    first: float
    peak: float
    result: str
    place: str


def measured(program: str, folder: str) -> Run:
    """Run a program with a folder before all others."""
    path = os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH", ""))))
    done = subprocess.run(
        (sys.executable, "-c", PROGRAMS[program]),
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{program} with {folder} failed:\n{done.stdout}{done.stderr}")
    sys.stderr.write(done.stderr)
    return Run(*json.loads(done.stdout.splitlines()[-1]))


def middle(runs: list[Run]) -> tuple[float, float, float]:
    """Return the medians of the measurements."""
    return (
        statistics.median(one.imported for one in runs),
        statistics.median(one.first for one in runs),
        statistics.median(one.peak for one in runs),
    )


def main(program: str, folders: list[str]) -> None:
    """Run all in turn, and print the table."""
    runs: dict[str, list[Run]] = {each: [] for each in folders}
    for number in range(WARM + ROUNDS):
        for folder in folders:
            found = measured(program, folder)
            if number >= WARM:
                runs[folder].append(found)
    lines = [f"{program}, medians of {ROUNDS}; import s, to the first kernels s, peak MB, result"]
    base = middle(runs[folders[0]])
    for ran in runs.values():
        ours = middle(ran)
        times = " ".join(f"{a / b:5.3f}x" for a, b in zip(ours, base, strict=True))
        results = ",".join(sorted({one.result for one in ran}))
        numbers = f"{ours[0]:6.3f} {ours[1]:6.3f} {ours[2]:7.1f}"
        lines.append(f"{numbers}  {times}  {results}  {ran[0].place}")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
