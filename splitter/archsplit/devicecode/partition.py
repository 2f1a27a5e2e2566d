"""The division of images into packs, and of a release's packs into files.

In go the entries of all containers; out come the packs, and which of them a capability needs. A
pack that is named for a capability holds, container by container, the images that such a GPU takes.
Capabilities that take the same images share one pack. Images that several packs have in common lie
in one more pack if that saves much, and the capabilities need both. A tiny pack is folded into
another, because each pack is one more name on the index. An image that no GPU takes lies only in
the last pack, which is needed only to restore the fat library.

`divide_packs` gives each pack one or several files, each with the cores that it is for. Cores with
the same containers share a file. What several files of a pack have in common is in one more pack
if that saves as much as a shared pack must save.

    containers      0  1  2  3            files of cc90
    cp310, x86-64   x  x  x               cc90 for cp310: 2        common_cc90: 0, 1
    cp311, x86-64   x  x     x            cc90 for cp311: 3
"""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING

from archsplit.arch.compat import GPU_BY_CAPABILITY
from archsplit.arch.target import CodeKind
from archsplit.devicecode.select import code_targets, missing_text, newest_ptx, selected_images
from archsplit.errors import TargetError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from archsplit.arch.target import Capability, Target
    from archsplit.formats.fatbin import FatbinEntry

__pure__ = True

PTX_PACK, REST_PACK, SHARED_PACK, COMMON_PACK = "ptx", "rest", "shared", "common_"
"""Names and prefixes of packs that no capability is named in.

The last is the prefix of the common part of a pack with several files.
"""
UNUSED_PACKS = {REST_PACK, f"{COMMON_PACK}{REST_PACK}"}
"""Packs with images that no GPU takes: only `archsplit join` reads them."""

_LEAST_SAVING, _SAVING_SHARE = 1_000_000, 0.03
"""Least saving of a shared pack: bytes, and their part of all bytes."""
_TINY, _TINY_SHARE = 100_000, 0.001
"""Limits of a tiny pack, which is folded: bytes, and their part of all bytes."""

ImagePlace = tuple[int, int]
"""A container's number, and the offset of an image in it."""


class PackBy(enum.Enum):
    """Unit that a pack stands for."""

    CAPABILITY = "capability"
    TARGET = "target"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackContents:
    """Images of one pack.

    Attributes:
        name: ``cc90``, ``sm_90a``, ``shared_80``, ``ptx`` or ``rest``.
        serves: the capabilities that take all their code from it.
        offsets: of the images, one set for each container.
    """

    name: str
    serves: tuple[Capability, ...]
    offsets: tuple[frozenset[int], ...] = field(repr=False)

    @property
    def places(self) -> set[ImagePlace]:
        """Places of the images."""
        return {(number, offset) for number, each in enumerate(self.offsets) for offset in each}


@dataclass(frozen=True, slots=True, kw_only=True)
class PackPlan:
    """All packs, and the packs that each capability needs."""

    packs: tuple[PackContents, ...]
    needs: dict[Capability, tuple[str, ...]]


def image_sizes(containers: Iterable[Iterable[FatbinEntry]]) -> dict[ImagePlace, int]:
    """Return the size of each image of some containers."""
    return {
        (number, entry.offset): entry.size
        for number, each in enumerate(containers)
        for entry in each
    }


def plan_packs(
    containers: Sequence[Sequence[FatbinEntry]],
    by: PackBy,
    targets: Iterable[Target] | None = None,
    unneeded: Sequence[Collection[Capability]] = (),
    subject: str = "the input",
) -> PackPlan:
    """Divide the images of some containers into packs.

    Args:
        containers: the entries of each container.
        by: the unit that a pack stands for.
        targets: only what GPUs of these targets need is packed; None for all images.
        unneeded: for each container, the capabilities that take nothing of it; () for none at all.
        subject: the name of the input, for messages.

    Raises:
        TargetError: no image is for one of the targets.
    """
    unneeded = unneeded or [()] * len(containers)
    images_by_capability = _images_by_capability(containers, unneeded)
    sizes = image_sizes(containers)
    # Packs by target aren't folded or shared: their names promise one target each.
    if by is PackBy.CAPABILITY:
        plan = _fold_tiny(_divide_by_capability(containers, images_by_capability), sizes)
    else:
        plan = _divide_by_target(containers, images_by_capability, unneeded)
    rest = _remaining(containers, plan.packs)
    # Restoring the fat library needs every image.
    if any(rest):
        last = PackContents(name=REST_PACK, serves=(), offsets=rest)
        plan = PackPlan(packs=(*plan.packs, last), needs=plan.needs)
    if targets is not None:
        found = code_targets(entry for each in containers for entry in each)
        plan = _select_packs(plan, targets, found, subject)
    # Only what is written counts: a single pack has nothing in common with another.
    return _share_common(plan, sizes) if by is PackBy.CAPABILITY else plan


