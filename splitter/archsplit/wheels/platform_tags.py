"""Platform tags of a wheel, from auditwheel's analysis of its libraries.

In: the libraries. Out: the oldest glibc that they run on, as tags for the file name.

auditwheel runs as a child process, through its stable interface: ``show --json``. (``repair`` would
rewrite the libraries, which device code doesn't survive.) Its input is an archive of stored members
in a folder of its own, and its search path for libraries is empty: so the result doesn't depend on
this machine.
"""

from __future__ import annotations

import fnmatch
import re
import sys
import zipfile
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from archsplit.errors import ToolFailedError, WheelError
from archsplit.formats.elf import MACHINE_NAMES, Elf, read_header
from archsplit.formats.elf_dynamic import needed_symbols, newer_symbols
from archsplit.formats.reader import open_file
from archsplit.system.fs import sha256, temporary_dir
from archsplit.system.process import Command
from archsplit.wheels.filename import WheelName, distribution_name
from archsplit.wheels.record import RecordRow, encode_record

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from archsplit.system.process import CompletedProcess, Runner

__pure__ = True

OLDEST_GLIBC = (2, 17)
"""Oldest glibc of a tag, however old the symbols of a library are.

The loader is built against no older one, and a tag may be newer than the wheel needs.
"""

LEGACY_PREFIXES = {(2, 17): "manylinux2014"}
"""Equal tags from before PEP 600, for installers of that time."""

DRIVER_LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
"""Libraries of the NVIDIA driver: never in a wheel, on every machine with a GPU."""

_SEARCH_PATHS = ("LD_LIBRARY_PATH", "AUDITWHEEL_LD_LIBRARY_PATH")
_REPORT_STATUSES = {0, 1}
"""Exit statuses with JSON on standard output: a report, or no libraries."""

_TIMEOUT = 600.0
"""Seconds: a library of a gigabyte takes a few."""

_POLICY = re.compile(r"manylinux_(\d+)_(\d+)_(\w+)")
_MUSL = re.compile(r"libc\.so|libc\.musl-.*|ld-musl-.*")
# A field that isn't known may change the meaning of the others, so it is an error.
# Built at the first report: at import, the checks would cost each command 0.04 s.
_STRICT = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformTags:
    """Architecture and the oldest glibc that a wheel runs on."""

    architecture: str
    glibc: tuple[int, int]

    @property
    def names(self) -> tuple[str, ...]:
        """Platform tags, all equal in meaning, sorted as in a file name."""
        major, minor = self.glibc
        prefixes = [f"manylinux_{major}_{minor}", LEGACY_PREFIXES.get(self.glibc, "")]
        return tuple(sorted(f"{prefix}_{self.architecture}" for prefix in prefixes if prefix))

    @property
    def policy(self) -> str:
        """Glibc as recipes have it: ``2_28``."""
        return "{}_{}".format(*self.glibc)

    @classmethod
    def parse(cls, names: Collection[str]) -> PlatformTags | None:
        """Return the tags of a file name; None if they need more than one glibc."""
        tags = [tag for tag in map(_policy, names) if tag is not None]
        is_one = len(tags) == 1 and tags[0].names == tuple(names)
        return tags[0] if is_one else None

    def keep(self, promise: PlatformTags) -> bool:
        """Return True if a system with the promised glibc can run the wheel."""
        return promise.architecture == self.architecture and promise.glibc >= self.glibc


class PolicyObstacles(BaseModel):
    """Libraries and symbols of a wheel that violate a policy."""

    model_config = _STRICT

    libs_to_eliminate: list[str] = Field(default_factory=list)
    blacklisted_symbols: dict[str, list[str]] = Field(default_factory=dict)

    def reasons(self, provided: Collection[str]) -> Iterator[str]:
        """Yield the reasons against the policy, where libraries of ``provided`` are there."""
        for name in self.libs_to_eliminate:
            # A better reason than "it needs libc.so".
            if _MUSL.fullmatch(name):
                yield f"it is linked against musl ({name}), and CUDA needs glibc"
            elif not any(fnmatch.fnmatchcase(name, pattern) for pattern in provided):
                yield f"it needs {name}, which not every Linux has"
        for name, symbols in self.blacklisted_symbols.items():
            yield f"it uses {', '.join(symbols)} of {name}, which no policy allows"


