"""The wheels of a small index, made once; the index, served once; two mirrors of it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from mirror_samples import ServedIndex, mirror, served, write_simple, write_wheels

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of wheels; not to be changed."""
    return write_wheels(tmp_path_factory.mktemp("fat"))


@pytest.fixture(scope="session")
def served_wheels(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedIndex]:
    folder = tmp_path_factory.mktemp("simple")
    write_simple(folder, wheels)
    with served(folder) as one:
        yield one


def _use(index: ServedIndex, patch: pytest.MonkeyPatch) -> None:
    """Let pip and uv use an index: for one test, because a worker's later tests have others."""
    patch.setenv("PIP_INDEX_URL", index.url)
    patch.setenv("UV_DEFAULT_INDEX", index.url)
    patch.setenv("PIP_CONFIG_FILE", "/dev/null")
    patch.setenv("UV_NO_CONFIG", "1")


@pytest.fixture
def index(
    served_wheels: ServedIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ServedIndex:
    """The served index, which pip and uv use, and an empty current folder."""
    served_wheels.requests.clear()
    served_wheels.breaks.clear()
    _use(served_wheels, monkeypatch)
    # HOME may be read-only.
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path.with_name(f"{tmp_path.name}-uv")))
    monkeypatch.chdir(tmp_path)
    return served_wheels


@pytest.fixture(scope="session")
def slimmed(served_wheels: ServedIndex, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mirror for 9.0 of requirements that pip resolves; not to be changed."""
    return _made(served_wheels, tmp_path_factory.mktemp("slimmed"), "--device", "9.0")


@pytest.fixture(scope="session")
def split(served_wheels: ServedIndex, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same for two GPUs, split; not to be changed."""
    words = ("--device", "8.0,9.0", "--split", "--lock-name", "train")
    return _made(served_wheels, tmp_path_factory.mktemp("split"), *words)


def _made(index: ServedIndex, folder: Path, *arguments: str) -> Path:
    (folder / "requirements.txt").write_text("fat==1.2.3\n")
    with pytest.MonkeyPatch.context() as patch:
        _use(index, patch)
        assert mirror(folder / "requirements.txt", "--out", folder / "out", *arguments) == 0
    return folder / "out"


@pytest.fixture
def own(index: ServedIndex, slimmed: Path) -> Path:
    """A copy of the mirror for 9.0 in the current folder, to be changed."""
    shutil.copytree(slimmed, "out")
    return Path("out")
