"""Which pack gets which images; pure.

A pack that is named for a capability holds, container by container, what such a GPU takes.
Capabilities that take the same share one pack. An image may be in several packs, and an image that
no GPU takes is in none but the last, which only a fat library that is joined again needs.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from splitter.arch.compat import KNOWN_CAPABILITIES
from splitter.arch.target import CodeKind
from splitter.devicecode.choose import chosen, newest_ptx, targets_of
from splitter.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from splitter.arch.target import Capability, Target
    from splitter.binfmt.entry import Entry

__pure__ = True

PTX, REST = "ptx", "rest"


class By(enum.Enum):
    """What a pack stands for."""

    CAPABILITY = "capability"
    TARGET = "target"


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one pack gets.

    Attributes:
        name: ``cc90``, ``sm_90a``, ``ptx`` or ``rest``.
        serves: the capabilities that take all they need from it.
        offsets: of the images, one set for each container.
    """

    name: str
    serves: tuple[Capability, ...]
    offsets: tuple[frozenset[int], ...] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """All packs, and which of them a capability needs."""

    packs: tuple[Share, ...]
    needs: dict[Capability, tuple[str, ...]]


def shared(containers: Sequence[Sequence[Entry]], by: By) -> Shares:
    """Share out all images of some containers."""
    takes = {one: _taken(containers, one) for one in KNOWN_CAPABILITIES}
    takes = {one: taken for one, taken in takes.items() if any(taken)}
    shares = (
        _by_capability(containers, takes) if by is By.CAPABILITY else _by_target(containers, takes)
    )
    rest = _rest(containers, shares.packs)
    if any(rest):
        left = Share(name=REST, serves=(), offsets=rest)
        return Shares(packs=(*shares.packs, left), needs=shares.needs)
    return shares


def extra_of(capability: Capability) -> str:
    """What brings all that a GPU needs: ``cc90``."""
    return f"cc{capability.major}{capability.minor}"


def _taken(
    containers: Iterable[Sequence[Entry]], capability: Capability
) -> tuple[frozenset[int], ...]:
    return tuple(frozenset(one.offset for one in chosen(each, capability)) for each in containers)


def _by_capability(
    containers: Sequence[Sequence[Entry]], takes: dict[Capability, tuple[frozenset[int], ...]]
) -> Shares:
    groups: dict[tuple[frozenset[int], ...], list[Capability]] = {}
    for capability, taken in takes.items():
        groups.setdefault(taken, []).append(capability)
    newest = tuple(frozenset(one.offset for one in newest_ptx(each)) for each in containers)
    packs = [
        Share(name=extra_of(group[0]), serves=tuple(group), offsets=taken)
        for taken, group in groups.items()
        if taken != newest
    ]
    if any(newest):
        packs.append(Share(name=PTX, serves=tuple(groups.get(newest, ())), offsets=newest))
    needs = {one: (pack.name,) for pack in packs for one in pack.serves}
    return Shares(packs=tuple(packs), needs=dict(sorted(needs.items())))


def _by_target(
    containers: Sequence[Sequence[Entry]], takes: dict[Capability, tuple[frozenset[int], ...]]
) -> Shares:
    targets = sorted({target for each in containers for target in targets_of(each)})
    packs = tuple(
        Share(name=str(target), serves=(), offsets=_of_target(containers, target))
        for target in targets
    )
    needs = {
        capability: tuple(
            pack.name
            for pack in packs
            if any(a & b for a, b in zip(pack.offsets, taken, strict=True))
        )
        for capability, taken in takes.items()
    }
    return Shares(packs=packs, needs=needs)


def _of_target(containers: Iterable[Sequence[Entry]], target: Target) -> tuple[frozenset[int], ...]:
    return tuple(
        frozenset(one.offset for one in each if one.target == target) for each in containers
    )


def _rest(
    containers: Iterable[Sequence[Entry]], packs: tuple[Share, ...]
) -> tuple[frozenset[int], ...]:
    return tuple(
        frozenset(entry.offset for entry in each).difference(*(p.offsets[i] for p in packs))
        for i, each in enumerate(containers)
    )


def selected(shares: Shares, targets: Iterable[Target]) -> Shares:
    """Only what the GPUs of these targets need; PTX asks for the packs that have PTX.

    Raises:
        InputError: nothing is for one of them.
    """
    wanted = {target: _packs_for(shares, target) for target in targets}
    without = sorted(target for target, names in wanted.items() if not names)
    if without:
        raise InputError(
            f"nothing in it is for {', '.join(map(str, without))}",
            hint="`archsplit inspect` says what there is; leave these targets out",
        )
    kept = {name for names in wanted.values() for name in names}
    packs = tuple(pack for pack in shares.packs if pack.name in kept)
    needs = {one: each for one, each in shares.needs.items() if kept.issuperset(each)}
    return Shares(packs=packs, needs=needs)


def _packs_for(shares: Shares, target: Target) -> set[str]:
    if target.kind is CodeKind.SASS:
        return {*shares.needs.get(target.capability, ())} | _named(shares, str(target))
    return _named(shares, PTX, str(target))


def _named(shares: Shares, *names: str) -> set[str]:
    return {pack.name for pack in shares.packs if pack.name in names}
