"""Environments with device code, as pip installs them."""

from __future__ import annotations

import hashlib
import os
import shutil
import venv
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slim_wheel_samples import fat_wheel

from archsplit.devicecode.select import PtxPolicy
from archsplit.release.context import Effects
from archsplit.slim.request import SlimRequest
from archsplit.slim.site_packages import slim_site
from archsplit.system.process import CompletedProcess, SubprocessRunner
from archsplit.system.terminal import SilentProgress
from handmade_samples import THREE, Maker, for_devices
from warm_programs import run_pip

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from archsplit.slim.report import SlimReport
    from archsplit.system.process import Command

LIBRARY = "fat/libfat.so"
NEIGHBOUR = "fat/libneighbour.so"
OWN = "fat-1.2.3.dist-info"
NOTE = f"{OWN}/archsplit-slim.json"
OTHER = "other-1-py3-none-manylinux_2_17_x86_64.whl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """A virtual environment without pip in it; the tests' own pip works on it."""

    root: Path

    @property
    def site(self) -> Path:
        (site,) = self.root.glob("lib/python*/site-packages")
        return site

    def pip(self, *argv: str | Path) -> subprocess.CompletedProcess[str]:
        python = str(self.root / "bin" / "python")
        return run_pip(("--python", python, "--disable-pip-version-check", *map(str, argv)))

    def install(self, *wheels: Path) -> None:
        done = self.pip("install", "--no-deps", "--no-index", "--no-compile", *wheels)
        assert done.returncode == 0, done.stderr

    def copy(self, to: Path) -> Environment:
        shutil.copytree(self.root, to, symlinks=True)
        return Environment(root=to)


class NothingLoads(SubprocessRunner):
    """A stand-in for a machine on which no library can be loaded: it starts nothing."""

    def run(self, command: Command) -> CompletedProcess:
        del command
        return CompletedProcess(returncode=3, stdout="not here", stderr="", seconds=0.0)


def made(folder: Path) -> Environment:
    """An environment with two distributions; one library finds another one beside itself."""
    root = folder / "env"
    venv.create(root, with_pip=False, symlinks=True)
    library = with_neighbour(folder)
    neighbour = (library.parent / "libneighbour.so").read_bytes()
    fat = fat_wheel(folder, library=library.read_bytes(), more={NEIGHBOUR: neighbour})
    environment = Environment(root=root)
    environment.install(fat, fat_wheel(folder, name=OTHER, library=library.read_bytes()))
    return environment


def with_neighbour(folder: Path) -> Path:
    place = folder / "neighbours"
    place.mkdir()
    maker = Maker(folder=place)
    maker.run("gcc", "-shared", "-x", "c", "/dev/null", "-o", "libneighbour.so")
    flags = ("-Wl,--no-as-needed", "-L.", "-lneighbour", "-Wl,-rpath,$ORIGIN")
    return Maker(folder=place, flags=flags).library(THREE)


def effects(runner: SubprocessRunner | None = None) -> Effects:
    real = runner or SubprocessRunner()
    return Effects(progress=SilentProgress(), environment=os.environ, jobs=1, runner=real)


def request(
    site: Path, *devices: str, dry_run: bool = False, ignore_record: bool = False
) -> SlimRequest:
    return SlimRequest(
        source=site,
        out=site,
        selection=for_devices(*(devices or ("9.0",)), ptx=PtxPolicy.NONE),
        dry_run=dry_run,
        ignore_record=ignore_record,
    )


def slim(
    site: Path, *devices: str, dry_run: bool = False, ignore_record: bool = False
) -> SlimReport:
    order = request(site, *devices, dry_run=dry_run, ignore_record=ignore_record)
    return slim_site(order, effects(NothingLoads()))


def snapshot(site: Path) -> dict[str, tuple[object, ...]]:
    """Return the state of every file in a folder, without bytecode."""
    return {
        path.relative_to(site).as_posix(): _file_state(path)
        for path in sorted(site.rglob("*"))
        if "__pycache__" not in path.parts
    }


def _file_state(path: Path) -> tuple[object, ...]:
    status = path.lstat()
    if path.is_symlink():
        return (str(path.readlink()),)
    if path.is_dir():
        return (status.st_mode,)
    content = hashlib.sha256(path.read_bytes()).hexdigest()
    return (status.st_mode, status.st_size, status.st_mtime_ns, content)


def contents(site: Path) -> dict[str, object]:
    """The same without times, which differ between two runs."""
    return {name: (state[0], state[-1]) for name, state in snapshot(site).items()}
