"""CUDA toolkits and host tools: the first that works of the candidates, with its facts.

In: the candidates of `archsplit.nvcc.driver_search`; out: a `Toolkit` with release, targets and
folders, as nvcc itself prints them. Each skipped candidate keeps its reason, and a failed choice
lists all of them. `HostTools` are the C++ compiler and binutils, and their cross forms.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from archsplit.arch.compat import RENAMED_CAPABILITIES, capability_text, is_published
from archsplit.arch.target import Target
from archsplit.errors import ArchsplitError, TargetError, ToolNotFoundError
from archsplit.nvcc.driver_search import INSTALL_HINT, candidate_paths
from archsplit.system.process import Command, run_checked

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from archsplit.system.process import Runner

PROBE_SECONDS = 60.0
SHARED_FOLDER_MAJOR = 13
"""Major version from which the wheels of a toolkit share a folder: ``nvidia/cu13``."""

_RELEASE = re.compile(r"release (\d+)\.(\d+), V([\d.]+)")
_TARGET = re.compile(r"\b(?:sm|compute)_\d+[af]?\b")
_TOOLKIT_FOLDER = re.compile(r"^#\$ TOP=(.+?)\s*$", re.MULTILINE)
_OLDEST = (11, 8)
_STATIC_RUNTIME = "libcudart_static.a"
_TARGET_FOLDERS = {
    "x86_64": ("x86_64-linux",),
    # nvcc reads the first by itself; NVIDIA's packages for servers write the second.
    "aarch64": ("aarch64-linux", "sbsa-linux"),
}
_TOOLS = ("cudafe++", "ptxas", "fatbinary")
_COMPANION_PACKAGES = ("nvidia_nvvm", "nvidia_cuda_crt")


class NvccCandidate(NamedTuple):
    """A path where nvcc may be.

    Attributes:
        origin: source of the path, for messages: ``--nvcc``, ``CUDA_HOME``, ``PATH``, ``index
            wheels``.
        nvcc: the program's path, or None if the source has no path.
    """

    origin: str
    nvcc: Path | None


def nvcc_candidates(
    *, explicit: Path | None, environment: Mapping[str, str], site_folders: Sequence[Path]
) -> tuple[NvccCandidate, ...]:
    """Return all candidates, best first; see `candidate_paths` for the arguments."""
    found = candidate_paths(
        explicit=None if explicit is None else str(explicit),
        environment=environment,
        site_folders=tuple(map(str, site_folders)),
    )
    return tuple(
        NvccCandidate(origin=origin, nvcc=None if nvcc is None else Path(nvcc))
        for origin, nvcc in found
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolkit:
    """A working toolkit.

    Attributes:
        nvcc: absolute path of the compiler driver.
        root: the folder of ``bin``, ``include`` and the libraries.
        release: the full version, ``13.0.88``.
        origin: see `NvccCandidate`.
        targets: all targets that nvcc can compile for.
        library_folder: the folder of ``libcudart_static.a``.
    """

    nvcc: Path
    root: Path
    release: str
    origin: str
    targets: frozenset[Target]
    library_folder: Path

    @property
    def cuda_version(self) -> int:
        """Return the version as in ``CUDART_VERSION``: 13000 for 13.0."""
        major, minor = self.release.split(".")[:2]
        return int(major) * 1000 + int(minor) * 10

    @property
    def tools(self) -> tuple[Path, ...]:
        """Return the programs whose content determines the output of a build."""
        names = (self.nvcc.name, *_TOOLS)
        return (*(self.root / "bin" / name for name in names), self.root / "nvvm" / "bin" / "cicc")

    def for_machine(self, machine: str) -> Toolkit:
        """Return the same toolkit with the static libraries for another machine.

        Raises:
            ToolNotFoundError: it has none.
        """
        places = _TARGET_FOLDERS[machine]
        for place in places:
            if (self.root / "targets" / place / "lib" / _STATIC_RUNTIME).is_file():
                return replace(self, library_folder=self.root / "targets" / place / "lib")
        names = " or ".join(f"targets/{place}/lib" for place in places)
        major, minor = self.release.split(".")[:2]
        hint = f"install NVIDIA's cross package (cuda-cross-sbsa-{major}-{minor})"
        # The wheels of CUDA 11 and 12 have no static library.
        if int(major) >= SHARED_FOLDER_MAJOR:
            wheel = f"{machine} wheel of nvidia-cuda-runtime=={major}.{minor}.*"
            hint += f", or link the folder nvidia/cu{major} of the {wheel} there"
        raise ToolNotFoundError(
            f"CUDA {self.release} ({self.root}) has no {_STATIC_RUNTIME} for {machine} in {names}",
            hint=hint,
        )

    def check_targets(self, targets: Iterable[Target]) -> None:
        """Check that this toolkit can compile for all of the targets.

        Raises:
            TargetError: it can't; the message has these targets, the toolkit's version and its
                nearest targets.
        """
        unsupported = sorted(set(targets) - self.targets)
        if not unsupported:
            return
        lines = [unsupported_target_text(target, self.targets) for target in unsupported]
        raise TargetError(
            f"CUDA {self.release} ({self.nvcc}) can't compile for\n  " + "\n  ".join(lines),
            hint="take these targets out of the recipe, or use another toolkit with --nvcc",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolkitProbe:
    """The result of probing a candidate: a toolkit, or the reason for skipping it."""

    candidate: NvccCandidate
    toolkit: Toolkit | None
    reason: str

    def __str__(self) -> str:
        place = self.candidate.nvcc or "nowhere"
        return f"{self.candidate.origin}: {place}: {self.reason}"


def probe_toolkits(candidates: Iterable[NvccCandidate], runner: Runner) -> tuple[ToolkitProbe, ...]:
    """Probe the candidates in turn until one is a toolkit."""
    probes: list[ToolkitProbe] = []
    for candidate in candidates:
        probes.append(_probe(candidate, runner))
        if probes[-1].toolkit is not None:
            break
    return tuple(probes)


def find_major_toolkits(
    majors: Iterable[int], candidates: Sequence[NvccCandidate], runner: Runner
) -> dict[int, Toolkit]:
    """Return the first toolkit of each CUDA major.

    Raises:
        ToolNotFoundError: no candidate is of a major; the message lists each with its reason.
    """
    found: dict[int, Toolkit] = {}
    probes: list[ToolkitProbe] = []
    wanted = tuple(majors)
    for candidate in candidates:
        probes.append(_probe(candidate, runner))
        if toolkit := probes[-1].toolkit:
            found.setdefault(toolkit.cuda_version // 1000, toolkit)
        if found.keys() >= set(wanted):
            break
    if missing := [str(major) for major in wanted if major not in found]:
        tried = "\n  ".join(map(str, probes))
        raise ToolNotFoundError(
            f"no usable nvcc of CUDA {', '.join(missing)}; tried\n  {tried}",
            hint="name a toolkit for each major: --nvcc /usr/local/cuda-12.9 --nvcc …",
        )
    return {major: found[major] for major in wanted}


def installed_toolkits(folder: Path) -> tuple[NvccCandidate, ...]:
    """Return the toolkits of a folder such as ``/usr/local``, the newest first."""
    places = [path for path in folder.glob("cuda-*") if os.path.exists(path / "bin" / "nvcc")]  # noqa: PTH110
    # "cuda-12.10" is newer than "cuda-12.9".
    newest_first = sorted(places, key=_version_in_name, reverse=True)
    return tuple(
        NvccCandidate(origin=str(folder), nvcc=path / "bin" / "nvcc") for path in newest_first
    )


def choose_toolkit(probes: Sequence[ToolkitProbe]) -> Toolkit:
    """Return the first toolkit of the probes.

    Raises:
        ToolNotFoundError: no probe has a toolkit; the message lists each with its reason.
    """
    for probe in probes:
        if probe.toolkit is not None:
            return probe.toolkit
    tried = "\n  ".join(map(str, probes))
    raise ToolNotFoundError(f"no usable nvcc; tried\n  {tried}", hint=INSTALL_HINT)


def unsupported_target_text(target: Target, supported: AbstractSet[Target]) -> str:
    """Return a line with the toolkit's nearest targets and facts about the target."""
    nearest = _nearest_targets(target, supported)
    return f"{target}: the nearest that it knows are {nearest}; {_describe_target(target)}"


