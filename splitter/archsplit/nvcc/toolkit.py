"""Where nvcc may be: the places as data, best first; nothing is run here.

The wrapper itself may stand at one of these places, as compiler caches do: as a link, or a script,
that is called nvcc. Such a place is passed over, or the wrapper would start itself without end.

What to say of a target that a toolkit can't compile for.

Find a CUDA toolkit: one probe for each candidate, then a choice that explains itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.arch.compat import RENAMED_CAPABILITIES, capability_text, is_published
from archsplit.arch.target import Target
from archsplit.errors import ArchsplitError, TargetError, ToolNotFoundError
from archsplit.nvcc.driver_search import INSTALL_HINT, NvccCandidate
from archsplit.system.process import Command

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from collections.abc import Set as AbstractSet

    from archsplit.system.process import Runner


def unsupported_target_text(target: Target, supported: AbstractSet[Target]) -> str:
    """One line: the nearest that the toolkit has, and whether anybody has heard of the target."""
    return f"{target}: the nearest it knows are {_nearest(target, supported)}; {_what(target)}"


def _what(target: Target) -> str:
    renamed = RENAMED_CAPABILITIES.get(target.capability)
    if renamed is not None:
        return f"CUDA 13 renamed it to {target.kind.value}_{renamed.sm_number}{target.suffix}"
    if is_published(target):
        return f"it is for {capability_text(target.capability)}"
    return "it is not a published target that archsplit knows"


def _nearest(target: Target, supported: AbstractSet[Target]) -> str:
    wanted = target.capability.sm_number
    same_kind = [known for known in supported if known.kind is target.kind]
    ranked = sorted(same_kind, key=lambda known: (abs(known.capability.sm_number - wanted), known))
    return ", ".join(str(known) for known in sorted(ranked[:3]))


PROBE_SECONDS = 60.0

_RELEASE = re.compile(r"release (\d+)\.(\d+), V([\d.]+)")
_TARGET = re.compile(r"\b(?:sm|compute)_\d+[af]?\b")
_TOP = re.compile(r"^#\$ TOP=(.+?)\s*$", re.MULTILINE)
_OLDEST = (11, 8)
_TOOLS = ("cudafe++", "ptxas", "fatbinary")
_FOLLOWERS = ("nvidia_nvvm", "nvidia_cuda_crt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolkit:
    """A toolkit that was found and asked.

    Attributes:
        nvcc: absolute path of the compiler driver.
        root: the folder that holds ``bin``, ``include`` and the libraries.
        release: all of the version, ``13.0.88``.
        origin: see `NvccCandidate`.
        targets: every target that it can compile for.
        library_folder: where its ``libcudart_static.a`` lies.
    """

    nvcc: Path
    root: Path
    release: str
    origin: str
    targets: frozenset[Target]
    library_folder: Path

    @property
    def cuda_version(self) -> int:
        """The version as ``CUDART_VERSION`` has it: 13000 for 13.0."""
        major, minor = self.release.split(".")[:2]
        return int(major) * 1000 + int(minor) * 10

    @property
    def tools(self) -> tuple[Path, ...]:
        """The programs whose content decides what comes out of a build."""
        names = (self.nvcc.name, *_TOOLS)
        return (*(self.root / "bin" / name for name in names), self.root / "nvvm" / "bin" / "cicc")

    def check_targets(self, targets: Iterable[Target]) -> None:
        """Refuse targets that this toolkit can't compile for.

        Raises:
            TargetError: names each of them, the toolkit's version and the nearest that it knows.
        """
        unknown = sorted(set(targets) - self.targets)
        if not unknown:
            return
        lines = [unsupported_target_text(target, self.targets) for target in unknown]
        raise TargetError(
            f"CUDA {self.release} ({self.nvcc}) can't compile for\n  " + "\n  ".join(lines),
            hint="take these targets out of the recipe, or use another toolkit with --nvcc",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolkitProbe:
    """What became of a candidate: a toolkit, or the reason why it was passed over."""

    candidate: NvccCandidate
    toolkit: Toolkit | None
    reason: str

    def __str__(self) -> str:
        place = self.candidate.nvcc or "nowhere"
        return f"{self.candidate.origin}: {place}: {self.reason}"


def probe_toolkits(places: Iterable[NvccCandidate], runner: Runner) -> tuple[ToolkitProbe, ...]:
    """Ask each candidate in turn until one answers as a toolkit should."""
    attempts: list[ToolkitProbe] = []
    for candidate in places:
        attempts.append(_probe(candidate, runner))
        if attempts[-1].toolkit is not None:
            break
    return tuple(attempts)


def choose_toolkit(attempts: Sequence[ToolkitProbe]) -> Toolkit:
    """The toolkit that was found.

    Raises:
        ToolNotFoundError: none was; the message lists every place and why it was passed over.
    """
    for attempt in attempts:
        if attempt.toolkit is not None:
            return attempt.toolkit
    tried = "\n  ".join(str(attempt) for attempt in attempts)
    raise ToolNotFoundError(f"no usable nvcc; tried\n  {tried}", hint=INSTALL_HINT)


def _probe(candidate: NvccCandidate, runner: Runner) -> ToolkitProbe:
    nvcc = candidate.nvcc
    if nvcc is None:
        return ToolkitProbe(candidate=candidate, toolkit=None, reason="not found")
    if not nvcc.is_file():
        return ToolkitProbe(candidate=candidate, toolkit=None, reason="no such file")
    try:
        toolkit = _ask(nvcc.absolute(), candidate.origin, runner)
    except ArchsplitError as error:
        return ToolkitProbe(candidate=candidate, toolkit=None, reason=str(error))
    return ToolkitProbe(candidate=candidate, toolkit=toolkit, reason=f"CUDA {toolkit.release}")


def _ask(nvcc: Path, origin: str, runner: Runner) -> Toolkit:
    release = _RELEASE.search(_output(nvcc, ("--version",), runner))
    if release is None:
        raise ToolNotFoundError("its --version doesn't look like nvcc's")
    if (int(release[1]), int(release[2])) < _OLDEST:
        oldest = ".".join(map(str, _OLDEST))
        raise ToolNotFoundError(f"CUDA {release[3]} is too old: {oldest} or newer is needed")
    top = _TOP.search(_output(nvcc, ("--dryrun", "-c", "probe.cu"), runner))
    if top is None:
        raise ToolNotFoundError("its --dryrun doesn't say where its toolkit is")
    root = Path(top[1]).resolve()
    _check_wheels_match(root, release[3])
    return Toolkit(
        nvcc=root / "bin" / "nvcc",
        root=root,
        release=release[3],
        origin=origin,
        targets=_supported(_output(nvcc, ("--help",), runner)),
        library_folder=_library_folder(root),
    )


def _output(nvcc: Path, arguments: tuple[str, ...], runner: Runner) -> str:
    # A dryrun with an input that isn't there exits with 0 and prints the toolkit's folders.
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


def _supported(help_text: str) -> frozenset[Target]:
    # The help lists what --gpu-architecture and --gpu-code accept, with the a and f forms that
    # --list-gpu-code leaves out.
    return frozenset(Target.parse(name) for name in _TARGET.findall(help_text))


def _library_folder(root: Path) -> Path:
    # The index's wheels put libraries into lib, where nvcc's own profile doesn't look.
    places = ("lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib")
    for place in places:
        if (root / place / "libcudart_static.a").is_file():
            return root / place
    raise ToolNotFoundError(f"no libcudart_static.a in {', '.join(places)} of {root}")


def _check_wheels_match(root: Path, release: str) -> None:
    # nvidia-cuda-nvcc doesn't pin the wheels that hold cicc and its headers. A newer cicc writes
    # a PTX version that ptxas refuses, file after file.
    wanted = release.split(".")[:2]
    for name in _FOLLOWERS:
        for folder in sorted(root.parent.parent.glob(f"{name}-*.dist-info")):
            version = folder.name.removeprefix(f"{name}-").removesuffix(".dist-info")
            if version.split(".")[:2] != wanted:
                package = name.replace("_", "-")
                raise ToolNotFoundError(
                    f"nvcc is {release}, but {package} beside it is {version}",
                    hint=f"pip install '{package}=={'.'.join(wanted)}.*'",
                )
