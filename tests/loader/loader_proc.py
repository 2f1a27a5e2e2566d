"""A kernel driver that tells of made-up GPUs, for programs that are compiled to look there."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loader_stubs import HERE, NO_NVML, STRICT, compile_c, run

from loader_objects import loader_objects

if TYPE_CHECKING:
    from pathlib import Path

# As driver 580 writes it.
INFORMATION = """\
Model: \t\t {model}
IRQ:   \t\t 0
GPU UUID: \t GPU-a{minor:07x}-1111-2222-3333-444444444444
Video BIOS: \t 96.00.bc.00.01
Bus Location: \t {address}
Device Minor: \t {minor}
GPU Firmware: \t 580.95.05
GPU Excluded:\t {excluded}
"""
VERSION = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build  (root)\n"
    "GCC version:  gcc version 12.2.0\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The folders in which programs look that were compiled with `places`."""

    root: Path

    @property
    def places(self) -> tuple[str, ...]:
        wsl = f'-DWSL_NVML="{self.root}/wsl/libnvidia-ml.so.1"'
        return (f'-DPROC_NVIDIA="{self.proc}"', f'-DDEV_NVIDIA="{self.device("")}"', wsl)

    @property
    def proc(self) -> Path:
        return self.root / "proc"

    def device(self, minor: object) -> Path:
        return self.root / f"nvidia{minor}"

    def information(self, minor: int) -> Path:
        return self.proc / "gpus" / f"0000:{minor + 25:02x}:00.0" / "information"

    def partitions(self, minor: int) -> Path:
        return self.proc / "capabilities" / f"gpu{minor}" / "mig"

    def clear(self) -> None:
        """Take the driver away."""
        shutil.rmtree(self.proc, ignore_errors=True)
        shutil.rmtree(self.root / "wsl", ignore_errors=True)
        for each in self.root.glob("nvidia*"):
            each.unlink()

    def add(self, minor: int, model: str, *, device: bool = True, excluded: str = "No") -> None:
        """Add a GPU as a container may see it, which has no more than it needs."""
        path = self.information(minor)
        path.parent.mkdir(parents=True, exist_ok=True)
        self.set_version("580.95.05")
        fields = {"model": model, "minor": minor, "address": path.parent.name}
        path.write_text(INFORMATION.format(excluded=excluded, **fields))
        if device:
            self.device(minor).touch()

    def complete(self) -> None:
        """Add what a machine has besides: the driver's own file, and a folder for MIG instances."""
        self.device("ctl").touch()
        for information in (self.proc / "gpus").iterdir():
            minor = int(information.name.split(":")[1], 16) - 25
            self.partitions(minor).mkdir(parents=True, exist_ok=True)

    def set_version(self, version: str) -> None:
        (self.proc / "version").write_text(VERSION.format(version=version))

    def probe(self, *flags: str, compiler: str = "gcc") -> Path:
        """Compile the probe with the loader in it."""
        program, output = str(HERE / "loader_probe.c"), self.root / "probe"
        flags = (*STRICT, "-g", *flags, *self.places)
        objects = loader_objects(*flags, compiler=compiler)
        end = ("-ldl", "-lpthread")
        return compile_c(output, *flags, program, *objects, *end, compiler=compiler)

    def look(self, *arguments: object, **more: str) -> str:
        """Return the output of the probe, by default without NVML."""
        command = [str(self.root / "probe"), *map(str, arguments)]
        done = run(command, {"LD_LIBRARY_PATH": NO_NVML, **more})
        assert "Sanitizer" not in done.stderr, done.stderr
        assert "runtime error" not in done.stderr, done.stderr
        return done.stdout
