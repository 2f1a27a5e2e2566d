"""Capabilities of GPUs and targets of device code: parse, print, order.

A `Capability` is a property of a GPU (9.0), a `Target` a property of code (``sm_90a``,
``compute_90``). Both accept unpublished numbers; `archsplit.arch.compat` has the rules that connect
them.

Lists of targets are read and written in the spellings of nvcc's own flags, of PyTorch's
``TORCH_CUDA_ARCH_LIST`` and of CMake's ``CUDAARCHS``. Words whose meaning depends on the machine or
on the tool's version (``native``, ``all``) are refused: a release needs a fixed set. Sources:
``torch.utils.cpp_extension`` and CMake's property CUDA_ARCHITECTURES.
"""

from __future__ import annotations

import enum
import functools
import re
import shlex
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Literal

from archsplit.arch.gpus import GPUS
from archsplit.errors import TargetError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__pure__ = True

Suffix = Literal["", "a", "f"]
"""``a``: for exactly this capability; ``f``: for its family; none: for this and later ones."""

_CAPABILITY = re.compile(r"([1-9][0-9]{0,2})\.([0-9])")
_TARGET = re.compile(r"(sm|compute)_([1-9][0-9]{0,2})([0-9])([af]?)")
_SUFFIXES: dict[str, Suffix] = {"": "", "a": "a", "f": "f"}
_SPELLING = "write SASS targets like sm_90, sm_90a or sm_120f, and PTX targets like compute_90"
_MAJOR_LIMIT = 1000
_MINOR_LIMIT = 10


# Positional, unlike the other records: `Capability(9, 0)` reads as 9.0. Ordered, because PTX runs
# on all later capabilities.
@dataclass(frozen=True, slots=True, order=True)
class Capability:
    """Compute capability of a GPU: ``Capability(9, 0)`` is 9.0.

    The minor number has one digit, because the last digit of an sm number is the minor one:
    sm_103 is 10.3.
    """

    major: int
    minor: int

    def __post_init__(self) -> None:
        if not (0 < self.major < _MAJOR_LIMIT and 0 <= self.minor < _MINOR_LIMIT):
            raise ValueError(f"{self.major}.{self.minor} is not a compute capability")

    @classmethod
    def parse(cls, text: str) -> Capability:
        """Read a capability, as in ``9.0``.

        Raises:
            TargetError: the text is anything else.
        """
        match = _CAPABILITY.fullmatch(text)
        if match is None:
            raise TargetError(
                f"{text!r} is not a compute capability", hint="write it like 9.0 or 12.1"
            )
        return cls(int(match[1]), int(match[2]))

    @classmethod
    def from_sm_number(cls, number: int) -> Capability:
        """Read an sm number as in binaries: 90 is 9.0, 103 is 10.3.

        Raises:
            ValueError: no capability has this number.
        """
        return cls(*divmod(number, _MINOR_LIMIT))

    @property
    def sm_number(self) -> int:
        """Number in target names: 90 for 9.0, 103 for 10.3."""
        return self.major * _MINOR_LIMIT + self.minor

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


class CodeKind(enum.Enum):
    """Two forms of device code; the value is the word before the number in a target's name."""

    SASS = "sm"
    PTX = "compute"