class AuditwheelReport(BaseModel):
    """Output of ``auditwheel show --json`` for a wheel with libraries, schema version 1.

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

    def tags(self, provided: Collection[str], *, subject: str) -> PlatformTags:
        """Return the oldest glibc that the wheel runs on, with the ``provided`` libraries.

        Args:
            provided: sonames, or patterns of them, of libraries that other packages install.
            subject: the wheel's name in errors.

        Raises:
            WheelError: no tag fits; the message has the reasons.
        """
        # The tag only by the versions of symbols; libraries are judged here, by what is provided.
        symbols = _policy(self.sym_tag)
        fitting = [
            policy.glibc
            for policy, obstacles in self._policies()
            # An older policy lacks symbols that the libraries use.
            if symbols and policy.glibc >= symbols.glibc and not any(obstacles.reasons(provided))
        ]
        reasons = list(self._reasons(provided))
        if symbols is None or not fitting or reasons:
            raise WheelError(
                f"{subject}: no platform tag fits; {'; '.join(reasons) or self.overall_tag}",
                hint="link other libraries statically, and compile on the oldest supported "
                "distribution, such as a manylinux image",
            )
        return PlatformTags(
            architecture=symbols.architecture, glibc=max(min(fitting), OLDEST_GLIBC)
        )

    def _policies(self) -> list[tuple[PlatformTags, PolicyObstacles]]:
        """Return the policies of the report with their obstacles, by glibc."""
        obstacles_by_tag = {self.overall_tag: PolicyObstacles(), **self.policy_upgrades}
        pairs = [(_policy(tag), obstacles) for tag, obstacles in obstacles_by_tag.items()]
        # Tags of musl and of plain Linux are not policies of manylinux.
        policies = [(policy, obstacles) for policy, obstacles in pairs if policy]
        return sorted(policies, key=lambda pair: pair[0].glibc)

    def _reasons(self, provided: Collection[str]) -> Iterator[str]:
        if self.sym_tag.startswith("musllinux_"):
            yield "it is linked against musl, and CUDA needs glibc"
        elif _policy(self.sym_tag) is None:
            symbols = [
                f"{name} ({', '.join(sorted(set(versions)))})"
                for name, versions in sorted(self.versioned_symbols.items())
            ]
            yield f"no policy has all symbols that it needs from {'; '.join(symbols)}"
        if self.unsupported_isa:
            yield "it is marked as needing more than its architecture's oldest instructions"
        if self.pyfpe or self.ucs2:
            yield "it is an extension module of Python 2"
        # What violates even the newest policy violates all of them.
        for _, newest in self._policies()[-1:]:
            yield from newest.reasons(provided)


class AuditwheelRefusal(BaseModel):
    """Output of ``auditwheel show --json`` for a wheel without libraries."""

    model_config = _STRICT

    version: Literal[1]
    wheel: str
    error: str


_OUTPUT: TypeAdapter[AuditwheelReport | AuditwheelRefusal] = TypeAdapter(
    AuditwheelReport | AuditwheelRefusal
)


def parse_auditwheel(text: str, *, subject: str) -> AuditwheelReport:
    """Parse the output of ``auditwheel show --json``.

    Raises:
        ToolFailedError: the output is not of a known schema; the message has all of it.
        WheelError: the wheel has no libraries.
    """
    try:
        # One of two schemas; pydantic tries both.
        output = _OUTPUT.validate_json(text)
    except ValidationError as error:
        raise ToolFailedError(
            f"the output of auditwheel for {subject} is not of schema version 1: {error}\n{text}",
            hint="install auditwheel 6.8 or a later 6.x",
        ) from None
    if isinstance(output, AuditwheelRefusal):
        raise WheelError(f"{subject}: {output.error.strip()}")
    return output


def _policy(tag: str) -> PlatformTags | None:
    match = _POLICY.fullmatch(tag)
    if match is None:
        return None
    return PlatformTags(architecture=match[3], glibc=(int(match[1]), int(match[2])))


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
        libraries: the wheel's shared libraries, by member name.
        runner: starts auditwheel.
        environment: for auditwheel; library search paths are left out.
        provided: sonames, or patterns of them such as ``libcudart.so.*``, of libraries that
            other packages install.
        python: the interpreter that has auditwheel.

    Raises:
        BinaryFormatError: a library is not an ELF file.
        ToolFailedError: auditwheel fails, or its output is not of a known schema.
        WheelError: no tag fits; the message names the libraries or symbols that prevent it.
    """
    subject = ", ".join(sorted(libraries))
    with temporary_dir() as folder:
        probe = _write_probe(folder, libraries)
        # Libraries of this machine would hide that the wheel lacks them.
        kept = {name: text for name, text in environment.items() if name not in _SEARCH_PATHS}
        arguments = ("show", "--json", "--ldpaths", "", probe.name)
        command = Command(
            argv=(python, "-m", "auditwheel", *arguments),
            cwd=folder,
            env=kept | {"TMPDIR": str(folder)},
            timeout=_TIMEOUT,
        )
        result = runner.run(command)
    # auditwheel warns about a file that it can't read, and goes on without it.
    _check_completed(result, command)
    return parse_auditwheel(result.stdout, subject=subject).tags(provided, subject=subject)