def _version_in_name(path: Path) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", path.name)]


def _describe_target(target: Target) -> str:
    renamed = RENAMED_CAPABILITIES.get(target.capability)
    if renamed is not None:
        return f"CUDA 13 renamed it to {target.kind.value}_{renamed.sm_number}{target.suffix}"
    if is_published(target):
        return f"it is for {capability_text(target.capability)}"
    return "it is not a published target that archsplit knows"


def _nearest_targets(target: Target, supported: AbstractSet[Target]) -> str:
    wanted = target.capability.sm_number
    same_kind = [other for other in supported if other.kind is target.kind]
    ranked = sorted(same_kind, key=lambda other: (abs(other.capability.sm_number - wanted), other))
    return ", ".join(map(str, sorted(ranked[:3])))


def _probe(candidate: NvccCandidate, runner: Runner) -> ToolkitProbe:
    nvcc = candidate.nvcc
    if nvcc is None:
        return ToolkitProbe(candidate=candidate, toolkit=None, reason="not found")
    # `Path.is_file` raises an error for a folder that this user may not search.
    if not os.path.isfile(nvcc):  # noqa: PTH113
        return ToolkitProbe(candidate=candidate, toolkit=None, reason="no such file")
    try:
        toolkit = _query(nvcc.absolute(), candidate.origin, runner)
    except ArchsplitError as error:
        return ToolkitProbe(candidate=candidate, toolkit=None, reason=str(error))
    return ToolkitProbe(candidate=candidate, toolkit=toolkit, reason=f"CUDA {toolkit.release}")