@functools.total_ordering
@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Architecture that device code was built for: ``sm_90a``, ``compute_120``.

    Any capability is accepted, also of GPUs to come; see `archsplit.arch.compat.is_published`.
    Targets sort SASS first, then by capability, then by suffix.
    """

    kind: CodeKind
    capability: Capability
    suffix: Suffix = ""

    def __hash__(self) -> int:
        # Images are counted by target, and the hash of an enum's member is slow.
        capability = self.capability
        return hash((self.kind is CodeKind.PTX, capability.major, capability.minor, self.suffix))

    @classmethod
    def parse(cls, text: str) -> Target:
        """Read a target's name as nvcc spells it: ``sm_90``, ``sm_90a``, ``compute_120f``.

        Raises:
            TargetError: the text is anything else; the hint has the nearest name, if one is near.
        """
        match = _TARGET.fullmatch(text)
        if match is None:
            raise TargetError(f"{text!r} is not a target", hint=_nearest(text))
        kind, major, minor, suffix = match.groups()
        return cls(
            kind=CodeKind(kind),
            capability=Capability(int(major), int(minor)),
            suffix=_SUFFIXES[suffix],
        )

    def __str__(self) -> str:
        return f"{self.kind.value}_{self.capability.sm_number}{self.suffix}"

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, Target):
            return NotImplemented
        return self._sort_key() < other._sort_key()

    def _sort_key(self) -> tuple[bool, Capability, str]:
        # SASS first: it is what most users install, and lists in names, reports and plans follow
        # this order.
        return (self.kind is CodeKind.PTX, self.capability, self.suffix)


_TORCH = re.compile(r"([1-9][0-9]{0,2})\.([0-9])([af]?)(\+PTX)?")
_CMAKE = re.compile(r"([1-9][0-9]{1,3}[af]?)(-real|-virtual)?")
_GENCODE = re.compile(r"arch=compute_([0-9]+[af]?),code=\[?([a-z0-9_,]+)\]?")

# Source: named_arches in torch/utils/cpp_extension.py of the PyTorch releases for CUDA 13.
# Kept as text in PyTorch's own form, so that they can be compared with its source line by line.
_TORCH_NAMES = {
    "Kepler+Tesla": "3.7",
    "Kepler": "3.5+PTX",
    "Maxwell+Tegra": "5.3",
    "Maxwell": "5.0;5.2+PTX",
    "Pascal": "6.0;6.1+PTX",
    "Volta+Tegra": "7.2",
    "Volta": "7.0+PTX",
    "Turing": "7.5+PTX",
    "Ampere+Tegra": "8.7",
    "Ampere": "8.0;8.6+PTX",
    "Ada": "8.9+PTX",
    "Hopper": "9.0+PTX",
    "Blackwell+Tegra": "11.0",
    "Blackwell": "10.0;10.3;12.0;12.1+PTX",
}

# nvcc, CMake and PyTorch accept these words; the same recipe would build another release on another
# machine or with another toolkit.
_REFUSED = {
    "all": "every target that the toolkit happens to know",
    "all-major": "every major target that the toolkit happens to know",
    "native": "the GPUs of the machine that builds",
    "auto": "the GPUs of the machine that builds",
    "common": "a set that differs between versions of the build system",
    "off": "no flags at all",
}

_NVCC_OPTIONS = {
    "-gencode": "gencode",
    "--generate-code": "gencode",
    "-arch": "arch",
    "--gpu-architecture": "arch",
    "-code": "code",
    "--gpu-code": "code",
}


class UnfixedTargetsError(TargetError):
    """A word stands for other targets on another machine, or with another toolkit."""


def target_names(text: str) -> tuple[str, ...]:
    """Read target names, in the spellings of nvcc, PyTorch and CMake too.

    Entries are separated by commas, semicolons or spaces. No word has two meanings: ``9.0`` is
    PyTorch's, ``90`` is CMake's, ``sm_90`` is a target.

    Raises:
        TargetError: a word has an unknown spelling, or names no fixed set of targets.
    """
    if text.lstrip().startswith(("-", "arch=")):
        return nvcc_names(text)
    return tuple(chain.from_iterable(map(_any_word, re.findall(r"[^,;\s]+", text))))


def torch_names(text: str) -> tuple[str, ...]:
    """Read ``TORCH_CUDA_ARCH_LIST``: ``8.0;9.0a;12.0+PTX``, or generations such as ``Hopper``.

    Raises:
        TargetError: PyTorch would refuse a word, too, or it is ``native``.
    """
    return tuple(chain.from_iterable(map(_torch_word, re.findall(r"[^;\s]+", text))))


def nvcc_names(text: str) -> tuple[str, ...]:
    """Read nvcc's ``-gencode arch=compute_90,code=[sm_90,compute_90]``, ``-arch=sm_90``, ``-code``.

    ``-arch=sm_90`` by itself means SASS and PTX, as for nvcc.

    Raises:
        TargetError: another option, a pair whose two sides differ, or no fixed set of targets.
    """
    names: list[str] = []
    shorthand: dict[str, str] = {}
    for option, value in _nvcc_options(text):
        if option == "gencode":
            names += _gencode(value)
        # nvcc takes the last one without a warning, so the first would be lost unnoticed.
        elif shorthand.setdefault(option, value) != value:
            raise TargetError(f"-{option} is given twice in {text!r}", hint="use -gencode instead")
    return (*names, *_shorthand(shorthand))


def _any_word(word: str) -> tuple[str, ...]:
    _refuse(word)
    # Only PyTorch writes a point, and only CMake begins with a digit and has none.
    if "." in word or word in _TORCH_NAMES:
        return _torch_word(word)
    return _cmake_word(word) if word[:1].isdigit() else (word,)


def _torch_word(word: str) -> tuple[str, ...]:
    if word in _TORCH_NAMES:
        # A generation is a list of numbers, some with +PTX.
        return torch_names(_TORCH_NAMES[word])
    match = _TORCH.fullmatch(word)
    if match is None:
        _refuse(word)
        raise TargetError(
            f"{word!r} is not valid in TORCH_CUDA_ARCH_LIST",
            hint=f"write it like 9.0, 9.0a or 9.0+PTX; names are {', '.join(_TORCH_NAMES)}",
        )
    major, minor, suffix, ptx = match.groups()
    number = major + minor + suffix
    # PyTorch makes PTX only where +PTX is written; CMake makes it unless -real is.
    return (f"sm_{number}", f"compute_{number}") if ptx else (f"sm_{number}",)


def _cmake_word(word: str) -> tuple[str, ...]:
    match = _CMAKE.fullmatch(word)
    if match is None:
        raise TargetError(
            f"{word!r} is not valid in CMAKE_CUDA_ARCHITECTURES",
            hint="write it like 90, 90a-real or 120-virtual",
        )
    sass, ptx = f"sm_{match[1]}", f"compute_{match[1]}"
    return {"-real": (sass,), "-virtual": (ptx,)}.get(match[2], (sass, ptx))


def _refuse(word: str) -> None:
    if word.lower() in _REFUSED:
        raise UnfixedTargetsError(
            f"{word!r} is not a fixed set of targets: it means {_REFUSED[word.lower()]}",
            hint="list the targets, such as sm_80,sm_90,compute_90",
        )


def _nvcc_options(text: str) -> Iterator[tuple[str, str]]:
    try:
        words = iter(shlex.split(text))
    except ValueError as error:
        raise TargetError(f"can't read {text!r}: {error}") from error
    for word in words:
        # Only the value of a -gencode, as copied from a build log.
        if word.startswith("arch="):
            yield "gencode", word
            continue
        name, equals, value = word.partition("=")
        if name not in _NVCC_OPTIONS:
            raise TargetError(
                f"{word!r} is not a target option of nvcc",
                hint="only -gencode, -arch and -code, and their long forms, are read here",
            )
        # nvcc reads "-arch=sm_90" and "-arch sm_90" alike.
        yield _NVCC_OPTIONS[name], value if equals else next(words, "")


def _gencode(value: str) -> tuple[str, ...]:
    match = _GENCODE.fullmatch(value)
    if match is None:
        raise TargetError(
            f"{value!r} is not a valid value of -gencode",
            hint="write it like arch=compute_90,code=sm_90 or arch=compute_90,code=[sm_90]",
        )
    return _codes(match[1], match[2])


def _codes(number: str, codes: str) -> tuple[str, ...]:
    """Return the codes of one architecture; refuse codes of another, and LTO."""
    names = tuple(filter(None, codes.split(",")))
    for name in names:
        # nvcc would build sm_90 from compute_80; file names and the plan have one number for both.
        if name not in {f"sm_{number}", f"compute_{number}"}:
            raise TargetError(
                f"arch=compute_{number} with code={name}: archsplit builds each target from the"
                " virtual architecture of the same number, and no LTO code",
                hint=f"write only the targets, such as sm_{number}",
            )
    return names


def _shorthand(options: dict[str, str]) -> tuple[str, ...]:
    if not options:
        return ()
    arch = options.get("arch", "")
    _refuse(arch)
    kind, _, number = arch.partition("_")
    # nvcc's short form: arch=compute_90,code=[sm_90,compute_90].
    if kind == "sm" and "code" not in options:
        return (arch, f"compute_{number}")
    if kind == "compute":
        # Without -code, nvcc takes the value of -arch for it.
        return _codes(number, options.get("code", arch).strip("[]"))
    raise TargetError(
        f"-arch={arch} -code={options.get('code', '')} is not a pair that nvcc accepts",
        hint="write -arch=sm_90, or -gencode arch=compute_90,code=sm_90",
    )


def _nearest(text: str) -> str:
    if not text.lower().startswith(("sm", "compute")):
        # A product's name only looks like a target's: H100 is not an sm_100.
        return _SPELLING
    names = [
        f"{kind.value}_{gpu.sm}{suffix}"
        for kind in CodeKind
        for gpu in GPUS
        for suffix in ("", *gpu.suffixes)
    ]
    # A hyphen, as in sm-90, is the most frequent slip.
    import difflib  # noqa: PLC0415 - 1 ms of each call of the compiler wrapper

    near = difflib.get_close_matches(text.lower().replace("-", "_"), names, n=1)
    if near:
        return f"did you mean {near[0]}?"
    return _SPELLING


def torch_arch_list(targets: Iterable[Target]) -> str:
    """Return the list for PyTorch's extensions: ``8.0;9.0a;12.0+PTX``.

    PTX always has machine code of its own capability beside it there.
    """
    portable: dict[str, bool] = {}
    for target in sorted(targets):
        name = f"{target.capability}{target.suffix}"
        portable[name] = portable.get(name, False) or target.kind is CodeKind.PTX
    return ";".join(f"{name}+PTX" if ptx else name for name, ptx in portable.items())


def cmake_architectures(targets: Iterable[Target]) -> str:
    """Return the list for CMake: ``80-real;90a-real;120-virtual``."""
    return ";".join(
        f"{target.capability.sm_number}{target.suffix}-"
        + ("real" if target.kind is CodeKind.SASS else "virtual")
        for target in sorted(targets)
    )


def gencode_flags(targets: Iterable[Target]) -> str:
    """Return nvcc's flags, one word for each target: ``-gencode=arch=compute_90,code=sm_90``."""
    return " ".join(
        f"-gencode=arch=compute_{target.capability.sm_number}{target.suffix},code={target}"
        for target in sorted(targets)
    )
