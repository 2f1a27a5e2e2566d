"""Samples, made once for all tests of the readers."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from formats_samples import Samples, make_samples

from made_once import made_once

if TYPE_CHECKING:
    from archsplit.nvcc.toolkit import Toolkit


@pytest.fixture(scope="session")
def samples(small_toolkit: Toolkit, tmp_path_factory: pytest.TempPathFactory) -> Samples:
    def make(folder: Path) -> Samples:
        return make_samples(Samples(folder=folder, nvcc=str(small_toolkit.nvcc)))

    made = made_once(tmp_path_factory, "formats", make, is_product=False)
    # Tests put files of their own beside them.
    folder = shutil.copytree(made.folder, tmp_path_factory.mktemp("samples") / "own")
    return replace(made, folder=Path(folder))