def required_packs(
    packs: Collection[str], needs: Iterable[Sequence[str]], pack: str
) -> tuple[str, ...]:
    """Return the shared and common packs without which a pack is incomplete.

    Args:
        packs: the names of all packs.
        needs: the packs of each capability.
        pack: a name, as ``cc80``.
    """
    if pack == PTX_PACK:
        return tuple(name for name in ptx_packs(packs) if name != pack)
    common = {f"{COMMON_PACK}{pack}"} & {*packs}
    # A shared pack has no code that needs another pack, but may have a part of its own in common.
    if pack.startswith((SHARED_PACK, COMMON_PACK)):
        return tuple(common)
    beside = {name for names in needs if pack in names for name in names}
    return tuple(sorted(common | {name for name in beside if name.startswith(SHARED_PACK)}))


def ptx_packs(packs: Iterable[str]) -> tuple[str, ...]:
    """Return the packs with the newest PTX, which GPUs need that are not known yet.

    >>> ptx_packs(["cc90", "ptx", "shared_ptx", "common_ptx", "shared_80"])
    ('ptx', 'shared_ptx', 'common_ptx')
    """
    parts = (PTX_PACK, f"{SHARED_PACK}_{PTX_PACK}")
    return tuple(name for name in packs if name.removeprefix(COMMON_PACK).startswith(parts))


def capability_extra(capability: Capability) -> str:
    """Return the extra that installs all packs of a GPU: ``cc90``."""
    return f"cc{capability.major}{capability.minor}"


def _images_by_capability(
    containers: Sequence[Sequence[FatbinEntry]], unneeded: Sequence[Collection[Capability]]
) -> dict[Capability, tuple[frozenset[int], ...]]:
    """Return for each capability with code the images that it takes of each container."""
    # A library has thousands of containers and few different lists of targets.
    numbers: dict[tuple[object, ...], int] = {}
    alike = [
        numbers.setdefault(tuple((one.target, one.kind) for one in each), len(numbers))
        for each in containers
    ]
    examples = dict(zip(alike, containers, strict=True))
    images_by_capability = {}
    for capability in GPU_BY_CAPABILITY:
        # Container by container: a GPU may take sm_86 in one and sm_80 in the next.
        taken = {one: _selected_positions(each, capability) for one, each in examples.items()}
        if any(taken.values()):
            images_by_capability[capability] = tuple(
                frozenset(each[position].offset for position in taken[number])
                if capability not in none
                else frozenset()
                for each, number, none in zip(containers, alike, unneeded, strict=True)
            )
    return images_by_capability


def _selected_positions(entries: Sequence[FatbinEntry], capability: Capability) -> tuple[int, ...]:
    offsets = {one.offset for one in selected_images(entries, capability)}
    return tuple(number for number, one in enumerate(entries) if one.offset in offsets)


