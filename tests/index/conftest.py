"""A small release, and a real index that is empty for each test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from publish_samples import FakeClock, Scene, copied, make_release, misbehaving

from index_server import pypiserver

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The release's folder; not to be changed."""
    return make_release(tmp_path_factory.mktemp("release"))


@pytest.fixture(scope="session")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Path]]:
    """The port of a real index, and its folder."""
    folder = tmp_path_factory.mktemp("index") / "files"
    folder.mkdir()
    with pypiserver(folder) as port:
        yield port, folder


@pytest.fixture
def scene(made: Path, index: tuple[int, Path], tmp_path: Path) -> Iterator[Scene]:
    port, files = index
    for path in files.iterdir():
        path.unlink()
    with misbehaving(port) as server:
        yield Scene(
            dist=copied(made, tmp_path / "dist"),
            files=files,
            server=server,
            state=tmp_path / "state",
            clock=FakeClock(),
            notes=[],
            plans=[],
        )
