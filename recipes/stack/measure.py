# ruff: noqa: INP001, S603, TID251 - a script, which starts the command line
"""Measure an installed stack: its bytes, and what ``archsplit slim`` removes for each kind of GPU.

``python recipes/stack/measure.py torch .venv/lib/python3.12/site-packages`` writes
``measured/torch.json`` beside this file. Nothing is changed, and no GPU is needed: each figure is
from ``archsplit slim --site-packages DIR --device GPU --dry-run --json``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

GPUS = ("7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0")
NO_CODE = 5
"""The exit code for a GPU without any code."""
OUT = Path(__file__).parent / "measured"


def slim_report(site: Path, gpu: str) -> dict[str, Any] | None:
    """Return the report of a dry run; None if the environment has no code for the GPU."""
    choice = ("--site-packages", str(site), "--device", gpu)
    command = (sys.executable, "-m", "archsplit", "slim", *choice, "--dry-run", "--json")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == NO_CODE:
        return None
    if done.returncode:
        raise SystemExit(done.stderr)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def saved_bytes(report: dict[str, Any]) -> dict[str, int]:
    """Return the bytes that a choice removes, and those that become zeros on request."""
    files = report["files"]
    return {
        "removed": sum(file["size_before"] - file["size_after"] for file in files),
        "zeroed": sum(row["file_bytes"] for file in files for row in file["unregistered"]),
    }


def measure(site: Path) -> dict[str, Any]:
    """Return all figures of an environment."""
    files = [path for path in site.rglob("*") if path.is_file() and not path.is_symlink()]
    gpus = {gpu: slim_report(site, gpu) for gpu in GPUS}
    versions = {one.name: one.version for one in distributions(path=[str(site)])}
    return {
        "bytes": sum(path.stat().st_size for path in files),
        "gpus": {gpu: report and saved_bytes(report) for gpu, report in gpus.items()},
        "versions": dict(sorted(versions.items(), key=lambda each: each[0].lower())),
    }


def main() -> None:
    """Measure one stack."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("name", help="torch, jax or vllm")
    parser.add_argument("site", type=Path, help="the site-packages folder of the environment")
    arguments = parser.parse_args()
    OUT.mkdir(exist_ok=True)
    text = json.dumps(measure(arguments.site), indent=1)
    (OUT / f"{arguments.name}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
