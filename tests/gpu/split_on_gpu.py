"""Checks of a split wheel on a machine with a GPU: run by hand, with wheels made elsewhere.

    split_on_gpu.py toy FOLDER           the wheels of the split toy (tests/split/toyfat)
    split_on_gpu.py visible FOLDER       the same: CUDA_VISIBLE_DEVICES, and containers of two packs
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
options = {"device": device, "n_estimators": 40, "max_depth": 6, "tree_method": "hist"}
model = xgboost.XGBClassifier(**options).fit(data, label)
predicted = model.predict_proba(data)
print(json.dumps({
    "import": round(imported - start, 3), "first": round(first - start, 3),
    "accuracy": round(float((model.predict(data) == label).mean()), 4),
    "sha256": hashlib.sha256(predicted.tobytes()).hexdigest()[:16],
    "rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    "packs": sorted({l.split("/")[-2] for l in open("/proc/self/maps") if "device.pack" in l}),
}))
"""
TOY = """
import json, sys
import toyfat
found = {name: toyfat.run(name) for name in sys.argv[1].split(",")}
packs = sorted({line.split("/")[-2] for line in open("/proc/self/maps") if "device.pack" in line})
print(json.dumps({"results": found, "packs": packs}))
"""


def say(*words: object) -> None:
    print(*words, flush=True)  # noqa: T201 - the report


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
        line for line in lines if line.startswith(("device", "served", "not ", "to fix", "verdict"))
    ]
    return f"[{done.returncode}] " + " | ".join(told)


def only(folder: Path, *packs: str) -> list[Path]:
    """Return the core's wheel, and the wheels of some packs."""
    wheels = {each.name.split("-")[0].rpartition("_"): each for each in folder.glob("*.whl")}
    return [path for (core, _, pack), path in wheels.items() if not core or pack in packs]


def toy(folder: Path, scratch: Path) -> None:
    for packs in (("cc90",), ("ptx",), ("cc80",), (), ("cc80", "cc90", "cc120", "ptx")):
        site = install(scratch / ("+".join(packs) or "core"), only(folder, *packs))
        for order in ("whole,linked", "linked,whole"):
            say(packs, order, python(site, TOY, order))
        say(packs, doctor(site, "toyfat"))
    site = scratch / "cc90"
    for more in (
        {"CUDA_MODULE_LOADING": "EAGER"},
        {"CUDA_VISIBLE_DEVICES": ""},
        {"ARCHSPLIT_STRICT": "1"},
    ):
        say(more, python(site, TOY, "whole,linked", **more))
    say("strict, cc80", python(scratch / "cc80", TOY, "whole", ARCHSPLIT_STRICT="1"))
    fork = (
        "import os, toyfat\n"
        "name = 'whole' if os.fork() else 'linked'\n"
        "assert toyfat.run(name) == 0\n"
    )
    say("fork after import", python(site, fork))
    pack = next(site.glob("toyfat_plugins/cuda/cc90/*.pack"))
    other = next((folder / "other").glob("*cc90*.whl"))
    install(scratch / "other", [other])
    pack.write_bytes(next((scratch / "other").glob("toyfat_plugins/cuda/cc90/*.pack")).read_bytes())
    say("other build", python(site, TOY, "whole"))
    say("other build", doctor(site, "toyfat"))


def visible(folder: Path, scratch: Path) -> None:
    site = install(scratch / "site", only(folder, "cc80", "cc90"))
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    uuids = [line.split("UUID: ")[1].rstrip(")") for line in listed.splitlines()]
    for value in ("0", "1", "0,1", "1,0", uuids[-1], uuids[0][:12], "-1", "", "7", "0,7", "0,0"):
        say(f"{value!r:45}", python(site, TOY, "whole,linked", CUDA_VISIBLE_DEVICES=value))
    # A loader that is told of an 8.0 beside the 9.0 puts containers together of two packs.
    nvml = scratch / "libnvidia-ml.so.1"
    source = Path(__file__).parents[1] / "loader" / "stand_in_nvml.c"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(nvml), str(source)], check=True)
    for gpus in ("9.0", "8.0;9.0"):
        # The last comma is what makes the loader ask NVML, the kernel driver's files or not.
        more = {"LD_LIBRARY_PATH": str(scratch), "STAND_IN_GPUS": gpus}
        more["CUDA_VISIBLE_DEVICES"] = "0,1,"
        say("told of", gpus, python(site, TOY, "linked,whole", **more))


def xgboost(folder: Path, scratch: Path) -> None:
    for packs in (("cc90",), (), ("cc80",)):
        site = install(scratch / ("+".join(packs) or "core"), only(folder, *packs))
        for device in ("cpu", "cuda") if not packs else ("cuda",):
            for _ in range(2 if packs == ("cc90",) else 1):
                say(packs, device, python(site, TRAIN, device))
        say(packs, doctor(site, "xgboost"))


def main() -> None:
    what, place = sys.argv[1], Path(sys.argv[2])
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        if what == "fat":
            site = install(Path(scratch) / "fat", [place])
            for _ in range(2):
                say("fat", python(site, TRAIN, "cuda"))
        else:
            {"toy": toy, "visible": visible, "xgboost": xgboost}[what](place, Path(scratch))
    say(json.dumps({"what": what, "seconds": round(time.perf_counter() - start, 1)}))


if __name__ == "__main__":
    main()
