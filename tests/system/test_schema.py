"""Checks of types, built when they are first needed."""

from __future__ import annotations

from archsplit.system.schema import type_adapter


def test_the_checks_of_a_type_are_built_once() -> None:
    # No other test has this type, so that they are built here whatever ran before.
    pair = type_adapter(tuple[int, str])
    assert pair.validate_python([7, "a"]) == (7, "a")
    assert type_adapter(tuple[int, str]) is pair
