# ruff: noqa: INP001, S603, T201, TID251 - a script, which starts the command line
"""Measure the newest CUDA wheels of the package index, one after the other; resumable.

Each wheel is downloaded, measured by archsplit's own commands and deleted, so the disk needs room
for one wheel and its split. The results are a file of JSON with versions and hashes. A step that
is in the file is left out, so an interrupted run goes on where it stopped.

    python recipes/gallery/measure.py --out recipes/gallery/results.json --steps inspect
    python recipes/gallery/measure.py --out recipes/gallery/results.json
    python recipes/gallery/measure.py --out results.json bitsandbytes nvidia-nvshmem-cu12
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
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
PYTHON = "3.12"
"""Version of Python whose wheels are measured."""
LEAST_FREE = 20 * 10**9
"""Bytes of the disk that must be free before a wheel is downloaded."""
MEMORY = 8 * 2**30
"""Bytes of memory for each process."""
SECONDS = 600
"""Time limit of each command."""
TOLERANCE, LEAST_TOLERANCE = 0.02, 10**6
"""Share and bytes of the download that slim and split may write more than inspect expects."""
COMMANDS = {
    "inspect": f"archsplit inspect WHEEL --device {','.join(GPUS.values())} --kernels --json",
    "slim": "archsplit slim WHEEL --device 9.0 --out slim --json",
    "split": "archsplit split WHEEL --out split --json",
}


class StepError(Exception):
    """A command failed; has its error."""


def run(*words: str, seconds: float | None = None) -> str:
    """Run a module in this Python's environment; return its output."""
    argv = [sys.executable, "-m", *words]
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
            preexec_fn=limit_memory if seconds else None,
        )
    except subprocess.TimeoutExpired:
        raise StepError(f"not done after {seconds:g} s") from None
    if done.returncode:
        lines = done.stderr.splitlines()
        errors = [line for line in lines if line.lower().startswith("error: ")] or lines
        raise StepError(f"exit code {done.returncode}: {errors[-1] if errors else ''}")
    return done.stdout


