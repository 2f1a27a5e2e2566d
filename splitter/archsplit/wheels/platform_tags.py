"""Platform tags: what auditwheel found in a wheel's libraries, and the tag that follows from it.

Which Linux a wheel's libraries run on, by auditwheel's own analysis; nothing in them is changed.

auditwheel runs as a child process, through the part of it that promises to stay: ``show --json``.
(``repair`` would rewrite the libraries, and device code doesn't survive that.) What it reads is an
archive made for it alone, of stored members, in a folder of its own. It is told to look for other
libraries nowhere, so that its verdict is about the wheel and not about this machine.
"""

from __future__ import annotations

import fnmatch
import re
import sys
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from archsplit.errors import ToolFailedError, WheelError
from archsplit.formats.elf import MACHINE_NAMES, read_header
from archsplit.formats.reader import open_file
from archsplit.system.env import ZIP_EPOCH
from archsplit.system.fs import sha256, temporary_dir
from archsplit.system.process import Command
from archsplit.wheels.filename import WheelName, distribution_name
from archsplit.wheels.member_names import WheelMember
from archsplit.wheels.metadata import CoreMetadata
from archsplit.wheels.writer import WheelPlan, write_wheel

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from archsplit.system.process import CompletedProcess, Runner

__pure__ = True

OLDEST_GLIBC = (2, 17)
"""No tag of ours promises an older glibc, however old the symbols are that a library uses.

It is the oldest that anything here is built against, and a newer tag than need be is never wrong.
"""

LEGACY_PREFIXES = {(2, 17): "manylinux2014"}
"""Names from before PEP 600 with the same meaning, for the installers of that time."""

