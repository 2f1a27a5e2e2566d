"""Effects of a build or a split: processes, environment, progress, resources."""

from __future__ import annotations

import os
import platform
import site
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.system.process import SubprocessRunner
from archsplit.system.resources import available_cores

if TYPE_CHECKING:
    from collections.abc import Mapping

    from archsplit.cache.config import Settings
    from archsplit.formats.elf import ElfMachine
    from archsplit.remote.endpoint import EngineChoice
    from archsplit.system.process import Starter
    from archsplit.system.terminal import ProgressSink
    from archsplit.system.worker_processes import WorkerProcesses


def _site_folders() -> tuple[Path, ...]:
    # pip's build isolation puts its packages only on sys.path.
    folders = [*sys.path, *site.getsitepackages(), site.getusersitepackages()]
    return tuple(dict.fromkeys(Path(folder) for folder in folders if folder))


def _python_path() -> str:
    # Under pip's build isolation, auditwheel is where only this process's sys.path leads.
    return os.pathsep.join(filter(None, sys.path))


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """Effects that all stages share, set by the command line.

    Attributes:
        environment: the caller's environment; tools get a clean one that is made from it.
        jobs: the number of programs that run in parallel.
        memory: memory limit for all programs together, in bytes; None for the machine's memory.
        cache: the settings of the compile cache; None to build without it.
        explain: True to print the result of each cache lookup.
        trace: file for the start and end of each step; None for none.
        keep_going: True to run all steps of a build that need no failed one.
        python_path: ``PYTHONPATH`` for child processes, with the folders of this process.
        engine: the build farm that runs the steps; None for this machine.
        machine: the machine to build wheels for, as uname names it.
        site_folders: the folders to search for installed ``nvidia-*`` wheels.
        workers: permission to share work among processes; None for threads only.
    """

    progress: ProgressSink
    environment: Mapping[str, str] = field(repr=False)
    jobs: int = field(default_factory=available_cores)
    memory: int | None = None
    cache: Settings | None = None
    explain: bool = False
    engine: EngineChoice | None = None
    trace: Path | None = None
    keep_going: bool = False
    runner: Starter = field(default_factory=SubprocessRunner)
    site_folders: tuple[Path, ...] = field(default_factory=_site_folders)
    machine: str = field(default_factory=platform.machine)
    python_path: str = field(default_factory=_python_path)
    workers: WorkerProcesses | None = None

    @property
    def elf_machine(self) -> ElfMachine:
        """Machine of the loader: nvcc exists for these two machines only."""
        return "aarch64" if self.machine == "aarch64" else "x86_64"

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise ValueError("at least one job is needed")
