# ruff: noqa: INP001, T201 - a script, whose table goes to standard output
"""Measure the time of the loader in a program with ten installed plugins.

    python bench/bench_loader.py [--rounds 15] [--install FOLDER]

Everything is installed as from wheels, and every import happens in a new process. The shortest time
counts. The goals: the loader's own time (find, read and check ten plugins) is at most 3 ms, and
importing the core's loader package takes at most 5 ms more than importing an empty package. The
last two rows find GPUs too, in a stand-in for the kernel driver's files and by a stand-in for NVML,
which takes no time; with --install everything is left in a folder, and ``loader_devices.py``
measures the same there with a machine's own GPUs.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from loader_devices import rows
from loader_site import LIBRARY, TARGETS, install, with_stand_ins

from archsplit.system.process import Command, SubprocessRunner, run_checked

if TYPE_CHECKING:
    from loader_devices import Cost

_MOST_OWN, _MOST_IMPORT = 0.003, 0.005
_EMPTY = "import empty"
_OWN = """
from {package}._archsplit import _opening, _reading
core = _reading.read_core()
def work():
    with _opening.start_loader(core, None, devices=False) as loader:
        assert loader.summary().candidate_count == {count}
        assert loader.verdict(loader.candidate(0)) == "accepted"
work()
"""
_OPEN = "import ctypes\ndef work():\n    ctypes.CDLL({path!r})"
_LOAD = "def work():\n    import {package}\n    {package}.load(capability='9.0').answer()"
_PLAIN = "def work():\n    import ctypes\n    ctypes.CDLL({path!r}).answer()"
_IMPORT = "def work():\n    import {package}"


def main() -> int:
    """Measure everything, print a table, and say by the exit status whether the goals were met."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--install", type=Path, help="install into this folder, and stop")
    arguments = parser.parse_args()
    rounds = arguments.rounds
    if arguments.install is not None:
        arguments.install.mkdir(parents=True)
        install(arguments.install.resolve())
        return 0
    with tempfile.TemporaryDirectory() as folder:
        site = Path(folder).resolve()
        install(site)
        devices = with_stand_ins(site, rounds)
        return _report(devices, *(_seconds(site, code, rounds) for code in _codes(site)))


def _codes(site: Path) -> tuple[str, ...]:
    """Return the measured programs; each defines ``work``."""
    path = str(site / "toy_plugins" / "cuda" / "sm_90" / LIBRARY)
    own = {"count": len(TARGETS)}
    return (
        _IMPORT.format(package="empty"),
        _IMPORT.format(package="toy"),
        _OPEN.format(path=path),
        _OWN.format(package="toy", **own),
        _OWN.format(package="packs", **own),
        _PLAIN.format(path=path),
        _LOAD.format(package="toy"),
    )


def _report(
    devices: tuple[Cost, Cost],
    empty: float,
    face: float,
    opened: float,
    own: float,
    packs: float,
    plain: float,
    load: float,
) -> int:
    times = (
        ("import of an empty package", empty, "", ""),
        ("import of the core's face", face, face / empty, f"{_MOST_IMPORT * 1e3:.0f} ms over it"),
        ("dlopen of one plugin, again", opened, "", ""),
        ("the loader over 10 libraries", own, own / opened, f"{_MOST_OWN * 1e3:.0f} ms"),
        ("the loader over 10 device packs", packs, packs / opened, f"{_MOST_OWN * 1e3:.0f} ms"),
        ("first call, only by ctypes", plain, "", ""),
        ("first call by import and load()", load, load / plain, ""),
    )
    print("| what | ms | times its peer | goal | memory |\n|---|---|---|---|---|")
    for what, seconds, ratio, goal in times:
        shown = f"{ratio:.1f}" if ratio else ""
        print(f"| {what} | {seconds * 1e3:.2f} | {shown} | {goal} | |")
    print("\n".join(rows(*devices)))
    missed = [
        what
        for what, found, most in (
            ("the face's import", face - empty, _MOST_IMPORT),
            ("the loader over libraries", own, _MOST_OWN),
            ("the loader over packs", packs, _MOST_OWN),
            ("the loader over packs and a GPU", devices[0].milliseconds / 1e3, _MOST_OWN),
        )
        if found > most
    ]
    print(f"\nmissed: {', '.join(missed)}" if missed else "\nall goals were met")
    return 1 if missed else 0


def _seconds(site: Path, code: str, rounds: int) -> float:
    """Return the shortest time that ``work`` took, each time in a new process."""
    program = (
        f"import time\n{code}\nstart = time.perf_counter()\nwork()\n"
        "print(time.perf_counter() - start)"
    )
    command = Command(
        argv=(sys.executable, "-S", "-c", program),
        cwd=site,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(site)},
        timeout=60,
    )
    runner = SubprocessRunner()
    found = []
    for _ in range(rounds):
        found.append(float(run_checked(runner, command, what="measuring").stdout))
        time.sleep(0.01)
    return min(found)


if __name__ == "__main__":
    sys.exit(main())
