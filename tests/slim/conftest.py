"""Folders with makers of samples, and a stand-in for pip."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING

import pytest

from archsplit.release.trial import Trial
from handmade_samples import Maker

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.wheels.filename import WheelName


@pytest.fixture
def maker(tmp_path: Path) -> Maker:
    return Maker(folder=tmp_path)


@pytest.fixture
def zipfile_for_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unpack wheels here: pip takes half a second for each, and few tests are about it."""

    def install(self: Trial, wheel: Path, name: WheelName, target: Path) -> None:
        del self, name
        zipfile.ZipFile(wheel).extractall(target)

    monkeypatch.setattr(Trial, "install", install)
