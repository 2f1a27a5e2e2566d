"""Capabilities of GPUs and targets of device code: parse, print, order.

A `Capability` is a property of a GPU (9.0), a `Target` a property of code (``sm_90a``,
``compute_90``). Both accept unpublished numbers; `archsplit.arch.compat` has the rules that connect
them.
"""

from __future__ import annotations

import difflib
import enum
import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from archsplit.arch.gpus import GPUS
from archsplit.arch.parsing import target_names
from archsplit.errors import TargetError

if TYPE_CHECKING:
    from collections.abc import Callable

__pure__ = True

Suffix = Literal["", "a", "f"]
"""``a``: for exactly this capability; ``f``: for its family; none: for this and later ones."""

_CAPABILITY = re.compile(r"([1-9][0-9]{0,2})\.([0-9])")
_TARGET = re.compile(r"(sm|compute)_([1-9][0-9]{0,2})([0-9])([af]?)")
_SUFFIXES: dict[str, Suffix] = {"": "", "a": "a", "f": "f"}
_SPELLING = "write SASS targets as in sm_90, sm_90a or sm_120f, and PTX targets as in compute_90"
_MAJOR_LIMIT = 1000
_MINOR_LIMIT = 10


# Positional, unlike the other records: `Capability(9, 0)` reads as 9.0. Ordered, because PTX runs
# on all later capabilities.
@dataclass(frozen=True, slots=True, order=True)
class Capability:
    """The compute capability of a GPU: ``Capability(9, 0)`` is 9.0.

    The minor number has one digit, because the last digit of an sm number is the minor one:
    sm_103 is 10.3.
    """

    major: int
    minor: int

    def __post_init__(self) -> None:
        if not (0 < self.major < _MAJOR_LIMIT and 0 <= self.minor < _MINOR_LIMIT):
            raise ValueError(f"no capability has the numbers {self.major} and {self.minor}")

    @classmethod
    def parse(cls, text: str) -> Capability:
        """Read a capability, as in ``9.0``.

        Raises:
            TargetError: the text is anything else.
        """
        match = _CAPABILITY.fullmatch(text)
        if match is None:
            raise TargetError(
                f"{text!r} is not a compute capability", hint="write it as in 9.0 or 12.1"
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
        """The number in target names: 90 for 9.0, 103 for 10.3."""
        return self.major * _MINOR_LIMIT + self.minor

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


class CodeKind(enum.Enum):
    """The two forms of device code; the value is the word before the number in a target's name."""

    SASS = "sm"
    PTX = "compute"


@functools.total_ordering
@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The architecture that device code was built for: ``sm_90a``, ``compute_120``.

    Any capability is accepted, also of GPUs to come; see `archsplit.arch.compat.is_published`.
    Targets sort SASS first, then by capability, then by suffix.
    """

    kind: CodeKind
    capability: Capability
    suffix: Suffix = ""

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


def parse_targets(
    text: str, *, spelling: Callable[[str], tuple[str, ...]] = target_names
) -> tuple[Target, ...]:
    """Read a list of targets in a spelling of `archsplit.arch.parsing`.

    Args:
        text: the list.
        spelling: a function of that module; any spelling by default.

    Returns:
        The targets without repetition, in their own order.

    Raises:
        TargetError: an entry can't be read, or the list is empty.
    """
    # "90" and "sm_90" may stand side by side for one target, so the names are parsed before they
    # are made unique.
    names = spelling(text)
    if not names:
        raise TargetError("the list of targets is empty", hint="write it as in sm_80,sm_90")
    return tuple(sorted({Target.parse(name) for name in names}))


def _nearest(text: str) -> str:
    if not text.lower().startswith(("sm", "compute")):
        # A product's name is near to a target's by letters alone: H100 is no sm_100.
        return _SPELLING
    names = [
        f"{kind.value}_{gpu.sm}{suffix}"
        for kind in CodeKind
        for gpu in GPUS
        for suffix in ("", *gpu.suffixes)
    ]
    # A hyphen, as in sm-90, is the most frequent slip.
    near = difflib.get_close_matches(text.lower().replace("-", "_"), names, n=1)
    if near:
        return f"did you mean {near[0]}?"
    return _SPELLING
