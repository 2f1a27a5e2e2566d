"""Checks of plugins with relocatable device code, as records."""

from __future__ import annotations

import pytest

from archsplit.arch.target import Target
from archsplit.devicecode.registered import Library
from archsplit.formats.descriptor import Descriptor, Shape
from archsplit.release.device_checks import plugin_faults
from archsplit.release.identity import Identity

SASS, PTX, OTHER = (Target.parse(name) for name in ("sm_90", "compute_90", "sm_80"))
NONE: frozenset[Target] = frozenset()
IDENTITY = Identity(
    package="foo",
    version="1.0",
    build_id="ab" * 32,
    interface_hash="cd" * 32,
    library="libfoo.so",
    plugins_package="foo_plugins",
    distribution="foo",
    targets={"sm_90": "foo-sm90", "compute_90": "foo-compute90"},
)

Containers = tuple[frozenset[Target], ...]


def faults(target: Target, containers: Containers, relocatable: Containers) -> list[str]:
    descriptor = Descriptor(
        package="foo",
        version="1.0",
        build_id=bytes.fromhex("ab" * 32),
        interface_hash=bytes.fromhex("cd" * 32),
        cuda_version=13000,
        shape=Shape.LIBRARY,
        targets=(target,),
    )
    library = Library(
        descriptor=descriptor, containers=containers, relocatable=relocatable, exports=frozenset()
    )
    return [one.text for one in plugin_faults(library, target, IDENTITY)]


@pytest.mark.parametrize(
    ("target", "containers", "relocatable"),
    [
        (SASS, (frozenset({SASS}),), (NONE, NONE)),
        (SASS, (frozenset({SASS}),), ()),
        (PTX, (NONE,), (frozenset({PTX}), frozenset({PTX}))),
        (PTX, (frozenset({PTX}),), ()),
    ],
)
def test_containers_as_planned_have_no_faults(
    target: Target, containers: Containers, relocatable: Containers
) -> None:
    assert faults(target, containers, relocatable) == []


def test_link_input_left_in_a_product_is_a_fault() -> None:
    found = faults(SASS, (frozenset({SASS}),), (NONE, frozenset({SASS}), frozenset({OTHER})))
    assert found == [
        "container 2 has left-over code for sm_90",
        "container 3 has foreign code for sm_80, expected only sm_90",
    ]


def test_unlinked_machine_code_is_reported_as_left_over() -> None:
    found = faults(SASS, (NONE,), (frozenset({SASS}),))
    assert found == [
        "container 0 has no code for sm_90",
        "container 1 has left-over code for sm_90",
    ]


def test_ptx_of_all_sources_is_there() -> None:
    assert faults(PTX, (NONE,), (frozenset({PTX}), NONE)) == [
        "container 1 has no code for compute_90"
    ]


def test_library_without_device_code_is_found() -> None:
    assert faults(PTX, (NONE,), (NONE,)) == ["has no device code, expected compute_90"]
