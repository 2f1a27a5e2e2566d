"""The choice of images against CUDA's published rules of compatibility."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archsplit.arch.compat import GPU_BY_CAPABILITY, can_run_on, published_targets
from archsplit.arch.target import Capability, Target
from archsplit.devicecode.select import (
    Coverage,
    classify_coverage,
    code_targets,
    is_code,
    needed_images,
    newest_ptx,
    runs_linked_code,
    selected_images,
)
from archsplit.formats.fatbin import EntryKind


@dataclass(frozen=True, slots=True)
class Piece:
    """A stand-in for an entry."""

    offset: int
    target: Target | None
    kind: EntryKind | None


def pieces(*names: str) -> tuple[Piece, ...]:
    kinds = {"sm": EntryKind.CUBIN, "compute": EntryKind.PTX}
    return tuple(
        Piece(offset, Target.parse(name), kinds[name.partition("_")[0]])
        for offset, name in enumerate(names)
    )


containers = st.lists(st.sampled_from(published_targets()).map(str), max_size=8).map(
    lambda names: pieces(*names)
)
capabilities = st.sampled_from(sorted(GPU_BY_CAPABILITY))
LTO = Piece(90, None, EntryKind.LTO_IR)
RELOCATABLE = Piece(91, Target.parse("compute_90"), EntryKind.RELOCATABLE_PTX)


@pytest.mark.parametrize(
    ("held", "capability", "taken", "service"),
    [
        (("sm_80", "sm_90", "compute_90"), "9.0", ["sm_90"], Coverage.NATIVE),
        (("sm_90", "sm_90a"), "9.0", ["sm_90a"], Coverage.NATIVE),
        (("sm_80", "compute_90"), "8.9", ["sm_80"], Coverage.OLDER_MINOR),
        (("sm_80", "compute_90"), "12.0", ["compute_90"], Coverage.PTX),
        (("sm_80",), "9.0", [], Coverage.NONE),
        (("sm_80", "sm_80"), "8.0", ["sm_80", "sm_80"], Coverage.NATIVE),
    ],
)
def test_device_takes_its_best_image(
    held: tuple[str, ...], capability: str, taken: list[str], service: Coverage
) -> None:
    found = selected_images(pieces(*held), Capability.parse(capability))
    assert [str(piece.target) for piece in found] == taken
    target = found[0].target if found else None
    assert classify_coverage(target, Capability.parse(capability)) is service


def test_image_for_linkers_is_never_taken() -> None:
    assert not is_code(LTO)
    assert not is_code(RELOCATABLE)
    assert selected_images((LTO, RELOCATABLE), Capability(9, 0)) == ()
    assert newest_ptx((LTO, RELOCATABLE)) == ()
    assert code_targets((LTO, RELOCATABLE)) == frozenset()


@given(containers, capabilities)
def test_runnable_image_is_always_chosen(held: tuple[Piece, ...], capability: Capability) -> None:
    found = selected_images(held, capability)
    running = [piece for piece in held if piece.target and can_run_on(piece.target, capability)]
    assert set(found) <= set(running)
    assert bool(found) == bool(running)
    assert len({piece.target for piece in found}) <= 1


@given(containers, st.lists(capabilities, max_size=4))
def test_several_devices_need_all_their_images(
    held: tuple[Piece, ...], devices: list[Capability]
) -> None:
    found = needed_images(held, devices)
    assert list(found) == [
        piece for piece in held if any(piece in selected_images(held, each) for each in devices)
    ]


@given(containers)
def test_newest_ptx_serves_later_gpus(held: tuple[Piece, ...]) -> None:
    found = newest_ptx(held)
    future = Capability(999, 0)
    assert found == selected_images(held, future)


@pytest.mark.parametrize(
    ("linked", "devices"),
    [
        # sm_80 runs on 8.6; the driver links for 9.0.
        ([("sm_80",)], ["8.0", "8.6"]),
        ([("sm_80", "sm_90")], ["8.0", "8.6", "9.0"]),
        # Each of several device links needs an image for the device.
        ([("sm_80", "sm_90"), ("sm_90",)], ["9.0"]),
        ([("sm_80",), ("compute_80",)], []),
        ([("sm_80",), ()], []),
        ([()], []),
        ([], []),
    ],
)
def test_linked_code_replaces_link_input_on_devices_with_an_image_in_each_container(
    linked: list[tuple[str, ...]], devices: list[str]
) -> None:
    containers = [code_targets(pieces(*names)) for names in linked]
    gpus = map(Capability.parse, ("7.0", "8.0", "8.6", "9.0"))
    assert [str(one) for one in gpus if runs_linked_code(containers, one)] == devices