def _divide_by_capability(
    containers: Sequence[Sequence[FatbinEntry]],
    images_by_capability: dict[Capability, tuple[frozenset[int], ...]],
) -> PackPlan:
    groups: dict[tuple[frozenset[int], ...], list[Capability]] = {}
    for capability, images in images_by_capability.items():
        # 8.6 and 8.9 often take the same images; the pack has the name of the lowest.
        groups.setdefault(images, []).append(capability)
    # The newest PTX is a pack of its own: GPUs that are not known yet need only this.
    newest = tuple(frozenset(one.offset for one in newest_ptx(each)) for each in containers)
    packs = [
        PackContents(name=capability_extra(group[0]), serves=tuple(group), offsets=images)
        for images, group in groups.items()
        if images != newest
    ]
    if any(newest):
        packs.append(
            PackContents(name=PTX_PACK, serves=tuple(groups.get(newest, ())), offsets=newest)
        )
    needs = {one: (pack.name,) for pack in packs for one in pack.serves}
    return PackPlan(packs=tuple(packs), needs=dict(sorted(needs.items())))


def _offsets_by_container(places: Iterable[ImagePlace], count: int) -> tuple[frozenset[int], ...]:
    offsets: list[set[int]] = [set() for _ in range(count)]
    for number, offset in places:
        offsets[number].add(offset)
    return tuple(map(frozenset, offsets))


def _fold_tiny(plan: PackPlan, sizes: Mapping[ImagePlace, int]) -> PackPlan:
    """Fold tiny packs into the smallest that has their images, else into the smallest.

    The pack of the newest PTX stays: future GPUs need it by its name.
    """
    size_by_pack = {pack.name: sum(sizes[each] for each in pack.places) for pack in plan.packs}
    limit = min(_TINY, _TINY_SHARE * sum(size_by_pack.values()))
    kept = {name for name, size in size_by_pack.items() if name == PTX_PACK or size >= limit}
    packs = {pack.name: pack for pack in plan.packs if pack.name in kept}
    for tiny in (pack for pack in plan.packs if pack.name not in kept):
        # False sorts first: a pack that has the images already gets no larger.
        receiver = min(
            packs.values(),
            key=lambda one: (not tiny.places <= one.places, size_by_pack[one.name]),
        )
        merged = _offsets_by_container(tiny.places | receiver.places, len(receiver.offsets))
        serves = tuple(sorted({*receiver.serves, *tiny.serves}))
        packs[receiver.name] = replace(receiver, serves=serves, offsets=merged)
    needs = {one: (pack.name,) for pack in packs.values() for one in pack.serves}
    return PackPlan(packs=tuple(packs.values()), needs=dict(sorted(needs.items())))


def _share_common(plan: PackPlan, sizes: Mapping[ImagePlace, int]) -> PackPlan:
    """Move images that several packs have into shared packs, those that save most first.

    Copies stay once they are a small part of the release: one more name on the index costs more.
    """
    packs = {pack.name: pack for pack in plan.packs}
    groups = _places_by_packs(plan)
    group_sizes = {names: sum(sizes[place] for place in each) for names, each in groups.items()}
    # Every pack but one saves a copy.
    savings = sorted(((len(names) - 1) * size, names) for names, size in group_sizes.items())
    copies = accumulate(saving for saving, _ in savings)
    least = _SAVING_SHARE * sum(group_sizes.values())
    shared_by = [
        names
        for (saving, names), left in zip(savings, copies, strict=True)
        if saving >= _LEAST_SAVING and left >= least
    ]
    needs, added = dict(plan.needs), list[PackContents]()
    # Sorted, so that the packs' names depend neither on sizes nor on the order of containers.
    for names in sorted(shared_by):
        # Two shared packs may begin with the same capability.
        names_in_use = {one.name for one in added}
        shared = PackContents(
            name=_shared_name(names, names_in_use),
            serves=(),
            offsets=_offsets_by_container(groups[names], len(packs[names[0]].offsets)),
        )
        added.append(shared)
        for name in names:
            rest = _offsets_by_container(packs[name].places - groups[names], len(shared.offsets))
            packs[name] = replace(packs[name], serves=(), offsets=rest)
        needs = {
            one: (*each, shared.name) if each[0] in names else each for one, each in needs.items()
        }
    empty = {name for name, pack in packs.items() if not any(pack.offsets)}
    kept = (pack for name, pack in packs.items() if name not in empty)
    return PackPlan(
        # A stable sort: only the pack of the rest moves, to the end.
        packs=tuple(sorted((*kept, *added), key=lambda pack: pack.name == REST_PACK)),
        needs={one: tuple(n for n in each if n not in empty) for one, each in needs.items()},
    )