def limit_memory() -> None:
    """Limit this process, and its children, to ``MEMORY`` each."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))


def download(project: str, version: str | None, folder: Path) -> Path:
    """Download a wheel for this platform: the newest, or the one that is measured in part."""
    python = ("--python-version", PYTHON, "--only-binary", ":all:")
    options = ("--quiet", "--no-deps", *python, "--dest", str(folder))
    run("pip", "download", *options, f"{project}=={version}" if version else project)
    return next(folder.glob("*.whl"))


def coverage(device: dict[str, Any]) -> str:
    """Return how a GPU runs the code: natively, by JIT from PTX, in part, or nothing."""
    counts = device["containers"]
    words = {
        "native": counts["native"] + counts["older_minor"],
        "JIT": counts["ptx"],
        "nothing": counts["none"],
    }
    found = [f"{word} {count}" for word, count in words.items() if count]
    return ", ".join(found) or "nothing"


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


def new_result(wheel: Path) -> dict[str, Any]:
    """Return the record of a wheel before any step."""
    return {
        "file": wheel.name,
        "version": wheel.name.split("-")[1],
        "sha256": digest(wheel),
        "download": wheel.stat().st_size,
        "seconds": {},
        "problems": [],
    }


def measure(
    result: dict[str, Any], wheel: Path, scratch: Path, steps: list[str], reports: Path | None
) -> None:
    """Add what archsplit says about a wheel to its record; what fails is in ``problems``."""
    after = {"inspect": inspected, "slim": slim_result, "split": split_result}
    for name in steps:
        if name != "inspect" and not result.get("device_code"):
            continue
        places = {"WHEEL": str(wheel), name: str(scratch / name)}
        words = COMMANDS[name].split()
        filled = [*words[:2], *(places.get(word, word) for word in words[2:])]
        began = time.monotonic()
        try:
            text = run(*filled, seconds=SECONDS)
            after[name](result, json.loads(text))
            if reports:
                with gzip.open(reports / f"{wheel.name}.{name}.gz", "wt") as file:
                    file.write(text)
        except StepError as error:
            result["problems"].append(f"{name}: {str(error).replace(f'{scratch}/', '')}")
        result["seconds"][name] = round(time.monotonic() - began, 1)
        shutil.rmtree(scratch / name, ignore_errors=True)


def inspected(result: dict[str, Any], seen: dict[str, Any]) -> None:
    """Add the report of inspect to a result."""
    devices = {device["device"]: device for device in seen["devices"]}
    packed: Counter[str] = Counter()
    for row in seen["totals"]:
        packed[row["compression"]] += row["file_bytes"]
    problems = [f"{one['path']}: {one['problem']}" for one in seen["files"] if "problem" in one]
    result["problems"] += problems
    result["files"] = sum(one["size"] for one in seen["files"])
    result["packed"] = dict(packed)
    result["zstd_saves"] = seen["zstd_saves"]
    result["gpus"] = {
        name: {"runs": coverage(devices[number]), **devices[number]["sizes"]}
        for name, number in GPUS.items()
    }
    result.update(kernel_facts(seen["files"]))
    for name, gpu in result["gpus"].items():
        parts = ("used", "for_other_gpus", "link_code", "not_device_code")
        if sum(gpu[part] for part in parts) != gpu["whole"]:
            result["problems"].append(f"inspect: the parts for {name} don't add up")
        result["device_code"] = sum(gpu[part] for part in parts[:3])
        if gpu["whole"] != result["download"]:
            result["problems"].append(f"inspect: the whole for {name} is not the download")


def slim_result(result: dict[str, Any], report: dict[str, Any]) -> None:
    """Add the size for an H100, and compare it with the estimate."""
    result["slim_h100"] = report["size_after"]
    expect_at_most(result, "slim", report["size_after"], result["gpus"]["H100"]["slim"])


def split_result(result: dict[str, Any], report: dict[str, Any]) -> None:
    """Add the sizes of core and packs, and compare them with the estimates."""
    sizes = {"": 0}
    for wheel in report["wheels"]:
        name = "" if wheel["role"] == "core" else wheel["plugin"]["name"]
        sizes[name] = wheel["size"]
    result["split"] = {"sum": sum(sizes.values()), "core": sizes[""], "packs": len(sizes) - 1}
    result["split"]["unmoved"] = len(report["split"]["unmoved"])
    for name, number in GPUS.items():
        needed = report["split"]["needs"].get(number)
        packs = sum(sizes[pack] for pack in needed or ())
        result["split"][name] = sizes[""] + packs
        gpu = result["gpus"][name]
        if gpu["core"] is not None:
            expect_at_most(
                result, f"split for {name}", sizes[""] + packs, gpu["core"] + gpu["pack"]
            )


def expect_at_most(result: dict[str, Any], name: str, found: int, estimate: int) -> None:
    """Note a size that is far above inspect's estimate of it; packed again, it may be smaller."""
    if found - estimate > max(TOLERANCE * result["download"], LEAST_TOLERANCE):
        result["problems"].append(f"{name}: {found} bytes, and inspect expected {estimate}")


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main() -> int:
    """Measure all projects that the file of results lacks."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("projects", nargs="*", help="(default: projects.txt)")
    parser.add_argument("--out", type=Path, required=True, help="the file of results")
    parser.add_argument("--steps", nargs="+", choices=list(COMMANDS), default=list(COMMANDS))
    parser.add_argument("--reports", type=Path, help="keep archsplit's own reports here")
    arguments = parser.parse_args()
    listed = (HERE / "projects.txt").read_text().splitlines()
    projects = arguments.projects or [line for line in listed if line and line[0] != "#"]
    content: dict[str, Any] = {"schema": 2, "commands": COMMANDS, "wheels": {}}
    if arguments.out.exists():
        content = json.loads(arguments.out.read_text())
    for project in projects:
        found = content["wheels"].get(project, {})
        steps = [step for step in arguments.steps if is_missing(found, step)]
        if not steps:
            continue
        with tempfile.TemporaryDirectory(dir=arguments.out.absolute().parent) as name:
            scratch = Path(name)
            if shutil.disk_usage(scratch).free < LEAST_FREE:
                sys.exit(f"error: fewer than {LEAST_FREE / 1e9:.0f} GB are free in {scratch}")
            try:
                wheel = download(project, found.get("version"), scratch)
                # Another Python's wheel has other sizes: no step of it may be mixed with these.
                if found.get("file") != wheel.name:
                    found, steps = new_result(wheel), arguments.steps
                measure(found, wheel, scratch, steps, arguments.reports)
            except StepError as error:
                found = {"problems": [f"download: {error}"]}
        content["wheels"][project] = found
        content["day"] = time.strftime("%Y-%m-%d")
        content["archsplit"] = run("archsplit", "--version").split()[-1]
        partial = arguments.out.with_suffix(".part")
        partial.write_text(json.dumps(content, indent=1) + "\n")
        partial.replace(arguments.out)
        print(project, found.get("download"), *found["problems"], flush=True)
    return 0


def is_missing(found: dict[str, Any], step: str) -> bool:
    """Return whether a step of a wheel must still be done."""
    if not found:
        return True
    has_code = step == "inspect" or bool(found.get("device_code"))
    return has_code and step not in found.get("seconds", {step: 0})


if __name__ == "__main__":
    sys.exit(main())
