"""Samples, made once for all tests of the readers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from formats_samples import Samples, make_samples

if TYPE_CHECKING:
    from archsplit.nvcc.toolkit import Toolkit


@pytest.fixture(scope="session")
def samples(toolkit: Toolkit, tmp_path_factory: pytest.TempPathFactory) -> Samples:
    folder = tmp_path_factory.mktemp("samples")
    return make_samples(Samples(folder=folder, nvcc=str(toolkit.nvcc)))