def _places_by_packs(plan: PackPlan) -> dict[tuple[str, ...], set[ImagePlace]]:
    """Return the images that exactly these packs have in common; the newest PTX is first."""
    holders: dict[ImagePlace, list[str]] = {}
    for pack in sorted(plan.packs, key=lambda one: one.name != PTX_PACK):
        for place in pack.places:
            holders.setdefault(place, []).append(pack.name)
    groups: dict[tuple[str, ...], set[ImagePlace]] = {}
    for place, pack_names in holders.items():
        groups.setdefault(tuple(pack_names), set()).add(place)
    return groups


def _shared_name(names: Sequence[str], names_in_use: Collection[str]) -> str:
    """Return ``shared_80`` for the lowest capability, with more numbers if that is taken.

    A part of the newest PTX is ``shared_ptx``: see `ptx_packs`.
    """
    numbers = [name.removeprefix("cc") for name in names]
    parts = (numbers[:count] for count in range(1, len(numbers) + 1))
    return next(
        name for part in parts if (name := "_".join([SHARED_PACK, *part])) not in names_in_use
    )


def _divide_by_target(
    containers: Sequence[Sequence[FatbinEntry]],
    images_by_capability: dict[Capability, tuple[frozenset[int], ...]],
    unneeded: Sequence[Collection[Capability]],
) -> PackPlan:
    every = tuple(images_by_capability.values())
    # Input of a device link that linked code replaces for all of its GPUs is only for `join`.
    packed = [
        [one for one in each if not none or any(one.offset in images[number] for images in every)]
        for number, (each, none) in enumerate(zip(containers, unneeded, strict=True))
    ]
    targets = sorted({target for each in packed for target in code_targets(each)})
    offsets = (
        tuple(frozenset(one.offset for one in each if one.target == target) for each in packed)
        for target in targets
    )
    packs = tuple(
        PackContents(name=str(target), serves=(), offsets=each)
        for target, each in zip(targets, offsets, strict=True)
    )
    needs = {
        capability: tuple(
            pack.name
            for pack in packs
            if any(a & b for a, b in zip(pack.offsets, images, strict=True))
        )
        for capability, images in images_by_capability.items()
    }
    return PackPlan(packs=packs, needs=needs)


def _remaining(
    containers: Iterable[Sequence[FatbinEntry]], packs: tuple[PackContents, ...]
) -> tuple[frozenset[int], ...]:
    return tuple(
        frozenset(entry.offset for entry in each).difference(*(p.offsets[i] for p in packs))
        for i, each in enumerate(containers)
    )


def _select_packs(
    plan: PackPlan, targets: Iterable[Target], found: Collection[Target], subject: str
) -> PackPlan:
    """Return the packs that GPUs of some targets need; PTX selects the packs that have PTX.

    Raises:
        TargetError: no image is for one of them.
    """
    packs_by_target = {target: _packs_for(plan, target) for target in targets}
    unserved = sorted(target for target, names in packs_by_target.items() if not names)
    if unserved:
        raise TargetError(missing_text(subject, unserved, found), hint="leave these out")
    # Divided by target, a GPU needs several packs: one for each target that it takes.
    kept = {name for names in packs_by_target.values() for name in names}
    packs = tuple(pack for pack in plan.packs if pack.name in kept)
    needs = {one: each for one, each in plan.needs.items() if kept.issuperset(each)}
    return PackPlan(packs=packs, needs=needs)


def _packs_for(plan: PackPlan, target: Target) -> set[str]:
    if target.kind is CodeKind.SASS:
        # A target with a suffix may be a pack by its own name.
        return {*plan.needs.get(target.capability, ())} | _packs_named(plan, str(target))
    return _packs_named(plan, PTX_PACK, str(target))


def _packs_named(plan: PackPlan, *names: str) -> set[str]:
    return {pack.name for pack in plan.packs if pack.name in names}


