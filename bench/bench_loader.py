# ruff: noqa: INP001, T201 - a script, whose table goes to standard output
"""What the loader costs a program that has ten plugins installed, beside what it can't do without.

    python bench/bench_loader.py [--rounds 15]

Everything is installed as wheels would be, and every import happens in a process of its own. Of
each time the shortest counts. The goals: the loader's own time (find, read and check ten plugins)
is at most 3 ms, and importing the core's Python face takes at most 5 ms more than importing an
empty package. NVML is not asked: what it takes is the driver's.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from splitter.arch.target import Target
from splitter.binfmt.note import Descriptor, Shape, encode_note
from splitter.devicecode.pack import PackContainer, PackImage, PackLibrary
from splitter.devicecode.packing import encode_table, write_pack
from splitter.identity import FILE_NAME, Identity
from splitter.stages.loader import build_loader
from splitter.system.run import Command, SubprocessRunner, check

if TYPE_CHECKING:
    from collections.abc import Callable

_MOST_OWN, _MOST_IMPORT = 0.003, 0.005
_TARGETS = (
    *("sm_75", "sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_103"),
    *("sm_120", "sm_121", "compute_89"),
)
_CONTAINERS, _IMAGE = 65, b"\0" * 4096  # as many as xgboost 3.2.0 has
_LIBRARY = "libtoy.so"
_HASH = "11" * 32
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
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        site = Path(folder).resolve()
        _install(site)
        return _report(*(_seconds(site, code, rounds) for code in _codes(site)))


def _codes(site: Path) -> tuple[str, ...]:
    """What is measured: each defines ``work``."""
    path = str(site / "toy_plugins" / "cuda" / "sm_90" / _LIBRARY)
    own = {"count": len(_TARGETS)}
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
    empty: float, face: float, opened: float, own: float, packs: float, plain: float, load: float
) -> int:
    rows = (
        ("import of an empty package", empty, "", ""),
        ("import of the core's face", face, face / empty, f"{_MOST_IMPORT * 1e3:.0f} ms over it"),
        ("dlopen of one plugin, again", opened, "", ""),
        ("the loader over 10 libraries", own, own / opened, f"{_MOST_OWN * 1e3:.0f} ms"),
        ("the loader over 10 device packs", packs, packs / opened, f"{_MOST_OWN * 1e3:.0f} ms"),
        ("first call by ctypes alone", plain, "", ""),
        ("first call by import and load()", load, load / plain, ""),
    )
    print("| what | ms | times its peer | goal |\n|---|---|---|---|")
    for what, seconds, ratio, goal in rows:
        shown = f"{ratio:.1f}" if ratio else ""
        print(f"| {what} | {seconds * 1e3:.2f} | {shown} | {goal} |")
    missed = [
        what
        for what, found, most in (
            ("the face's import", face - empty, _MOST_IMPORT),
            ("the loader over libraries", own, _MOST_OWN),
            ("the loader over packs", packs, _MOST_OWN),
        )
        if found > most
    ]
    print(f"\nmissed: {', '.join(missed)}" if missed else "\nall goals were met")
    return 1 if missed else 0


def _seconds(site: Path, code: str, rounds: int) -> float:
    """The shortest time that ``work`` took, each time in a new process."""
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
        found.append(float(check(runner, command, what="measuring").stdout))
        time.sleep(0.01)
    return min(found)


def _install(site: Path) -> None:
    (site / "empty").mkdir()
    (site / "empty" / "__init__.py").write_text("")
    loader = build_loader(folder=site, runner=SubprocessRunner())
    _install_core(site, "toy", loader, {target: f"toy-{target}" for target in _TARGETS})
    _install_libraries(site)
    face = _install_core(site, "packs", loader, {})
    _install_packs(site, face)


def _install_core(site: Path, package: str, loader: Path, targets: dict[str, str]) -> Path:
    face = site / package / "_archsplit"
    face.mkdir(parents=True)
    (site / package / "__init__.py").write_text("from ._archsplit import explain, load\n")
    for file in (Path(__file__).parents[1] / "plugin_loader").glob("*.py"):
        shutil.copy(file, face)
    shutil.copy(loader, face)
    identity = Identity(
        package="toy",
        version="1.0",
        build_id=_HASH,
        interface_hash=_HASH,
        library=_LIBRARY,
        plugins_package=f"{package}_plugins",
        distribution=package,
        targets=targets,
    )
    text = identity.as_json()
    if not targets:
        packs = '"packs": {"cc90": {"distribution": "packs-cc90"}}, "needs": {},'
        text = text.replace("{", f"{{{packs}", 1)
    (face / FILE_NAME).write_text(text)
    return face


def _descriptor(target: str, shape: Shape) -> Descriptor:
    return Descriptor(
        package="toy",
        version="1.0",
        build_id=bytes.fromhex(_HASH),
        interface_hash=bytes.fromhex(_HASH),
        cuda_version=13000,
        shape=shape,
        targets=(Target.parse(target),),
    )


def _install_libraries(site: Path) -> None:
    """One plugin is compiled; the others differ from it by their descriptors alone."""
    first = encode_note(_descriptor(_TARGETS[0], Shape.LIBRARY))
    (site / "note").write_bytes(first)
    (site / "toy.c").write_text(
        'int answer(void) { return 42; }\n__asm__(".section .note.archsplit, \\"a\\", %note\\n'
        '.balign 4\\n.incbin \\"note\\"\\n.text\\n");\n'
    )
    argv = (sys.executable, "-m", "ziglang", "cc", "-shared", "-fPIC", "toy.c", "-o", "toy.so")
    environment = {"PATH": os.environ["PATH"], "HOME": str(site)}
    environment |= dict.fromkeys(("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"), str(site / "zig"))
    command = Command(argv=argv, cwd=site, env=environment, timeout=300)
    check(SubprocessRunner(), command, what="compiling a plugin")
    compiled = (site / "toy.so").read_bytes()
    for target in _TARGETS:
        own = encode_note(_descriptor(target, Shape.LIBRARY))
        path = site / "toy_plugins" / "cuda" / target / _LIBRARY
        path.parent.mkdir(parents=True)
        path.write_bytes(compiled.replace(first, own))


def _install_packs(site: Path, face: Path) -> None:
    """A table, and a pack for each target; all images are the same zeros."""
    everything = _DescribedImages(range(len(_TARGETS)))
    descriptor = _descriptor("sm_90", Shape.DEVICE)
    (face / "core.pack").write_bytes(encode_table(descriptor, everything.libraries()))
    for number, target in enumerate(_TARGETS):
        path = site / "packs_plugins" / "cuda" / target / "device.pack"
        path.parent.mkdir(parents=True)
        with path.open("wb") as file:
            write: Callable[[bytes | memoryview], object] = file.write
            own = _DescribedImages(range(number, number + 1)).libraries()
            write_pack(write, _descriptor(target, Shape.DEVICE), own, lambda *_: _IMAGE)


class _DescribedImages:
    """The containers of one library with the images of some targets."""

    def __init__(self, numbers: range) -> None:
        digest = hashlib.sha256(_IMAGE).digest()
        self._images = tuple(
            PackImage(
                number=number,
                target=Target.parse(_TARGETS[number]),
                size=len(_IMAGE),
                digest=digest,
            )
            for number in numbers
        )

    def libraries(self) -> tuple[PackLibrary, ...]:
        containers = tuple(
            PackContainer(wrapper=0x1000 + 24 * n, address=0x8000 + 16 * n, images=self._images)
            for n in range(_CONTAINERS)
        )
        return (
            PackLibrary(name="toy/lib/libtoy.so", stub="libarchsplit_0.so", containers=containers),
        )


if __name__ == "__main__":
    sys.exit(main())
