"""What a split wheel does on a machine with a GPU: run there by hand, with wheels made elsewhere.

    split_on_gpu.py toy FOLDER           the wheels of the split toy (tests/split/toyfat)
    split_on_gpu.py fat WHEEL            train with the original (or a slimmed) xgboost
    split_on_gpu.py xgboost FOLDER       the wheels of the split xgboost: core, cc80 and cc90

It needs nothing but pip, numpy and what xgboost requires. Each check runs in a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TRAIN = """
import hashlib, json, resource, sys, time
start = time.perf_counter()
import numpy, xgboost
imported = time.perf_counter()
random = numpy.random.default_rng(0)
data = random.normal(size=(20000, 20)).astype("float32")
label = (data[:, 0] * data[:, 1] + data[:, 2] > 0).astype("int32")
device = sys.argv[1]
# The first iteration brings the first kernels.
model = xgboost.XGBClassifier(device=device, n_estimators=1, tree_method="hist").fit(data, label)
first = time.perf_counter()
model = xgboost.XGBClassifier(device=device, n_estimators=40, max_depth=6, tree_method="hist").fit(data, label)
predicted = model.predict_proba(data)
print(json.dumps({
    "import": round(imported - start, 3), "first": round(first - start, 3),
    "accuracy": round(float((model.predict(data) == label).mean()), 4),
    "sha256": hashlib.sha256(predicted.tobytes()).hexdigest()[:16],
    "rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    "packs": sorted({line.split("/")[-2] for line in open("/proc/self/maps") if "device.pack" in line}),
}))
"""
TOY = """
import json, sys
import toyfat
found = {name: toyfat.run(name) for name in sys.argv[1].split(",")}
packs = sorted({line.split("/")[-2] for line in open("/proc/self/maps") if "device.pack" in line})
print(json.dumps({"results": found, "packs": packs}))
"""


def install(site: Path, wheels: list[Path]) -> Path:
    options = ["--quiet", "--no-deps", "--no-index", "--no-compile", "--target", str(site)]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, *map(str, wheels)], check=True
    )
    return site


def python(site: Path, code: str, *words: str, **environment: str) -> str:
    child = {**os.environ, "PYTHONPATH": str(site), **environment}
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, env=child, capture_output=True, text=True, check=False)
    lines = (done.stderr + done.stdout).strip().splitlines()
    return f"[{done.returncode}] " + " | ".join(line[:420] for line in lines[-4:])


def doctor(site: Path, package: str) -> str:
    command = [sys.executable, str(site / package / "_archsplit")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line.strip() for line in done.stdout.splitlines()]
    told = [
        line
        for line in lines
        if line.startswith(("device", "served", "not ", "to mend", "verdict"))
    ]
    return f"[{done.returncode}] " + " | ".join(told)


def only(folder: Path, *packs: str) -> list[Path]:
    wheels = sorted(folder.glob("*.whl"))
    return [
        each
        for each in wheels
        if each.name.split("-")[0].rpartition("_")[2] in packs
        or "_cc" not in each.name
        and "_ptx" not in each.name
        and "_rest" not in each.name
    ]


def toy(folder: Path, scratch: Path) -> None:
    for packs in (("cc90",), ("ptx",), ("cc80",), (), ("cc80", "cc90", "cc120", "ptx")):
        site = install(scratch / ("+".join(packs) or "core"), only(folder, *packs))
        for order in ("whole,linked", "linked,whole"):
            print(packs, order, python(site, TOY, order), flush=True)
        print(packs, doctor(site, "toyfat"), flush=True)
    site = scratch / "cc90"
    for more in (
        {"CUDA_MODULE_LOADING": "EAGER"},
        {"CUDA_VISIBLE_DEVICES": ""},
        {"ARCHSPLIT_STRICT": "1"},
    ):
        print(more, python(site, TOY, "whole,linked", **more), flush=True)
    print("strict, cc80", python(scratch / "cc80", TOY, "whole", ARCHSPLIT_STRICT="1"), flush=True)
    fork = "import os, toyfat\nassert toyfat.run('whole') == 0 if os.fork() else toyfat.run('linked') == 0\n"
    print("fork after import", python(site, fork), flush=True)
    pack = next(site.glob("toyfat_plugins/cuda/cc90/*.pack"))
    other = next((folder / "other").glob("*cc90*.whl"))
    install(scratch / "other", [other])
    pack.write_bytes(next((scratch / "other").glob("toyfat_plugins/cuda/cc90/*.pack")).read_bytes())
    print("other build", python(site, TOY, "whole"), flush=True)
    print("other build", doctor(site, "toyfat"), flush=True)


def xgboost(folder: Path, scratch: Path) -> None:
    for packs in (("cc90",), (), ("cc80",)):
        site = install(scratch / ("+".join(packs) or "core"), only(folder, *packs))
        for device in ("cpu", "cuda") if not packs else ("cuda",):
            for _ in range(2 if packs == ("cc90",) else 1):
                print(packs, device, python(site, TRAIN, device), flush=True)
        print(packs, doctor(site, "xgboost"), flush=True)


def main() -> None:
    what, place = sys.argv[1], Path(sys.argv[2])
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        if what == "fat":
            site = install(Path(scratch) / "fat", [place])
            for _ in range(2):
                print("fat", python(site, TRAIN, "cuda"), flush=True)
        else:
            {"toy": toy, "xgboost": xgboost}[what](place, Path(scratch))
    print(json.dumps({"what": what, "seconds": round(time.perf_counter() - start, 1)}))


if __name__ == "__main__":
    main()