_POLICY = re.compile(r"manylinux_(\d+)_(\d+)_(\w+)")
_MUSL = re.compile(r"libc\.so|libc\.musl-.*|ld-musl-.*")
_STRICT = ConfigDict(extra="forbid", frozen=True, strict=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformTags:
    """The machines that a wheel runs on: an architecture, and the oldest glibc."""

    architecture: str
    glibc: tuple[int, int]

    @property
    def names(self) -> tuple[str, ...]:
        """The platform tags, all of one meaning, sorted as in a file name."""
        major, minor = self.glibc
        prefixes = [f"manylinux_{major}_{minor}", LEGACY_PREFIXES.get(self.glibc, "")]
        return tuple(sorted(f"{prefix}_{self.architecture}" for prefix in prefixes if prefix))


class PolicyObstacles(BaseModel):
    """What keeps a wheel from one policy: libraries, and symbols by the library they are in."""

    model_config = _STRICT

    libs_to_eliminate: list[str] = Field(default_factory=list)
    blacklisted_symbols: dict[str, list[str]] = Field(default_factory=dict)

    def reasons(self, provided: Collection[str]) -> Iterator[str]:
        """What is left of them where there are libraries that match the patterns ``provided``."""
        for name in self.libs_to_eliminate:
            if _MUSL.fullmatch(name):
                yield f"it is linked against musl ({name}), and CUDA needs glibc"
            elif not any(fnmatch.fnmatchcase(name, pattern) for pattern in provided):
                yield f"it needs {name}, which is not part of every Linux"
        for name, symbols in self.blacklisted_symbols.items():
            yield f"it uses {', '.join(symbols)} of {name}, which no policy allows"


class AuditwheelReport(BaseModel):
    """What ``auditwheel show --json`` says of a wheel with libraries: version 1 of its schema.

    Source: ``show-schema.json`` in auditwheel, from 6.8.0 on.
    """

    model_config = _STRICT

    version: Literal[1]
    wheel: str
    pure: Literal[False]
    overall_tag: str
    sym_tag: str
    pyfpe: bool
    ucs2: bool
    unsupported_isa: bool
    versioned_symbols: dict[str, list[str]]
    external_libs: dict[str, str | None]
    policy_upgrades: dict[str, PolicyObstacles]

    def tags(self, provided: Collection[str], *, of: str) -> PlatformTags:
        """The oldest glibc that the wheel runs on, where the ``provided`` libraries are.

        Args:
            provided: sonames, or patterns of them, of libraries that are neither in the wheel nor
                part of every Linux, but will be there where the wheel runs.
            of: what to call the wheel in an error.

        Raises:
            WheelError: the wheel runs on no Linux that has a tag; the message says why not.
        """
        symbols = _policy(self.sym_tag)
        fitting = [
            policy.glibc
            for policy, obstacles in self._policies()
            if symbols and policy.glibc >= symbols.glibc and not any(obstacles.reasons(provided))
        ]
        reasons = list(self._reasons(provided))
        if symbols is None or not fitting or reasons:
            raise WheelError(
                f"{of}: no platform tag fits; {'; '.join(reasons) or self.overall_tag}",
                hint="link libraries of others statically, and compile on the oldest distribution "
                "that you want to serve, such as in a manylinux image",
            )
        return PlatformTags(
            architecture=symbols.architecture, glibc=max(min(fitting), OLDEST_GLIBC)
        )

    def _policies(self) -> list[tuple[PlatformTags, PolicyObstacles]]:
        """The policies that the verdict names, each with what keeps the wheel from it."""
        found = {self.overall_tag: PolicyObstacles(), **self.policy_upgrades}
        pairs = [(_policy(tag), obstacles) for tag, obstacles in found.items()]
        known = [(policy, obstacles) for policy, obstacles in pairs if policy]
        return sorted(known, key=lambda pair: pair[0].glibc)

    def _reasons(self, provided: Collection[str]) -> Iterator[str]:
        if self.sym_tag.startswith("musllinux_"):
            yield "it is linked against musl, and CUDA needs glibc"
        elif _policy(self.sym_tag) is None:
            symbols = [
                f"{name} ({', '.join(sorted(set(versions)))})"
                for name, versions in sorted(self.versioned_symbols.items())
            ]
            yield f"no policy has all the symbols that it uses of {'; '.join(symbols)}"
        if self.unsupported_isa:
            yield "it is marked as needing more than its architecture's oldest instructions"
        if self.pyfpe or self.ucs2:
            yield "it is an extension module of Python 2"
        for _, newest in self._policies()[-1:]:
            yield from newest.reasons(provided)


class AuditwheelRefusal(BaseModel):
    """What ``auditwheel show --json`` says where it finds nothing to analyse."""

    model_config = _STRICT

    version: Literal[1]
    wheel: str
    error: str


_ANSWER: TypeAdapter[AuditwheelReport | AuditwheelRefusal] = TypeAdapter(
    AuditwheelReport | AuditwheelRefusal
)


def parse_auditwheel(text: str, *, of: str) -> AuditwheelReport:
    """Read what ``auditwheel show --json`` printed.

    Raises:
        ToolFailedError: something that we don't know; the message has all of it.
        WheelError: auditwheel found nothing to analyse in ``of``.
    """
    try:
        answer = _ANSWER.validate_json(text)
    except ValidationError as error:
        raise ToolFailedError(
            f"auditwheel said of {of} what archsplit doesn't know: {error}\n{text}",
            hint="archsplit reads version 1 of its schema: auditwheel 6.8 or a later 6.x",
        ) from None
    if isinstance(answer, AuditwheelRefusal):
        raise WheelError(f"{of}: {answer.error.strip()}")
    return answer


def _policy(tag: str) -> PlatformTags | None:
    match = _POLICY.fullmatch(tag)
    if match is None:
        return None
    return PlatformTags(architecture=match[3], glibc=(int(match[1]), int(match[2])))


DRIVER_LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
"""What the NVIDIA driver brings: never in a wheel, and on every machine that can use one."""

_THIS_MACHINE = ("LD_LIBRARY_PATH", "AUDITWHEEL_LD_LIBRARY_PATH")
_ANSWERED = {0, 1}
"""Exit statuses with an answer on standard output: a verdict, or nothing to analyse."""

_TIMEOUT = 600.0
"""Seconds; a library of a gigabyte takes a few."""


def find_platform_tags(
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
    return parse_auditwheel(done.stdout, of=of).tags(provided, of=of)


class PlatformTagCache:
    """Asks `find_platform_tags`, but once for the same bytes: it takes a child process each time.

    Args:
        runner: starts auditwheel.
        environment: for auditwheel; see `find_platform_tags`.
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
            ArchsplitError: see `find_platform_tags`.
        """
        # A library alone is judged by its bytes; several may find each other by their names.
        several = len(libraries) > 1
        contents = sorted(
            (PurePath(name).name if several else "", sha256(path))
            for name, path in libraries.items()
        )
        question = (*contents, *provided)
        if question not in self._answers:
            tags = find_platform_tags(
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


def _refuse_gaps(done: CompletedProcess, command: Command) -> None:
    """Refuse an analysis that went wrong, or that left a library out."""
    left_out = [line for line in done.stderr.splitlines() if "ignoring: " in line]
    answered = done.returncode in _ANSWERED and done.stdout
    if not answered or (left_out and done.returncode == 0):
        raise ToolFailedError(
            f"auditwheel failed with exit status {done.returncode}: {command.text()}\n{done.tail()}"
        )
