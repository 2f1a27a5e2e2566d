"""Proposals against every list, weighed in another way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inventories import image, inventory, release, unit, users
from rich.console import Console

from archsplit.arch.target import Capability, CodeKind, Target
from archsplit.devicecode.model import Place
from archsplit.devicecode.select import Coverage, classify_coverage, is_code, selected_images
from archsplit.devicecode.stats import SizeLimits, limit_findings
from archsplit.formats.fatbin import EntryKind
from archsplit.inspect.advice_report import advice_text
from archsplit.inspect.advise import AdviceRequest, advise, plugin_sizes
from archsplit.inspect.sizes import device_usage
from archsplit.inspect.target_search import (
    TargetSearch,
    inventory_costs,
    release_costs,
    search_targets,
)
from target_lists import parse_targets

if TYPE_CHECKING:
    from archsplit.devicecode.model import Inventory
    from archsplit.inspect.advise import Advice
    from archsplit.inspect.gpu_table import GpuTable

NAMES = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_90a", "sm_120f", "compute_80", "compute_120")
SOME = users(cc61=0.05, cc75=0.2, cc86=0.3, cc89=0.25, cc90=0.15, cc121=0.05)

units = st.lists(
    st.lists(
        st.tuples(st.sampled_from(NAMES), st.integers(3000, 9000)),
        max_size=5,
        unique_by=lambda pair: pair[0],
    ),
    min_size=1,
    max_size=4,
)


def counted(
    found: Inventory, shares: GpuTable, kept: frozenset[Target]
) -> tuple[float, float, int]:
    """Return machine code, served and size by the rule for each container, image by image."""
    worst = dict.fromkeys(shares.shares, Coverage.NATIVE)
    order = list(Coverage)
    for capability in shares.shares:
        served_at_all = False
        for each in found.units():
            if not selected_images(each.images, capability):
                continue
            served_at_all = True
            left = selected_images([one for one in each.images if one.target in kept], capability)
            service = classify_coverage(left[0].target if left else None, capability)
            worst[capability] = max(worst[capability], service, key=order.index)
        if not served_at_all:
            worst[capability] = Coverage.NONE
    machine_code = (Coverage.NATIVE, Coverage.OLDER_MINOR)
    images = [one for each in found.units() for one in each.images if is_code(one)]
    gone = sum(one.wheel_bytes or 0 for one in images if one.target not in kept)
    return (
        sum(share for one, share in shares.shares.items() if worst[one] in machine_code),
        sum(share for one, share in shares.shares.items() if worst[one] is not Coverage.NONE),
        found.size - gone,
    )


@given(units, st.sampled_from([None, 8000, 20000, 40000]))
def test_proposed_list_keeps_the_budget_and_counts_by_the_rule(
    drawn: list[list[tuple[str, int]]], budget: int | None
) -> None:
    found = inventory(*(unit(*(image(*pair) for pair in images)) for images in drawn))
    costs = inventory_costs(found)
    every = sorted(costs.sizes)
    proposals = search_targets(costs, SOME, every)
    for one in proposals.front:
        assert (one.machine_code, one.served, one.size) == pytest.approx(
            counted(found, SOME, frozenset(one.targets))
        )
    best, all_of_it = proposals.best(budget), proposals.everything
    if budget is None and all_of_it.served:
        # Without a budget the search gives up bytes, and never a user.
        assert best is not None
        assert best.machine_code == pytest.approx(all_of_it.machine_code)
        assert best.served == pytest.approx(all_of_it.served)
    assert best is None or budget is None or best.size <= budget


LINKED = inventory(
    unit(image("sm_80", 5000), linked=True),
    unit(*(image(name, 3000) for name in ("sm_80", "sm_90")), place=Place.RELOCATABLE, linked=True),
    unit(image("sm_90", 4000), place=Place.RELOCATABLE, linked=True),
)
"""A library after a device link for 8.0 only; the driver links its input for 9.0."""


def test_driver_linked_input_is_proposed_as_inspect_counts_it() -> None:
    shares = users(cc80=0.3, cc86=0.2, cc90=0.4, cc120=0.1)
    costs = inventory_costs(LINKED)
    proposals = search_targets(costs, shares, costs.sizes)
    for device in device_usage(LINKED, shares.shares):
        coverage = proposals.everything.coverage_by_capability[device.capability]
        counted = [one for one in Coverage if device.containers[one]]
        assert coverage is max(counted, key=list(Coverage).index)
        assert costs.gaps(device.capability) == device.containers[Coverage.NONE]
    lists = {tuple(map(str, one.targets)): one.served for one in proposals.front}
    assert lists == {
        ("sm_80",): pytest.approx(0.5),
        ("sm_80", "sm_90"): pytest.approx(0.9),
    }
    # Without its linked code, 8.0 has only a part of the input.
    assert (
        search_targets(costs, shares, parse_targets("sm_90"))
        .front[0]
        .coverage_by_capability[Capability(8, 0)]
        is Coverage.NONE
    )


def test_input_of_an_object_is_never_proposed() -> None:
    found = inventory(unit(image("sm_90", 4000), place=Place.RELOCATABLE))
    assert not search_targets(inventory_costs(found), SOME, inventory_costs(found).sizes).front


def test_required_targets_may_be_linked_by_the_driver() -> None:
    assert limit_findings(LINKED, SizeLimits(require=("sm_90",))) == ()
    (missing,) = limit_findings(LINKED, SizeLimits(require=("sm_120",)))
    assert missing.text == "sm_120 is required; found sm_80, sm_90"
    found = inventory(unit(image("sm_90", 4000), place=Place.RELOCATABLE))
    (missing,) = limit_findings(found, SizeLimits(require=("sm_90",)))
    assert missing.text == "sm_90 is required; found no device code"


def test_the_list_of_everything_is_always_weighed() -> None:
    found = inventory(unit(image("sm_80", 5000), image("sm_90", 4000), image("compute_90", 3000)))
    proposals = search_targets(inventory_costs(found), SOME, parse_targets("sm_80"))
    assert list(map(str, proposals.everything.targets)) == ["sm_80", "sm_90", "compute_90"]
    assert proposals.everything.size == found.size == 13000
    assert [list(map(str, one.targets)) for one in proposals.front] == [["sm_80"]]


def test_unusable_code_is_in_no_proposal() -> None:
    found = inventory(unit(image("sm_80", 5000), image("sm_100", 4000), image("sm_87", 3000)))
    best = search_targets(inventory_costs(found), SOME, sorted(inventory_costs(found).sizes)).best()
    assert best is not None
    assert list(map(str, best.targets)) == ["sm_80"]
    assert best.coverage_by_capability[Capability(9, 0)] is Coverage.NONE


def test_updated_proposal_replaces_older_ptx() -> None:
    costs = inventory_costs(inventory(unit(image("compute_80", 3000), image("compute_120", 5000))))
    proposals = search_targets(costs, users(cc121=1), sorted(costs.sizes))
    assert [list(map(str, one.targets)) for one in proposals.front] == [["compute_80"]]
    assert [list(map(str, one.targets)) for one in proposals.updated] == [["compute_120"]]


def test_one_container_without_code_is_enough_to_fail() -> None:
    found = inventory(
        unit(image("sm_80", 5000), image("sm_86", 5000)), unit(image("sm_80", 5000)), rest=0
    )
    proposals = search_targets(inventory_costs(found), users(cc86=1), parse_targets("sm_86"))
    assert proposals.front == ()
    assert proposals.best() is None
    both = search_targets(inventory_costs(found), users(cc86=1), parse_targets("sm_80"))
    assert [(one.size, one.machine_code) for one in both.front] == [(10000, 1)]


def test_gpu_without_code_before_has_no_gaps() -> None:
    found = inventory(unit(image("sm_75", 5000), image("sm_80", 5000)), unit(image("sm_80", 5000)))
    advice = _advice(found, AdviceRequest())
    effects = {str(effect.capability): effect for effect in advice.effects}
    assert (effects["7.5"].before, effects["7.5"].gaps) == (Coverage.NATIVE, 1)
    assert (effects["8.6"].before, effects["8.6"].gaps) == (Coverage.OLDER_MINOR, 0)
    assert (effects["6.1"].before, effects["6.1"].gaps) == (Coverage.NONE, 2)
    console = Console(width=160)
    with console.capture() as shown:
        for part in advice_text(advice, subject="x"):
            console.print(part)
    assert "native; nothing in 1 container" in shown.get()


def test_leftovers_and_stubs_cost_bytes_and_serve_no_gpu() -> None:
    found = inventory(
        unit(image("sm_80", 5000), image("compute_80", 4000)),
        unit(image("sm_80", 700)),
        unit(
            image("sm_80", 8000),
            image("compute_80", 500, kind=EntryKind.RELOCATABLE_PTX),
            place=Place.RELOCATABLE,
        ),
        unit(image("sm_80", 9000), place=Place.OUTSIDE),
    )
    costs = inventory_costs(found)
    sizes = {str(target): size for target, size in costs.sizes.items()}
    assert sizes == {"sm_80": 13700, "compute_80": 4000}
    assert costs.fixed == 10500
    best = search_targets(costs, users(cc86=1), parse_targets("compute_80")).best()
    assert best is not None
    assert (best.size, best.served, best.machine_code) == (14500, 1, 0)


def test_outside_of_wheels_the_files_count() -> None:
    costs = inventory_costs(inventory(unit(image("sm_80", 5000, packed=False)), packed=False))
    assert (costs.sizes, costs.size, costs.in_download) == (
        {Target.parse("sm_80"): 5000},
        6000,
        False,
    )


def test_of_many_targets_the_likely_lists_are_weighed() -> None:
    listed = "sm_50 sm_52 sm_60 sm_61 sm_70 sm_72 sm_75 sm_80 sm_86 sm_87 sm_89 sm_90 sm_90a sm_100"
    listed += " sm_103 sm_120 sm_121 compute_120"
    found = inventory(unit(*(image(name, 5000) for name in listed.split())))
    costs = inventory_costs(found)
    many = {f"cc{one.capability.sm_number}": 0.05 for one in costs.sizes}
    proposals = search_targets(costs, users(**many), sorted(costs.sizes))
    best = proposals.best()
    assert best is not None
    assert best.served == pytest.approx(sum(users(**many).shares.values()))
    assert best.size < found.size
    sizes = [one.size for one in proposals.front]
    assert sizes == sorted(set(sizes))


def _advice(found: Inventory, request: AdviceRequest) -> Advice:
    plugins = {one.capability: one.used for one in device_usage(found, SOME.shares)}
    return advise(inventory_costs(found), SOME, request, plugins)


def test_a_finished_wheel_is_split_with_the_newest_ptx_for_new_gpus() -> None:
    # compute_50 is for the 6.1 of the table; the 12.1 would run it, too.
    images = (image("sm_75", 5000), image("sm_80", 5000), image("compute_50", 900))
    found = inventory(unit(*images, image("compute_80", 4000)))
    advice = _advice(found, AdviceRequest())
    assert advice.split_arguments("x.whl") == (
        *(
            "archsplit",
            "split",
            "x.whl",
            "--targets",
            "sm_75,sm_80,compute_50,compute_80",
            "--out",
            "split",
        ),
    )
    assert advice.snippet() == ""
    assert advice.split_arguments("libx.so") == ()


def test_newer_ptx_replaces_unused_code() -> None:
    images = (image("compute_80", 2000), image("compute_90", 4000))
    costs = inventory_costs(inventory(unit(*images)))
    search = TargetSearch(costs, users(cc90=1.0), tuple(costs.sizes))
    assert list(map(str, search.targets)) == ["compute_80", "compute_90"]
    assert search.with_new_ptx(0b01) == 0b10
    # An 8.6 still runs the old one.
    search = TargetSearch(costs, users(cc86=0.5, cc90=0.5), tuple(costs.sizes))
    assert search.with_new_ptx(0b01) == 0b11


def test_proposal_without_ptx_lists_the_kept_targets() -> None:
    found = inventory(unit(image("sm_75", 5000), image("sm_80", 5000), image("compute_80", 4000)))
    any_ = _advice(found, AdviceRequest(budget=20_000_000, policy="nightly"))
    assert any_.snippet() == (
        '[policy.nightly]\nsass = ["sm_75", "sm_80"]\nptx = ["compute_80"]\nbudget = "20MB"\n'
    )
    assert any_.slim_arguments("x.whl") == (
        *("archsplit", "slim", "x.whl", "--keep", "sm_75,sm_80,compute_80", "--keep-ptx", "none"),
    )
    none = _advice(found, AdviceRequest(ptx=False, policy="small"))
    assert none.snippet() == ('[policy.small]\nsass = ["sm_75", "sm_80"]\n')
    effects = {
        str(effect.capability): (effect.before, effect.after, effect.plugin)
        for effect in none.effects
    }
    assert effects["9.0"] == (Coverage.PTX, Coverage.NONE, 4000)
    assert effects["6.1"] == (Coverage.NONE, Coverage.NONE, 0)


def test_impossible_budget_has_no_proposal() -> None:
    advice = _advice(inventory(unit(image("sm_80", 5000))), AdviceRequest(budget=2000))
    assert advice.best is None
    assert (advice.snippet(), advice.slim_arguments("x")) == ("", ())
    assert advice.effects[2].after is Coverage.OLDER_MINOR


def test_the_plugins_of_a_build_are_chosen_like_images() -> None:
    report = release(1000, sm_80=5000, sm_90=4000, compute_90=30000)
    costs = release_costs(report, name="dist")
    assert (costs.size, costs.fixed, costs.is_release) == (40000, 1000, True)
    plugins = plugin_sizes(costs, SOME)
    assert [plugins[Capability.parse(each)] for each in ("6.1", "8.9", "9.0", "12.1")] == [
        *(0, 5000, 4000, 30000)
    ]
    advice = advise(costs, SOME, AdviceRequest(ptx=False), plugins)
    assert advice.best is not None
    assert list(map(str, advice.best.targets)) == ["sm_80", "sm_90"]
    assert all(
        target.kind is CodeKind.SASS for one in advice.proposals.front for target in one.targets
    )
    assert advice.slim_arguments("dist") == ()
