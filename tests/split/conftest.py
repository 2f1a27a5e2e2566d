"""One split of hand-made libraries, which most tests look at."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from split_samples import GccForZig, Sample, hand_made, split

if TYPE_CHECKING:
    from pathlib import Path

    from splitter.workshop import Workshop


@pytest.fixture(scope="session")
def workshop() -> Workshop:
    from splitter.system.progress import Silent  # noqa: PLC0415 (the fixture's alone)
    from splitter.workshop import Workshop  # noqa: PLC0415 (the same)

    return Workshop(progress=Silent(), environment=os.environ, jobs=1, runner=GccForZig())


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory, workshop: Workshop) -> Sample:
    folder: Path = tmp_path_factory.mktemp("split")
    fat = hand_made(folder)
    return Sample(folder=folder, fat=fat, out=split(fat, folder / "out", workshop))