def _query(nvcc: Path, origin: str, runner: Runner) -> Toolkit:
    release = _RELEASE.search(_run_nvcc(nvcc, ("--version",), runner))
    if release is None:
        raise ToolNotFoundError("its --version is not like nvcc's")
    if (int(release[1]), int(release[2])) < _OLDEST:
        oldest = ".".join(map(str, _OLDEST))
        raise ToolNotFoundError(f"CUDA {release[3]} is too old: {oldest} or newer is needed")
    # nvcc may be a link or a script: only nvcc itself has the toolkit's folder.
    top = _TOOLKIT_FOLDER.search(_run_nvcc(nvcc, ("--dryrun", "-c", "probe.cu"), runner))
    if top is None:
        raise ToolNotFoundError("its --dryrun prints no toolkit folder")
    root = Path(top[1]).resolve()
    _check_wheels_match(root, release[3])
    return Toolkit(
        nvcc=root / "bin" / "nvcc",
        root=root,
        release=release[3],
        origin=origin,
        targets=_parse_targets(_run_nvcc(nvcc, ("--help",), runner)),
        library_folder=_find_library_folder(root),
    )


def _run_nvcc(nvcc: Path, arguments: tuple[str, ...], runner: Runner) -> str:
    # A dry run of a missing source exits with 0 and prints the toolkit's folders.
    command = Command(
        argv=(str(nvcc), *arguments),
        cwd=Path("/"),
        env={"PATH": "/usr/bin:/bin"},
        timeout=PROBE_SECONDS,
    )
    done = runner.run(command)
    if done.returncode != 0:
        raise ToolNotFoundError(f"{command.text()} exits with {done.returncode}: {done.tail()}")
    return done.stdout + done.stderr


def _parse_targets(help_text: str) -> frozenset[Target]:
    # The help lists the values of --gpu-architecture and --gpu-code with their a and f forms, which
    # --list-gpu-code leaves out.
    return frozenset(Target.parse(name) for name in _TARGET.findall(help_text))


def _find_library_folder(root: Path) -> Path:
    # The index's wheels put libraries into lib, where nvcc's own profile doesn't look.
    places = ("lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib")
    for place in places:
        if (root / place / _STATIC_RUNTIME).is_file():
            return root / place
    raise ToolNotFoundError(f"no {_STATIC_RUNTIME} in {', '.join(places)} of {root}")


def _check_wheels_match(root: Path, release: str) -> None:
    # nvidia-cuda-nvcc doesn't pin the wheels of cicc and its headers. A newer cicc writes a PTX
    # version that ptxas refuses, file after file.
    wanted = release.split(".")[:2]
    for name in _COMPANION_PACKAGES:
        for folder in sorted(root.parent.parent.glob(f"{name}-*.dist-info")):
            version = folder.name.removeprefix(f"{name}-").removesuffix(".dist-info")
            if version.split(".")[:2] != wanted:
                package = name.replace("_", "-")
                raise ToolNotFoundError(
                    f"nvcc is {release}, but {package} beside it is {version}",
                    hint=f"pip install '{package}=={'.'.join(wanted)}.*'",
                )


