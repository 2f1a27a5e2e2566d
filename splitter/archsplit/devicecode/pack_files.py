"""The division of a release's packs into files.

In go a plan of packs over the containers of several cores, and the cores that have each container;
out come the files: for each pack one or several, each with the cores that it is for. Cores with the
same containers share a file. What several files of a pack have in common is in one more pack where
that saves as much as a shared pack must save.

    containers      0  1  2  3            files of cc90
    cp310, x86-64   x  x  x               cc90 for cp310: 2        common_cc90: 0, 1
    cp311, x86-64   x  x     x            cc90 for cp311: 3
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from archsplit.devicecode.partition import COMMON_PACK, PackContents, PackPlan, least_saving

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__pure__ = True

_Cores = frozenset[int]
_Containers = frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackFile:
    """A file of a pack.

    Attributes:
        pack: its name, and the images of its containers alone.
        cores: the numbers of the cores that it is for.
        is_generic: True if all cores of its machines may take it; False if others of these
            machines have files of their own, and this one has the tags of its cores.
    """

    pack: PackContents
    cores: tuple[int, ...]
    is_generic: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseCores:
    """The cores of a release.

    Attributes:
        machines: the machine of each core.
        holders: for each container, the numbers of the cores that have it.
    """

    machines: tuple[str, ...]
    holders: tuple[_Cores, ...] = field(repr=False)

    @property
    def by_machine(self) -> Mapping[str, _Cores]:
        """The cores of each machine."""
        return {
            machine: frozenset(n for n, one in enumerate(self.machines) if one == machine)
            for machine in dict.fromkeys(self.machines)
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """Some containers of a pack, for some cores."""

    containers: _Containers
    cores: _Cores
    is_generic: bool = True
    is_common: bool = False


def divide_packs(
    plan: PackPlan, cores: ReleaseCores, sizes: Sequence[Mapping[int, int]]
) -> tuple[PackPlan, tuple[PackFile, ...]]:
    """Divide packs into files.

    Args:
        plan: packs over all containers.
        sizes: for each container, the size of each image by its offset.

    Returns:
        The plan with the common packs that were added, and the files.
    """
    total = sum(sum(_sizes_of(pack, sizes).values()) for pack in plan.packs)
    packs, files, divided = list[PackContents](), list[PackFile](), set[str]()
    for whole in plan.packs:
        pieces = _best(_sizes_of(whole, sizes), cores, least_saving(total))
        common = [piece for piece in pieces if piece.is_common]
        # A GPU needs both parts, so neither serves it alone.
        pack = replace(whole, serves=()) if common else whole
        packs.append(pack)
        files += _files(pack, [piece for piece in pieces if not piece.is_common])
        if common:
            divided.add(pack.name)
            packs.append(replace(pack, name=f"{COMMON_PACK}{pack.name}"))
            files += _files(packs[-1], common)
    needs = {
        one: (*names, *(f"{COMMON_PACK}{name}" for name in names if name in divided))
        for one, names in plan.needs.items()
    }
    return PackPlan(packs=tuple(packs), needs=needs), tuple(files)


def _sizes_of(pack: PackContents, sizes: Sequence[Mapping[int, int]]) -> dict[int, int]:
    """Return the bytes that a pack has of each container."""
    return {
        number: sum(sizes[number][offset] for offset in offsets)
        for number, offsets in enumerate(pack.offsets)
        if offsets
    }


def _best(size_of: Mapping[int, int], cores: ReleaseCores, least: float) -> list[_Piece]:
    """Return the pieces of a pack that store the fewest bytes."""

    def stored(pieces: list[_Piece]) -> int:
        return sum(size_of[number] for piece in pieces for number in piece.containers)

    plain = _own(frozenset(size_of), {}, cores)
    every = frozenset(range(len(cores.machines)))
    of_all = [(every, _held_by(every, size_of, cores))]
    of_each = [(one, _held_by(one, size_of, cores)) for one in cores.by_machine.values()]
    if len({containers for _, containers in of_each}) == 1:
        of_each = of_all
    options = [_with_common(frozenset(size_of), common, cores) for common in (of_all, of_each)]
    best = min(options, key=stored)
    # One more name on the index has to be worth it.
    return best if stored(plain) - stored(best) >= least else plain


def _held_by(group: _Cores, size_of: Mapping[int, int], cores: ReleaseCores) -> _Containers:
    return frozenset(number for number in size_of if group <= cores.holders[number])


def _with_common(
    containers: _Containers, common: list[tuple[_Cores, _Containers]], cores: ReleaseCores
) -> list[_Piece]:
    """Return common pieces, and what each core has beside them."""
    left_out = {core: held for group, held in common for core in group}
    pieces = [_Piece(containers=held, cores=group, is_common=True) for group, held in common]
    return [*pieces, *_own(containers, left_out, cores)]


def _own(
    containers: _Containers, left_out: Mapping[int, _Containers], cores: ReleaseCores
) -> list[_Piece]:
    """Return a piece for each group of a machine's cores with the same containers.

    The largest group of a machine is its generic one. If the generic ones of all machines are the
    same, they are one.
    """
    generic, special = list[_Piece](), list[_Piece]()
    for members in cores.by_machine.values():
        groups: dict[_Containers, list[int]] = {}
        for core in sorted(members):
            held = frozenset(number for number in containers if core in cores.holders[number])
            groups.setdefault(held - left_out.get(core, frozenset()), []).append(core)
        pieces = [_Piece(containers=held, cores=frozenset(own)) for held, own in groups.items()]
        largest = max(pieces, key=lambda piece: len(piece.cores))
        generic.append(largest)
        special += [replace(one, is_generic=False) for one in pieces if one is not largest]
    if len({piece.containers for piece in generic}) == 1:
        generic = [replace(generic[0], cores=frozenset().union(*(one.cores for one in generic)))]
    return [*generic, *special]


def _files(pack: PackContents, pieces: list[_Piece]) -> list[PackFile]:
    return [
        PackFile(
            pack=replace(
                pack,
                offsets=tuple(
                    offsets if number in piece.containers else frozenset()
                    for number, offsets in enumerate(pack.offsets)
                ),
            ),
            cores=tuple(sorted(piece.cores)),
            is_generic=piece.is_generic,
        )
        for piece in pieces
    ]
