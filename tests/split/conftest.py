"""A split of hand-made libraries, shared by most tests."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from split_samples import Sample, hand_made, split

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.release.context import Effects


@pytest.fixture(scope="session")
def effects() -> Effects:
    from archsplit.release.context import Effects  # noqa: PLC0415 (the same)
    from archsplit.system.terminal import SilentProgress  # noqa: PLC0415 (only the fixture's)

    return Effects(progress=SilentProgress(), environment=os.environ, jobs=1)


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory, effects: Effects) -> Sample:
    folder: Path = tmp_path_factory.mktemp("split")
    fat = hand_made(folder)
    return Sample(folder=folder, fat=fat, out=split(fat, folder / "out", effects))