_BINUTILS_HINT = "apt-get install binutils"
_C_DRIVER = re.compile(r"(.*-)?(gcc|clang|cc)((?:-[\d.]+)?)")
_CXX_DRIVERS = {"gcc": "g++", "clang": "clang++", "cc": "c++"}


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTools:
    """The host's tools.

    Attributes:
        compiler: the C++ compiler, absolute.
        objcopy: GNU binutils' program, absolute.
        versions: the first lines of ``--version`` of compiler, objcopy, assembler and linker.
    """

    compiler: Path
    objcopy: Path
    versions: tuple[str, ...]


def find_host_tools(
    environment: Mapping[str, str], runner: Runner, *, cross: str = ""
) -> HostTools:
    """Find a C++ compiler (``NVCC_CCBIN``, ``CXX``, then g++), its tools, and objcopy.

    A program named by a variable is used or refused, never replaced by another one.

    Args:
        cross: another machine to compile for, such as ``aarch64``: its GNU cross tools are taken,
            and no variable is read, because variables name the tools for this machine.

    Raises:
        ToolNotFoundError: a tool is missing, or a variable names an unusable one.
        ToolFailedError: a tool can't print its version.
    """
    search = _ToolSearch(environment, runner)
    if cross:
        prefix = f"{cross}-linux-gnu-"
        hint = f"apt-get install g++-{cross.replace('_', '-')}-linux-gnu"
        compiler = search.find((), f"{prefix}g++", hint=hint)
        objcopy = search.find((), f"{prefix}objcopy", hint=hint)
    else:
        hint = "apt-get install g++, or set CXX to a C++ compiler"
        compiler = search.find(("NVCC_CCBIN", "CXX"), "g++", hint=hint)
        _refuse_c_driver(compiler)
        objcopy = search.find(("OBJCOPY",), "objcopy", hint=_BINUTILS_HINT)
    tools = (compiler, objcopy, *(search.compiler_tool(compiler, name) for name in ("as", "ld")))
    versions = tuple(search.first_line(tool, "--version") for tool in tools)
    return HostTools(compiler=compiler, objcopy=objcopy, versions=versions)


class _ToolSearch:
    """A search for programs in an environment, and queries to them."""

    def __init__(self, environment: Mapping[str, str], runner: Runner) -> None:
        self._environment = environment
        self._path = environment.get("PATH", "")
        self._runner = runner

    def find(self, variables: tuple[str, ...], default: str, *, hint: str) -> Path:
        named = next((name for name in variables if self._environment.get(name)), None)
        if named is None:
            return self._on_path(default, default, hint)
        value = self._environment[named]
        if shutil.which(value, path=self._path) is None:
            _refuse_flags(named, value)
        return self._on_path(value, f"{value} ({named})", f"correct {named}, or unset it")

    def compiler_tool(self, compiler: Path, name: str) -> Path:
        """Return the assembler or linker that a compiler runs."""
        # The compiler prints a path, or a name to search on the PATH.
        tool = self.first_line(compiler, f"-print-prog-name={name}")
        return self._on_path(tool, f"{tool} (of {compiler})", _BINUTILS_HINT)

    def first_line(self, tool: Path, argument: str) -> str:
        command = Command(
            argv=(str(tool), argument),
            cwd=Path("/"),
            env={"PATH": self._path, "LC_ALL": "C"},
            timeout=PROBE_SECONDS,
        )
        return run_checked(self._runner, command, what=tool.name).stdout.partition("\n")[0]

    def _on_path(self, program: str, what: str, hint: str) -> Path:
        path = shutil.which(program, path=self._path)
        if path is None:
            raise ToolNotFoundError(f"not found on PATH={self._path}: {what}", hint=hint)
        return Path(path).absolute()


def _refuse_flags(variable: str, value: str) -> None:
    try:
        words = shlex.split(value)
    except ValueError:
        words = [value]
    if len(words) > 1:
        raise ToolNotFoundError(
            f"{variable} is {value!r}, which is more than the name of one program",
            hint=f"set {variable} to the compiler only, and write flags in compile.host-flags",
        )


def _refuse_c_driver(compiler: Path) -> None:
    # gcc compiles C++ by the file's name, but links without the C++ library.
    if match := _C_DRIVER.fullmatch(compiler.name):
        prefix, driver, release = match.groups()
        raise ToolNotFoundError(
            f"{compiler} is a C compiler: what it links has no C++ library",
            hint=f"set NVCC_CCBIN or CXX to {prefix or ''}{_CXX_DRIVERS[driver]}{release}",
        )
