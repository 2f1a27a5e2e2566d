# ruff: noqa: INP001, T201 - a script, whose table goes to standard output
"""CPU seconds of inspect, slim and split by the number of rows in a wheel's RECORD.

    python bench/bench_rows.py WHEEL [--rows 60000] [--limit TIMES]

WHEEL gets small members until it has an eighth of the rows, and then all of them. `slim` checks its
result with pip, whose own seconds for the same wheel are listed, too. With --limit the exit code is
1 if eight times the rows cost a verb more than so many times the seconds.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import sys
import tempfile
import zipfile
from pathlib import Path

from program_usage import run

STEPS = 8
FOLDERS = 300


def main() -> int:
    """Print the seconds for both sizes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--limit", type=float, default=0.0)
    arguments = parser.parse_args()
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for rows in (arguments.rows // STEPS, arguments.rows):
            place = Path(folder) / str(rows)
            place.mkdir()
            wheel = str(widened(arguments.wheel, rows, place))
            archsplit = (sys.executable, "-m", "archsplit")
            pip = (sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--quiet")
            gpu = ("--device", "9.0")
            commands = {
                "inspect": (*archsplit, "inspect", wheel),
                "slim": (*archsplit, "slim", wheel, *gpu, "--out", str(place / "slim")),
                "split": (*archsplit, "split", wheel, "--out", str(place / "split")),
                "pip": (*pip, "--no-compile", "--target", str(place / "pip"), wheel),
            }
            for name, command in commands.items():
                found.setdefault(name, []).append(run(*command).cpu)
                print(f"{rows:7} rows: {name:8} {found[name][-1]:7.2f} s", flush=True)
    ratios = {name: seconds[1] / seconds[0] for name, seconds in found.items()}
    print(f"{STEPS} times the rows:", *(f"{name} {one:.1f}" for name, one in ratios.items()))
    del ratios["pip"]
    return int(bool(arguments.limit) and max(ratios.values()) > arguments.limit)


def widened(wheel: Path, rows: int, folder: Path) -> Path:
    """Write a copy of a wheel with more members; return its path."""
    path = folder / wheel.name
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        (record,) = (name for name in old.namelist() if name.endswith(".dist-info/RECORD"))
        text = old.read(record).decode()
        for info in old.infolist():
            if info.filename != record:
                new.writestr(info, old.read(info))
        for number in range(rows - len(old.namelist())):
            name, content = f"rows/{number % FOLDERS}/{number}.txt", f"{number}\n".encode()
            new.writestr(name, content)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
            text += f"{name},sha256={digest.decode()},{len(content)}\n"
        new.writestr(record, text)
    return path


if __name__ == "__main__":
    sys.exit(main())
