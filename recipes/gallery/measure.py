# ruff: noqa: INP001, S603, T201, TID251 - a script, which starts the command line
"""Measure the newest CUDA wheels of the package index, one after the other; resumable.

Each wheel is downloaded, measured by archsplit's own commands and deleted, so the disk needs room
for one wheel and its split. The results are a file of JSON with versions and hashes. A wheel that
is in the file is left out, so an interrupted run goes on where it stopped.

    python recipes/gallery/measure.py --out recipes/gallery/results.json
    python recipes/gallery/measure.py --out results.json bitsandbytes nvidia-nvshmem-cu12
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
GPUS = {
    "T4": "7.5",
    "A100": "8.0",
    "L4, RTX 4090": "8.9",
    "H100": "9.0",
    "B200": "10.0",
    "RTX 5090": "12.0",
}
LEAST_FREE = 20 * 10**9
"""Bytes of the disk that must be free before a wheel is downloaded."""
COMMANDS = {
    "per GPU": f"archsplit inspect WHEEL --device {','.join(GPUS.values())} --kernels --json",
    "sum of the split": "archsplit split WHEEL --out split --json",
}


def run(*words: str, cwd: Path | None = None) -> str:
    """Run a command of archsplit or pip in this Python's environment; return its output.

    Raises:
        RuntimeError: the command failed; has its last line.
    """
    argv = [sys.executable, "-m", *words]
    done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line and "hint:" not in line]
        reason = lines[-1] if lines else ""
        raise RuntimeError(f"{words[0]} {words[1]}: exit code {done.returncode}: {reason}")
    return done.stdout


def download(project: str, folder: Path) -> Path:
    """Download the newest wheel of a project for this machine."""
    options = ("--quiet", "--no-deps", "--only-binary", ":all:", "--dest", str(folder))
    run("pip", "download", *options, project)
    return next(folder.glob("*.whl"))


def coverage(device: dict[str, Any]) -> str:
    """Return how a GPU runs the code: natively, by JIT from PTX, in part, or nothing."""
    counts = device["containers"]
    native, ptx, none = (
        counts["native"] + counts["older_minor"],
        counts["ptx"],
        counts["none"],
    )
    words = {"native": native, "JIT": ptx, "nothing": none}
    found = [word for word, count in words.items() if count]
    return " + ".join(found) or "nothing"


def kernel_facts(files: list[dict[str, Any]]) -> dict[str, Any]:
    """Return duplicates, and the kernels that one target has and another lacks."""
    by_target: dict[str, set[str]] = {}
    copies = 0
    for file in files:
        for kernel in file.get("kernels", ()):
            by_target.setdefault(kernel["target"], set()).add(kernel["name"])
            copies += kernel["code_bytes"] - kernel["code_bytes"] // kernel["count"]
    every = set[str]().union(*by_target.values())
    lacking = {target: len(every - names) for target, names in sorted(by_target.items())}
    return {"kernels": len(every), "lacking": lacking, "duplicate_bytes": copies}


def measure(wheel: Path, scratch: Path) -> dict[str, Any]:
    """Return everything that archsplit says about a wheel."""
    text = run(
        *("archsplit", "inspect", str(wheel), "--device", ",".join(GPUS.values())),
        *("--kernels", "--json"),
    )
    seen = json.loads(text)
    devices = {device["device"]: device for device in seen["devices"]}
    packed: Counter[str] = Counter()
    for row in seen["totals"]:
        packed[row["compression"]] += row["wheel_bytes"] or row["file_bytes"]
    result: dict[str, Any] = {
        "file": wheel.name,
        "version": wheel.name.split("-")[1],
        "sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
        "download": wheel.stat().st_size,
        "problems": [
            f"{one['path']}: {one['problem']}" for one in seen["files"] if "problem" in one
        ],
        "packed": dict(packed),
        "zstd_saves": seen["zstd_saves"],
        "gpus": {
            name: {"runs": coverage(devices[number]), **devices[number]["sizes"]}
            for name, number in GPUS.items()
        },
        **kernel_facts(seen["files"]),
    }
    for name, gpu in result["gpus"].items():
        parts = ("used", "for_other_gpus", "link_code", "not_device_code")
        if sum(gpu[part] for part in parts) != gpu["whole"]:
            result["problems"].append(f"the parts for {name} don't add up to the download")
    out = scratch / "split"
    try:
        split = json.loads(run("archsplit", "split", str(wheel), "--out", str(out), "--json"))
        result["split"] = sum(one["size"] for one in split["wheels"])
    except RuntimeError as error:
        # A wheel that can't be split is a result too.
        result["split_refused"] = str(error)
    return result


def main() -> int:
    """Measure all projects that the file of results lacks."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("projects", nargs="*", help="(default: projects.txt)")
    parser.add_argument("--out", type=Path, required=True, help="the file of results")
    parser.add_argument("--wheels", type=Path, help="take wheels from here, and leave them")
    arguments = parser.parse_args()
    listed = (HERE / "projects.txt").read_text().splitlines()
    projects = arguments.projects or [line for line in listed if line and line[0] != "#"]
    content: dict[str, Any] = {"schema": 1, "commands": COMMANDS, "wheels": {}}
    if arguments.out.exists():
        content = json.loads(arguments.out.read_text())
    for project in projects:
        if project in content["wheels"]:
            continue
        with tempfile.TemporaryDirectory(dir=arguments.out.absolute().parent) as name:
            scratch = Path(name)
            if shutil.disk_usage(scratch).free < LEAST_FREE:
                sys.exit(f"error: fewer than {LEAST_FREE / 1e9:.0f} GB are free in {scratch}")
            try:
                pattern = f"{project.replace('-', '_')}-*.whl"
                here = sorted(arguments.wheels.glob(pattern)) if arguments.wheels else []
                wheel = here[0] if here else download(project, scratch)
                found = measure(wheel, scratch)
            except RuntimeError as error:
                found = {"failed": str(error)}
        content["wheels"][project] = found
        partial = arguments.out.with_suffix(".part")
        partial.write_text(json.dumps(content, indent=1) + "\n")
        partial.replace(arguments.out)
        print(project, found.get("download", found.get("failed")), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