_Cores = frozenset[int]
_Containers = frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackFile:
    """A file of a pack.

    Attributes:
        pack: its name, and only the images of its containers.
        cores: the numbers of the cores that it is for.
        is_generic: True if all cores of its machines may take it; False if others of these
            machines have files of their own, and this one has the tags of its cores.
    """

    pack: PackContents
    cores: tuple[int, ...]
    is_generic: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseCores:
    """Cores of a release.

    Attributes:
        machines: the machine of each core.
        holders: for each container, the numbers of the cores that have it.
    """

    machines: tuple[str, ...]
    holders: tuple[_Cores, ...] = field(repr=False)

    @property
    def by_machine(self) -> Mapping[str, _Cores]:
        """Cores of each machine."""
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
    plan: PackPlan, cores: ReleaseCores, sizes: Mapping[ImagePlace, int]
) -> tuple[PackPlan, tuple[PackFile, ...]]:
    """Divide packs into files.

    Args:
        plan: packs over all containers.
        sizes: of all images; see `image_sizes`.

    Returns:
        The plan with the common packs that were added, and the files.
    """
    total = sum(sizes[place] for pack in plan.packs for place in pack.places)
    least = max(_LEAST_SAVING, _SAVING_SHARE * total)
    packs, files, divided = list[PackContents](), list[PackFile](), set[str]()
    for whole in plan.packs:
        pieces = _best_pieces(_container_sizes(whole, sizes), cores, least)
        common = [piece for piece in pieces if piece.is_common]
        # A GPU needs both parts, so neither serves it without the other.
        pack = replace(whole, serves=()) if common else whole
        packs.append(pack)
        files += _pack_files(pack, [piece for piece in pieces if not piece.is_common])
        if common:
            divided.add(pack.name)
            packs.append(replace(pack, name=f"{COMMON_PACK}{pack.name}"))
            files += _pack_files(packs[-1], common)
    needs = {
        one: (*names, *(f"{COMMON_PACK}{name}" for name in names if name in divided))
        for one, names in plan.needs.items()
    }
    return PackPlan(packs=tuple(packs), needs=needs), tuple(files)


def _container_sizes(pack: PackContents, sizes: Mapping[ImagePlace, int]) -> Counter[int]:
    """Return the bytes that a pack has of each container."""
    size_of: Counter[int] = Counter()
    for number, offset in pack.places:
        size_of[number] += sizes[number, offset]
    return size_of


def _best_pieces(size_of: Mapping[int, int], cores: ReleaseCores, least: float) -> list[_Piece]:
    """Return the pieces of a pack that store the fewest bytes."""

    def stored(pieces: list[_Piece]) -> int:
        return sum(size_of[number] for piece in pieces for number in piece.containers)

    plain = _own_pieces(frozenset(size_of), {}, cores)
    every = frozenset(range(len(cores.machines)))
    of_all = [(every, _held_by(every, size_of, cores))]
    of_each = [(one, _held_by(one, size_of, cores)) for one in cores.by_machine.values()]
    options = [_common_pieces(frozenset(size_of), common, cores) for common in (of_all, of_each)]
    best = min(options, key=stored)
    # One more name on the index has to be worth it.
    return best if stored(plain) - stored(best) >= least else plain


def _held_by(group: _Cores, size_of: Mapping[int, int], cores: ReleaseCores) -> _Containers:
    return frozenset(number for number in size_of if group <= cores.holders[number])


def _common_pieces(
    containers: _Containers, common: list[tuple[_Cores, _Containers]], cores: ReleaseCores
) -> list[_Piece]:
    """Return common pieces, and pieces with the other containers of each core."""
    left_out = {core: held for group, held in common for core in group}
    pieces = [_Piece(containers=held, cores=group, is_common=True) for group, held in common]
    return [*pieces, *_own_pieces(containers, left_out, cores)]


def _own_pieces(
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


def _pack_files(pack: PackContents, pieces: list[_Piece]) -> Iterator[PackFile]:
    for piece in pieces:
        offsets = (
            one if number in piece.containers else frozenset()
            for number, one in enumerate(pack.offsets)
        )
        own = replace(pack, offsets=tuple(offsets))
        yield PackFile(pack=own, cores=tuple(sorted(piece.cores)), is_generic=piece.is_generic)
