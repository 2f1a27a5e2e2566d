"""The division of images into packs, where sizes count."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from archsplit.arch.compat import best_target
from archsplit.arch.target import Capability, CodeKind, Target
from archsplit.devicecode.partition import PackBy, capability_extra, plan_packs, required_packs
from archsplit.errors import TargetError
from archsplit.formats.fatbin import Compression, EntryKind, FatbinEntry

if TYPE_CHECKING:
    from archsplit.devicecode.partition import PackPlan

MB = 1_000_000


def container(start: int, **sizes: int) -> list[FatbinEntry]:
    """Make the entries of a container: a size for each target."""
    offsets = itertools.accumulate(sizes.values(), initial=start)
    return [entry(name, next(offsets), size) for name, size in sizes.items()]


def entry(name: str, offset: int, size: int) -> FatbinEntry:
    target = Target.parse(name)
    kind = EntryKind.PTX if target.kind is CodeKind.PTX else EntryKind.CUBIN
    return FatbinEntry(
        offset=offset,
        kind=kind,
        kind_number=kind.value,
        arch=target.capability.sm_number,
        suffix=target.suffix,
        target=target,
        version=(1, 7),
        flags=0,
        compression=Compression.NONE,
        header_size=64,
        padded_size=size - 64,
        compressed_size=0,
        uncompressed_size=0,
        options_offset=0,
    )


def total(shares: PackPlan, containers: list[list[FatbinEntry]]) -> int:
    return sum(
        one.size
        for pack in shares.packs
        for entries, offsets in zip(containers, pack.offsets, strict=True)
        for one in entries
        if one.offset in offsets
    )


def is_served(
    shares: PackPlan, containers: list[list[FatbinEntry]], capability: Capability
) -> bool:
    """Return True if the packs of a capability have what it takes, container by container."""
    packs = [pack for pack in shares.packs if pack.name in shares.needs[capability]]
    for number, entries in enumerate(containers):
        best = best_target(capability, {one.target for one in entries if one.target})
        held = set().union(*(pack.offsets[number] for pack in packs))
        if not {one.offset for one in entries if one.target == best} <= held:
            return False
    return True


# As a wheel whose attention kernels are only sm_80, beside kernels for every target.
ATTENTION = [
    container(0, sm_80=40 * MB),
    container(50 * MB, sm_80=5 * MB, sm_86=5 * MB, sm_89=5 * MB, sm_90=5 * MB),
]


def test_image_of_several_gpus_lies_in_a_shared_pack() -> None:
    shares = plan_packs(ATTENTION, PackBy.CAPABILITY)
    assert [pack.name for pack in shares.packs] == ["cc80", "cc86", "cc89", "cc90", "shared_80"]
    assert shares.needs[Capability(8, 6)] == ("cc86", "shared_80")
    assert shares.needs[Capability(9, 0)] == ("cc90",)
    assert total(shares, ATTENTION) == 60 * MB
    assert all(is_served(shares, ATTENTION, one) for one in shares.needs)


def test_a_small_saving_is_not_worth_a_name() -> None:
    small = [container(0, sm_80=MB // 3), ATTENTION[1]]
    shares = plan_packs(small, PackBy.CAPABILITY)
    assert [pack.name for pack in shares.packs] == ["cc80", "cc86", "cc89", "cc90"]
    assert shares.needs[Capability(8, 6)] == ("cc86",)


def test_several_shared_packs_have_names_of_their_own() -> None:
    both = [*ATTENTION, container(100 * MB, sm_80=20 * MB, sm_89=20 * MB)]
    shares = plan_packs(both, PackBy.CAPABILITY)
    assert {name for name in shares.needs[Capability(8, 6)] if "shared" in name} == {
        "shared_80",
        "shared_80_86",
    }
    assert shares.needs[Capability(8, 9)] == ("cc89", "shared_80_86")
    assert total(shares, both) == 100 * MB
    assert all(is_served(shares, both, one) for one in shares.needs)


def test_empty_pack_is_left_out() -> None:
    containers = [container(0, sm_80=40 * MB), container(50 * MB, sm_86=5 * MB)]
    shares = plan_packs(containers, PackBy.CAPABILITY)
    assert shares.needs[Capability(8, 0)] == ("shared_80",)
    assert shares.needs[Capability(8, 6)] == ("cc86", "shared_80")
    assert all(is_served(shares, containers, one) for one in shares.needs)


def test_newest_ptx_is_in_a_shared_pack() -> None:
    containers = [container(0, sm_80=9 * MB, compute_80=20 * MB), container(50 * MB, sm_90=9 * MB)]
    plan = plan_packs(containers, PackBy.CAPABILITY)
    # Nothing is left in `ptx`: a GPU that is not known yet needs the shared pack only.
    assert [pack.name for pack in plan.packs] == ["cc80", "cc90", "shared_ptx"]
    assert plan.needs[Capability(9, 0)] == ("cc90", "shared_ptx")
    assert plan.needs[Capability(12, 0)] == ("shared_ptx",)
    assert total(plan, containers) == 38 * MB
    assert all(is_served(plan, containers, one) for one in plan.needs)
    packs = ["cc90", "ptx", "shared_ptx", "common_shared_ptx"]
    assert required_packs(packs, [("cc90", "shared_ptx")], "ptx") == ("shared_ptx", *packs[3:])


def test_copies_are_at_most_a_small_part() -> None:
    attention = container(0, sm_80=100 * MB)
    small = [
        container(start * MB, sm_80=2 * MB, **{later: 2 * MB})
        for start, later in ((200, "sm_86"), (300, "sm_89"), (400, "sm_87"))
    ]
    plan = plan_packs([attention, *small], PackBy.CAPABILITY)
    # Each copy is less than 3 %, and all together are more.
    assert 112 * MB <= total(plan, [attention, *small]) <= 112 * MB * 1.03
    assert all(is_served(plan, [attention, *small], one) for one in plan.needs)


def test_single_gpu_has_one_pack() -> None:
    shares = plan_packs(ATTENTION, PackBy.CAPABILITY, [Target.parse("sm_80")])
    assert [pack.name for pack in shares.packs] == ["cc80"]
    assert is_served(shares, ATTENTION, Capability(8, 0))
    two = plan_packs(ATTENTION, PackBy.CAPABILITY, [Target.parse("sm_80"), Target.parse("sm_86")])
    assert [pack.name for pack in two.packs] == ["cc80", "cc86", "shared_80"]


def test_by_target_each_image_lies_in_one_pack() -> None:
    shares = plan_packs(ATTENTION, PackBy.TARGET)
    assert [pack.name for pack in shares.packs] == ["sm_80", "sm_86", "sm_89", "sm_90"]
    assert shares.needs[Capability(8, 6)] == ("sm_80", "sm_86")
    assert total(shares, ATTENTION) == 60 * MB


def test_container_is_only_in_packs_of_its_gpus() -> None:
    containers = [container(0, sm_80=MB, sm_90=MB), container(9 * MB, sm_80=MB, sm_90=MB)]
    shares = plan_packs(containers, PackBy.CAPABILITY, None, [(), {Capability(9, 0)}])
    offsets = {pack.name: [len(each) for each in pack.offsets] for pack in shares.packs}
    assert offsets == {"cc80": [1, 1], "cc90": [1, 0], "rest": [0, 1]}


def test_targets_choose_the_packs() -> None:
    containers = [container(0, sm_80=5 * MB, sm_90=5 * MB, compute_89=MB, compute_90=MB)]
    shares = plan_packs(containers, PackBy.CAPABILITY)
    # No GPU takes the PTX of 8.9: 9.0 has machine code, and what is newer takes 90's.
    assert [pack.name for pack in shares.packs][-2:] == ["ptx", "rest"]
    ptx = plan_packs(containers, PackBy.CAPABILITY, [Target.parse("compute_90")])
    assert [pack.name for pack in ptx.packs] == ["ptx"]
    with pytest.raises(TargetError, match="the input: nothing in it is for sm_75; it has "):
        plan_packs(containers, PackBy.CAPABILITY, [Target.parse("sm_75")])
    assert (
        capability_extra(Capability(12, 1)),
        required_packs(["cc80", "shared_80"], [("cc80", "shared_80")], "cc80"),
    ) == (
        "cc121",
        ("shared_80",),
    )
    shared = ["cc80", "shared_80", "common_shared_80"]
    assert required_packs(shared, [("cc80", "shared_80")], "shared_80") == ("common_shared_80",)


def test_a_tiny_pack_is_folded_into_another() -> None:
    tiny = [container(0, sm_53=10_000, compute_90=500), ATTENTION[1]]
    shares = plan_packs(tiny, PackBy.CAPABILITY)
    assert "cc53" not in {pack.name for pack in shares.packs}
    assert shares.needs[Capability(5, 3)] == ("ptx",)
    assert all(is_served(shares, tiny, one) for one in shares.needs)
    # A small wheel's packs aren't tiny beside each other.
    even = [container(0, sm_53=10_000, sm_80=10_000)]
    assert "cc53" in {pack.name for pack in plan_packs(even, PackBy.CAPABILITY).packs}
