"""The C loader's rules equal archsplit.arch.compat's, over all that is known and more."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING

import pytest

from archsplit.arch.compat import GPU_BY_CAPABILITY, best_target, published_targets
from archsplit.arch.target import Capability, CodeKind, Suffix, Target
from archsplit_loader import _bindings

if TYPE_CHECKING:
    import ctypes
    from collections.abc import Sequence

    from loader_stubs import Workbench

# What is published, what lies between, and a generation that doesn't exist yet.
CAPABILITIES = sorted(
    {
        *GPU_BY_CAPABILITY,
        *(Capability(major, minor) for major in (7, 9, 12, 13) for minor in (0, 4)),
    }
)
SUFFIXES: tuple[Suffix, ...] = ("", "a", "f")
TARGETS = sorted(
    {
        *published_targets(),
        *(
            Target(kind=kind, capability=capability, suffix=suffix)
            for kind in CodeKind
            for capability in CAPABILITIES
            for suffix in SUFFIXES
        ),
    }
)


@pytest.fixture(scope="module")
def library(workbench: Workbench) -> ctypes.CDLL:
    return _bindings.open_library(str(workbench.folder))


def chosen_by_c(
    library: ctypes.CDLL, capability: Capability, targets: Sequence[Target]
) -> Target | None:
    name = _bindings.best_target(library, str(capability), [str(target) for target in targets])
    return None if name is None else Target.parse(name)


def test_every_target_runs_on_the_same_capabilities(library: ctypes.CDLL) -> None:
    for target, capability in itertools.product(TARGETS, CAPABILITIES):
        expected = best_target(capability, [target])
        assert chosen_by_c(library, capability, [target]) == expected, (target, capability)


def test_every_pair_is_ordered_alike(library: ctypes.CDLL) -> None:
    for capability in GPU_BY_CAPABILITY:
        runs = [target for target in TARGETS if best_target(capability, [target])]
        for pair in itertools.combinations(runs, 2):
            expected = best_target(capability, pair)
            assert chosen_by_c(library, capability, pair) == expected
            assert chosen_by_c(library, capability, pair[::-1]) == expected


def test_random_sets_are_chosen_from_alike(library: ctypes.CDLL) -> None:
    shuffler = random.Random(20251121)
    for _ in range(20_000):
        targets = shuffler.sample(TARGETS, shuffler.randint(1, 12))
        capability = shuffler.choice(CAPABILITIES)
        expected = best_target(capability, targets)
        assert chosen_by_c(library, capability, targets) == expected, (targets, capability)


def test_nothing_is_chosen_from_nothing(library: ctypes.CDLL) -> None:
    assert chosen_by_c(library, Capability(9, 0), []) is None


def test_table_of_capabilities_is_the_same(library: ctypes.CDLL) -> None:
    expected = [(str(each), known.display) for each, known in GPU_BY_CAPABILITY.items()]
    assert list(_bindings.known_capabilities(library)) == expected


def test_target_names_survive(library: ctypes.CDLL) -> None:
    for target in TARGETS:
        assert str(_bindings.TargetStruct.parse(str(target))) == str(target)
