"""Fixtures of tests of the compiler wrapper."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from archsplit.nvcc.toolkit import Toolkit


@pytest.fixture(scope="session")
def toolkit(small_toolkit: Toolkit) -> Toolkit:
    """Compile with small headers: a test that is about the headers takes `whole_toolkit`."""
    return small_toolkit
