"""Which Linux a wheel's libraries run on, by auditwheel's own analysis; nothing in them is changed.

auditwheel runs as a child process, through the part of it that promises to stay: ``show --json``.
(``repair`` would rewrite the libraries, and device code doesn't survive that.) What it reads is an
archive made for it alone, of stored members, in a folder of its own. It is told to look for other
libraries nowhere, so that its verdict is about the wheel and not about this machine.
"""

from __future__ import annotations

import sys
from pathlib import PurePath
from typing import TYPE_CHECKING

from archsplit.errors import ToolFailedError, WheelError
from archsplit.formats.elf_header import MACHINE_NAMES, read_header
from archsplit.formats.mapped import open_file
from archsplit.system.epoch import ZIP_EPOCH
from archsplit.system.fs import sha256, temporary_dir
from archsplit.system.process import Command
from archsplit.wheels.filename import WheelName, distribution_name
from archsplit.wheels.member_names import WheelMember
from archsplit.wheels.metadata import CoreMetadata
from archsplit.wheels.platform_tags import parse_verdict
from archsplit.wheels.writer import WheelPlan, write_wheel

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from archsplit.system.process import Completed, Runner
    from archsplit.wheels.platform_tags import PlatformTags

DRIVER_LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
"""What the NVIDIA driver brings: never in a wheel, and on every machine that can use one."""

_THIS_MACHINE = ("LD_LIBRARY_PATH", "AUDITWHEEL_LD_LIBRARY_PATH")
_ANSWERED = {0, 1}
"""Exit statuses with an answer on standard output: a verdict, or nothing to analyse."""

_TIMEOUT = 600.0
"""Seconds; a library of a gigabyte takes a few."""


def platform_tags(
    libraries: Mapping[str, Path],
    *,
    runner: Runner,
    environment: Mapping[str, str],
    provided: Collection[str] = DRIVER_LIBRARIES,
    python: str = sys.executable,
) -> PlatformTags:
    """Find the platform tags of a wheel with these libraries.

    Args:
        libraries: the wheel's shared libraries, by their place in it.
        runner: starts auditwheel.
        environment: for auditwheel; where it says that libraries are is left out.
        provided: sonames, or patterns of them such as ``libcudart.so.*``, of libraries that
            something else than the system brings where the wheel is used.
        python: the interpreter that has auditwheel.

    Raises:
        BinaryFormatError: one is no ELF file.
        ToolFailedError: auditwheel fails, or says something that we don't know.
        WheelError: no tag fits; the message names the libraries or symbols that prevent it.
    """
    of = ", ".join(sorted(libraries))
    with temporary_dir() as room:
        probe = write_wheel(room, _probe(libraries), epoch=ZIP_EPOCH, level=0)
        kept = {name: text for name, text in environment.items() if name not in _THIS_MACHINE}
        arguments = ("show", "--json", "--ldpaths", "", probe.name)
        command = Command(
            argv=(python, "-m", "auditwheel", *arguments),
            cwd=room,
            env=kept | {"TMPDIR": str(room)},
            timeout=_TIMEOUT,
        )
        done = runner.run(command)
    _refuse_gaps(done, command)
    return parse_verdict(done.stdout, of=of).tags(provided, of=of)


class PlatformJudge:
    """Asks `platform_tags`, but once for the same bytes: it takes a child process each time.

    Args:
        runner: starts auditwheel.
        environment: for auditwheel; see `platform_tags`.
    """

    def __init__(self, *, runner: Runner, environment: Mapping[str, str]) -> None:
        self._runner = runner
        self._environment = environment
        self._answers: dict[tuple[object, ...], tuple[str, ...]] = {}

    def platforms(self, libraries: Mapping[str, Path], provided: Sequence[str]) -> tuple[str, ...]:
        """The names of the tags of a wheel with these libraries.

        Args:
            provided: sonames of libraries that other packages bring, besides the driver's.

        Raises:
            ArchsplitError: see `platform_tags`.
        """
        # A library alone is judged by its bytes; several may find each other by their names.
        several = len(libraries) > 1
        contents = sorted(
            (PurePath(name).name if several else "", sha256(path))
            for name, path in libraries.items()
        )
        question = (*contents, *provided)
        if question not in self._answers:
            tags = platform_tags(
                libraries,
                runner=self._runner,
                environment=self._environment,
                provided=(*DRIVER_LIBRARIES, *provided),
            )
            self._answers[question] = tags.names
        return self._answers[question]


def _probe(libraries: Mapping[str, Path]) -> WheelPlan:
    """Plan a wheel that nobody installs, with the libraries where they will be."""
    project = distribution_name("probe")
    return WheelPlan(
        name=WheelName(project=project, version="0", platforms=(_platform(libraries),)),
        metadata=CoreMetadata(name=project, version="0"),
        generator="archsplit",
        members=tuple(WheelMember(name=name, content=path) for name, path in libraries.items()),
    )


def _platform(libraries: Mapping[str, Path]) -> str:
    machines = {name: read_header(open_file(path)).machine for name, path in libraries.items()}
    known = {MACHINE_NAMES.get(machine) for machine in machines.values()}
    architecture = known.pop() if len(known) == 1 else None
    if architecture is None:
        found = ", ".join(f"{name} is for machine {number}" for name, number in machines.items())
        raise WheelError(
            f"a wheel needs libraries of one machine that has CUDA: {found or 'it has none'}",
            hint="machine 62 is x86-64, 183 is 64-bit Arm",
        )
    return f"linux_{architecture}"


def _refuse_gaps(done: Completed, command: Command) -> None:
    """Refuse an analysis that went wrong, or that left a library out."""
    left_out = [line for line in done.stderr.splitlines() if "ignoring: " in line]
    answered = done.returncode in _ANSWERED and done.stdout
    if not answered or (left_out and done.returncode == 0):
        raise ToolFailedError(
            f"auditwheel failed with exit status {done.returncode}: {command.text()}\n{done.tail()}"
        )
