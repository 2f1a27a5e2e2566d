# ruff: noqa: INP001 - beside a script
"""Cores with ten plugins, installed as their wheels would be; for ``bench_loader.py``."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from loader_devices import both

from archsplit.arch.target import Target
from archsplit.formats.descriptor import Descriptor, Shape, encode_note
from archsplit.formats.device_pack import (
    PackContainer,
    PackImage,
    PackLibrary,
    encode_table,
    lay_out_pack,
)
from archsplit.release.identity import IDENTITY_FILE, Identity
from archsplit.release.loader import copy_loader
from archsplit.system.process import Command, SubprocessRunner, run_checked

if TYPE_CHECKING:
    from loader_devices import Cost

TARGETS = (
    *("sm_75", "sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_103"),
    *("sm_120", "sm_121", "compute_89"),
)
_CONTAINERS, _IMAGE = 65, b"\0" * 4096  # as many as xgboost 3.2.0 has
LIBRARY = "libtoy.so"
_HASH = "11" * 32


def install(site: Path) -> None:
    """Install an empty package, a core with libraries (`toy`), and one with packs (`packs`)."""
    (site / "empty").mkdir()
    (site / "empty" / "__init__.py").write_text("")
    loader = copy_loader(folder=site)
    _install_core(site, "toy", loader, {target: f"toy-{target}" for target in TARGETS})
    _install_libraries(site)
    face = _install_core(site, "packs", loader, {})
    _install_packs(site, face)


def _install_core(site: Path, package: str, loader: Path, targets: dict[str, str]) -> Path:
    face = site / package / "_archsplit"
    face.mkdir(parents=True)
    (site / package / "__init__.py").write_text("from ._archsplit import explain, load\n")
    for file in (Path(__file__).parents[1] / "plugin_loader" / "archsplit_loader").glob("*.py"):
        shutil.copy(file, face)
    shutil.copy(loader, face)
    identity = Identity(
        package="toy",
        version="1.0",
        build_id=_HASH,
        interface_hash=_HASH,
        library=LIBRARY,
        plugins_package=f"{package}_plugins",
        distribution=package,
        targets=targets,
    )
    text = identity.as_json()
    if not targets:
        packs = '"packs": {"cc90": {"distribution": "packs-cc90"}}, "needs": {},'
        text = text.replace("{", f"{{{packs}", 1)
    (face / IDENTITY_FILE).write_text(text)
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
    """Install plugins: one is compiled, the others differ only in their descriptors."""
    first = encode_note(_descriptor(TARGETS[0], Shape.LIBRARY))
    (site / "note").write_bytes(first)
    (site / "toy.c").write_text(
        'int answer(void) { return 42; }\n__asm__(".section .note.archsplit, \\"a\\", %note\\n'
        '.balign 4\\n.incbin \\"note\\"\\n.text\\n");\n'
    )
    _compile(site, site / "toy.so", "toy.c")
    compiled = (site / "toy.so").read_bytes()
    for target in TARGETS:
        own = encode_note(_descriptor(target, Shape.LIBRARY))
        path = site / "toy_plugins" / "cuda" / target / LIBRARY
        path.parent.mkdir(parents=True)
        path.write_bytes(compiled.replace(first, own))


def _install_packs(site: Path, face: Path) -> None:
    """Write a table, and a pack for each target; all images are the same zeros."""
    everything = _DescribedImages(range(len(TARGETS)))
    descriptor = _descriptor("sm_90", Shape.DEVICE)
    (face / "core.pack").write_bytes(encode_table(descriptor, everything.libraries()))
    for number, target in enumerate(TARGETS):
        path = site / "packs_plugins" / "cuda" / target / "device.pack"
        path.parent.mkdir(parents=True)
        with path.open("wb") as file:
            own = _DescribedImages(range(number, number + 1)).libraries()
            layout = lay_out_pack(_descriptor(target, Shape.DEVICE), own)
            file.writelines(layout.blocks(lambda *_: _IMAGE))


class _DescribedImages:
    """Containers of one library with the images of some targets."""

    def __init__(self, numbers: range) -> None:
        digest = hashlib.sha256(_IMAGE).digest()
        self._images = tuple(
            PackImage(
                number=number,
                target=Target.parse(TARGETS[number]),
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


def with_stand_ins(site: Path, rounds: int) -> tuple[Cost, Cost]:
    """Measure the search for GPUs by a loader that reads the driver's files in ``site``."""
    root = Path(__file__).parents[1]
    face, machine = site / "told" / "_archsplit", site / "machine"
    shutil.copytree(site / "packs", site / "told")
    (face / IDENTITY_FILE).write_text(
        (face / IDENTITY_FILE).read_text().replace('"packs_', '"told_')
    )
    (site / "told_plugins").symlink_to(site / "packs_plugins")
    _make_machine(machine)
    places = (f'-DPROC_NVIDIA="{machine}/proc"', f'-DDEV_NVIDIA="{machine}/nvidia"')
    sources = sorted(map(str, (root / "plugin_loader" / "src").glob("*.c")))
    _compile(site, face / "libarchsplit_loader.so", "-Os", *places, *sources)
    stand_in = root / "tests" / "loader" / "stand_in_nvml.c"
    _compile(site, machine / "libnvidia-ml.so.1", str(stand_in))
    found = {"LD_LIBRARY_PATH": str(machine), "STAND_IN_GPUS": "9.0"}
    return both(site, "told", rounds, "GPU-a0000000", **found)


def _make_machine(machine: Path) -> None:
    """Write the kernel driver's files for an H200."""
    folder = machine / "proc" / "gpus" / "0000:01:00.0"
    folder.mkdir(parents=True)
    (machine / "proc" / "capabilities" / "gpu0" / "mig").mkdir(parents=True)
    (machine / "proc" / "version").write_text("NVRM version: Kernel Module  580.95.05\n")
    facts = {"Model": "NVIDIA H200", "Device Minor": "0", "GPU Excluded": "No"}
    lines = (f"{name}: \t {value}\n" for name, value in facts.items())
    (folder / "information").write_text("".join(lines))
    for name in ("nvidia0", "nvidiactl"):
        (machine / name).touch()


def _compile(site: Path, output: Path, *arguments: str) -> None:
    """Compile a shared library with the compiler that cores' loaders are made with."""
    command = (sys.executable, "-m", "ziglang", "cc", "-shared", "-fPIC", "-o", str(output))
    environment = {"PATH": os.environ["PATH"], "HOME": str(site)}
    environment |= dict.fromkeys(("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"), str(site / "zig"))
    argv = (*command, *arguments)
    compilation = Command(argv=argv, cwd=site, env=environment, timeout=300)
    run_checked(SubprocessRunner(), compilation, what=f"compiling {output.name}")
