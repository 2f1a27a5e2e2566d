"""A folder with a maker of small libraries for each test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from handmade_samples import Maker

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def maker(tmp_path: Path) -> Maker:
    return Maker(folder=tmp_path)