class PlatformTagCache:
    """Platform tags by the bytes of libraries, found once: each search takes a process.

    Args:
        runner: starts auditwheel.
        environment: for auditwheel; see `find_platform_tags`.
        found: the tags of another cache with such a runner and environment, to share them.
    """

    def __init__(
        self,
        *,
        runner: Runner,
        environment: Mapping[str, str],
        found: dict[tuple[object, ...], PlatformTags] | None = None,
    ) -> None:
        self._runner = runner
        self._environment = environment
        self._tags = {} if found is None else found

    def platforms(self, libraries: Mapping[str, Path], provided: Sequence[str]) -> tuple[str, ...]:
        """Return the tags of a wheel with these libraries.

        Args:
            provided: sonames of libraries that other packages install, besides the driver's.

        Raises:
            ArchsplitError: see `find_platform_tags`.
        """
        return self.promised(libraries, provided, "")

    def promised(
        self, libraries: Mapping[str, Path], provided: Sequence[str], policy: str
    ) -> tuple[str, ...]:
        """Return the tags of a wheel that promises a glibc.

        Args:
            policy: the glibc as in ``2_28``; "" for the oldest that the libraries run on.

        Raises:
            WheelError: a library needs a newer glibc; the message names the symbols.
            ArchsplitError: see `find_platform_tags`.
        """
        tags = self._find(libraries, provided)
        if not policy:
            return tags.names
        major, minor = map(int, policy.split("_"))
        promise = replace(tags, glibc=(major, minor))
        if not tags.keep(promise):
            raise _broken_promise(libraries, promise, tags)
        return promise.names

    def _find(self, libraries: Mapping[str, Path], provided: Sequence[str]) -> PlatformTags:
        # Several libraries may find each other by their names, a single one has no other.
        has_several = len(libraries) > 1
        contents = sorted(
            (PurePath(name).name if has_several else "", sha256(path))
            for name, path in libraries.items()
        )
        key = (*contents, *provided)
        # By content: a nightly build has the same libraries in several wheels.
        if key not in self._tags:
            tags = find_platform_tags(
                libraries,
                runner=self._runner,
                environment=self._environment,
                provided=(*DRIVER_LIBRARIES, *provided),
            )
            self._tags[key] = tags
        return self._tags[key]


def _broken_promise(
    libraries: Mapping[str, Path], promise: PlatformTags, tags: PlatformTags
) -> WheelError:
    """Return the error of libraries that need a later glibc than a recipe promises."""
    names: list[str] = []
    for path in libraries.values():
        newer = newer_symbols(needed_symbols(Elf(open_file(path))), promise.glibc)
        names += (f"{name} ({version})" for version in newer for name in newer[version])
    # Another library than glibc's may be what a policy lacks: then no symbol of glibc's is newer.
    of, symbols = ", ".join(sorted(libraries)), ", ".join(names) or "libraries of a newer policy"
    return WheelError(
        f"{of}: needs {symbols}, but the recipe promises manylinux_{promise.policy}",
        hint=f'compile in an image of manylinux_{promise.policy}, or write manylinux = "'
        f'{tags.policy}" in [targets]',
    )


def _write_probe(folder: Path, libraries: Mapping[str, Path]) -> Path:
    """Write a wheel for auditwheel, with the libraries at their paths."""
    name = WheelName(
        project=distribution_name("probe"), version="0", platforms=(_platform(libraries),)
    )
    path = folder / str(name)
    # Stored, not compressed: auditwheel unpacks it at once.
    with zipfile.ZipFile(path, "w", strict_timestamps=False) as archive:
        for member, library in libraries.items():
            archive.write(library, member)
        archive.writestr(f"{name.dist_info}/WHEEL", f"Tag: {name.tags[0]}\n")
        # auditwheel looks only at the files of RECORD, without their hashes.
        rows = [RecordRow(path=member) for member in libraries]
        archive.writestr(f"{name.dist_info}/RECORD", encode_record(rows))
    return path


def _platform(libraries: Mapping[str, Path]) -> str:
    machines = {name: read_header(open_file(path)).machine for name, path in libraries.items()}
    names = {MACHINE_NAMES.get(machine) for machine in machines.values()}
    # A wheel has one platform.
    architecture = names.pop() if len(names) == 1 else None
    if architecture is None:
        found = ", ".join(f"{name} is for machine {number}" for name, number in machines.items())
        raise WheelError(
            f"a wheel needs libraries of one machine that has CUDA: {found or 'it has none'}",
            hint="machine 62 is x86-64, 183 is 64-bit Arm",
        )
    return f"linux_{architecture}"


def _check_completed(result: CompletedProcess, command: Command) -> None:
    """Refuse an analysis that failed, or that left a library out."""
    ignored = [line for line in result.stderr.splitlines() if "ignoring: " in line]
    has_report = result.returncode in _REPORT_STATUSES and result.stdout
    if not has_report or (ignored and result.returncode == 0):
        raise ToolFailedError(
            f"auditwheel failed with exit status {result.returncode}: {command.text()}\n"
            f"{result.tail()}"
        )
