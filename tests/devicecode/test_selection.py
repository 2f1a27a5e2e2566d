"""Selections by devices and by lists, and their effect on GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archsplit.arch.compat import GPU_BY_CAPABILITY, published_targets
from archsplit.arch.target import Capability, CodeKind, Target
from archsplit.devicecode.apply import check_code_stays, check_coverage_stays, coverage_changes
from archsplit.devicecode.edits import (
    CopiedBytes,
    FilteredContainer,
    filter_container,
    total_size,
    zero_in_place,
)
from archsplit.devicecode.select import PtxPolicy, Selection, code_targets, selected_images
from archsplit.errors import TargetError, UsageError
from archsplit.formats.fatbin import read_container
from archsplit.formats.reader import Window
from handmade_samples import LTO_IR, container, image

if TYPE_CHECKING:
    from archsplit.formats.fatbin import FatbinEntry

targets = st.sampled_from(published_targets())
some_targets = st.lists(targets, max_size=8)
some_devices = st.frozensets(st.sampled_from(list(GPU_BY_CAPABILITY)), min_size=1, max_size=3)
selections = st.one_of(
    st.builds(Selection, devices=some_devices, ptx=st.sampled_from(PtxPolicy)),
    st.builds(Selection, keep=st.frozensets(targets, min_size=1), ptx=st.sampled_from(PtxPolicy)),
    st.builds(Selection, drop=st.frozensets(targets, min_size=1)),
)


def entries_of(names: list[Target]) -> tuple[FatbinEntry, ...]:
    return trim(names, Selection(devices=frozenset({Capability(9, 0)}))).entries


def trim(names: list[Target], selection: Selection) -> FilteredContainer:
    content = container(*(image(str(name), 8) for name in names))
    whole = read_container(Window(content, source="test"), 0)
    entries = tuple(whole.entries())
    return filter_container(whole, entries, selection.kept(entries))


def parsed(*names: str) -> list[Target]:
    return list(map(Target.parse, names))


@given(some_targets, some_devices, st.sampled_from(PtxPolicy))
def test_a_device_takes_the_same_as_before(
    names: list[Target], devices: frozenset[Capability], ptx: PtxPolicy
) -> None:
    entries = entries_of(names)
    kept = Selection(devices=devices, ptx=ptx).kept(entries)
    for device in devices:
        assert selected_images(kept, device) == selected_images(entries, device)


@given(some_targets, selections)
def test_selection_keeps_the_order_and_is_idempotent(
    names: list[Target], selection: Selection
) -> None:
    entries = entries_of(names)
    kept = selection.kept(entries)
    assert [entry for entry in entries if entry in kept] == list(kept)
    assert selection.kept(kept) == kept


@given(some_targets, st.frozensets(targets, min_size=1))
def test_selection_lists_are_exact(names: list[Target], listed: frozenset[Target]) -> None:
    entries = entries_of(names)
    only = Selection(keep=listed, ptx=PtxPolicy.NONE).kept(entries)
    without = Selection(drop=listed).kept(entries)
    assert code_targets(only) == code_targets(entries) & listed
    assert code_targets(without) == code_targets(entries) - listed


@given(some_targets)
def test_ptx_policy_decides_the_ptx_kept(names: list[Target]) -> None:
    entries = entries_of(names)
    nothing = frozenset({Target.parse("sm_999")})
    by_policy = {
        policy: code_targets(Selection(keep=nothing, ptx=policy).kept(entries))
        for policy in PtxPolicy
    }
    ptx = {target for target in names if target.kind is CodeKind.PTX}
    generic = {target for target in ptx if not target.suffix}
    assert by_policy[PtxPolicy.ALL] == ptx
    assert by_policy[PtxPolicy.NONE] == set()
    assert by_policy[PtxPolicy.NEWEST] == ({max(generic)} if generic else set())


@given(some_targets, selections)
def test_effects_count_every_container_once(names: list[Target], selection: Selection) -> None:
    one = trim(names, selection)
    for effect in coverage_changes([[one], [one]]):
        assert sum(effect.before.values()) == sum(effect.after.values()) == 2
        assert effect.stops in {0, 2}
        assert effect.capability not in selection.devices


def test_image_without_a_device_stays() -> None:
    content = container(image("sm_80", 8), image("sm_80", 8, kind=LTO_IR))
    entries = tuple(read_container(Window(content, source="test"), 0).entries())
    assert Selection(keep=frozenset(parsed("sm_90"))).kept(entries) == entries[1:]


@pytest.mark.parametrize("arguments", [{}, {"devices": {Capability(9, 0)}, "keep": {1}}])
def test_a_choice_is_made_in_one_way(arguments: dict[str, frozenset[object]]) -> None:
    with pytest.raises(UsageError, match="name one of --device GPU, --keep LIST or --drop LIST"):
        Selection(**arguments)  # type: ignore[arg-type]


def test_labels_are_parts_of_file_names() -> None:
    nine, eight = Capability(9, 0), Capability(8, 6)
    some = frozenset(parsed("sm_90a", "compute_120"))
    labels = {
        "cc86.cc90": Selection(devices=frozenset({nine, eight})),
        "cc90.noptx": Selection(devices=frozenset({nine}), ptx=PtxPolicy.NONE),
        "cc90.ptx": Selection(devices=frozenset({nine}), ptx=PtxPolicy.ALL),
        "sm90a.compute120": Selection(keep=some),
        "no.sm90a.compute120": Selection(drop=some),
    }
    assert {selection.label: selection for selection in labels.values()} == labels
    many = Selection(keep=frozenset(published_targets())).label
    assert len(many) == 8
    assert many != Selection(keep=frozenset(published_targets()[:-1])).label


@given(some_targets, selections)
def test_a_trimmed_container_has_its_new_size(names: list[Target], selection: Selection) -> None:
    one = trim(names, selection)
    assert one.size == 16 + sum(entry.size for entry in one.kept)
    assert one.is_changed == (one.kept != one.entries)
    assert one.is_changed or one.pieces == (CopiedBytes(offset=0, size=one.container.size),)
    for edit in zero_in_place([one]):
        assert total_size(edit.pieces) == one.container.size == edit.end - edit.start


def test_selection_without_code_for_a_gpu_is_refused() -> None:
    keep = Selection(keep=frozenset(parsed("sm_75", "sm_89")), ptx=PtxPolicy.NONE)
    torch = [trim(parsed("sm_86", "sm_89"), keep), *[trim(parsed("sm_86"), keep)] * 20]
    with pytest.raises(TargetError, match=r"20 containers.*8\.9 took sm_86.* and 12 more") as error:
        check_coverage_stays(keep, torch, subject="libtorch.so")
    assert "--device 8.9" in str(error.value)


def test_drop_list_starving_a_gpu_with_kept_code_is_refused() -> None:
    drop = Selection(drop=frozenset(parsed("sm_86")))
    with pytest.raises(TargetError, match=r"1 container that serves.*8\.9 took sm_86"):
        check_coverage_stays(
            drop, [trim(parsed("sm_89"), drop), trim(parsed("sm_86"), drop)], subject="x"
        )
    check_coverage_stays(drop, [trim(parsed("sm_86", "sm_80"), drop)], subject="x")


def test_selection_by_devices_may_leave_other_gpus_without_code() -> None:
    nine = Selection(devices=frozenset({Capability(9, 0)}))
    check_coverage_stays(nine, [trim(parsed("sm_80"), nine)], subject="x")


def test_something_has_to_stay() -> None:
    nine = Selection(devices=frozenset({Capability(9, 0)}), ptx=PtxPolicy.NONE)
    with pytest.raises(TargetError, match=r"nothing in it runs on 9\.0") as caught:
        check_code_stays(nine, [trim(parsed("sm_80"), nine)], subject="my wheels/x.so")
    # A command that can be pasted.
    assert "archsplit inspect 'my wheels/x.so'" in str(caught.value.hint)
    every = Selection(drop=frozenset(parsed("sm_80")))
    with pytest.raises(TargetError, match="no device code would be kept"):
        check_code_stays(every, [trim(parsed("sm_80"), every)], subject="x")
    check_code_stays(nine, [trim([], nine)], subject="x")
    check_code_stays(nine, [trim(parsed("sm_80"), nine), trim(parsed("sm_90"), nine)], subject="x")
