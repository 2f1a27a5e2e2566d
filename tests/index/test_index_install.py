from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from index_http_server import serving
from index_installers import installed, pip, uv
from index_samples import DAY, EPOCH, build_folder, release

from archsplit.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path

TOY_90 = {"toy-1.1", "toy_sm90-1.1"}


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "index"
    for day, version in enumerate(("1.0", "1.1")):
        build = build_folder(tmp_path / version, version)
        monkeypatch.setenv("SOURCE_DATE_EPOCH", str(EPOCH + day * DAY))
        assert main(["index", str(folder), "--add", str(build)]) == 0
    return folder


@pytest.mark.parametrize("knows_json", [False, True])
def test_pip_installs(index: Path, tmp_path: Path, *, knows_json: bool) -> None:
    with serving(index, knows_json=knows_json) as (url, asked):
        done = pip(url, "install", "--target", str(tmp_path / "site"), "toy[sm90]")
    assert done.returncode == 0, done.stderr
    assert installed(tmp_path / "site") == TOY_90
    assert (any(path.endswith(".json") for path in asked)) == knows_json


@pytest.mark.parametrize("knows_json", [False, True])
def test_uv_installs(index: Path, tmp_path: Path, *, knows_json: bool) -> None:
    with serving(index, knows_json=knows_json) as (url, asked):
        done = uv(url, "install", "--target", str(tmp_path / "site"), "toy[sm90]")
    assert done.returncode == 0, done.stderr
    assert installed(tmp_path / "site") == TOY_90
    assert (any(path.endswith(".json") for path in asked)) == knows_json


@pytest.mark.parametrize("knows_json", [False, True])
def test_pip_downloads(index: Path, tmp_path: Path, *, knows_json: bool) -> None:
    with serving(index, knows_json=knows_json) as (url, _):
        done = pip(url, "download", "--dest", str(tmp_path / "wheels"), "toy[all]==1.0")
    assert done.returncode == 0, done.stderr
    assert {path.name.partition("-")[0] for path in (tmp_path / "wheels").iterdir()} == {
        "toy",
        "toy_sm80",
        "toy_sm90",
    }


@pytest.mark.parametrize("knows_json", [False, True])
def test_resolving_asks_only_for_metadata(index: Path, *, knows_json: bool) -> None:
    with serving(index, knows_json=knows_json) as (url, asked):
        done = pip(url, "install", "--dry-run", "--ignore-installed", "toy[all]")
        assert done.returncode == 0, done.stderr
        uv_done = uv(url, "install", "--dry-run", "--system", "toy[all]")
        assert uv_done.returncode == 0, uv_done.stderr
    names = [path.rpartition("/")[2] for path in asked]
    assert names.count("toy-1.1-py3-none-any.whl.metadata") == 2
    assert not [name for name in names if name.endswith(".whl")]


def test_other_bytes_are_not_installed(index: Path, tmp_path: Path) -> None:
    *_, other = release(tmp_path / "other", "1.1", ("sm80",))
    other.replace(index / "toy" / other.name)
    with serving(index) as (url, _):
        by_pip = pip(url, "install", "--target", str(tmp_path / "pip"), "toy")
        by_uv = uv(url, "install", "--target", str(tmp_path / "uv"), "toy")
    assert by_pip.returncode != 0
    assert "HASHES" in by_pip.stderr
    assert by_uv.returncode != 0
    assert "ash mismatch" in by_uv.stderr
    assert main(["index", str(index), "--check"]) == 9


@pytest.mark.parametrize("knows_json", [False, True])
def test_yanked_release_is_not_installed(
    index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], *, knows_json: bool
) -> None:
    assert main(["index", str(index), "--yank", "toy==1.1", "--reason", "a <bad> day"]) == 0
    assert "yanked toy==1.1\n" in capsys.readouterr().out
    with serving(index, knows_json=knows_json) as (url, _):
        by_pip = pip(url, "install", "--target", str(tmp_path / "pip"), "toy[sm90]")
        by_uv = uv(url, "install", "--target", str(tmp_path / "uv"), "toy[sm90]")
        pinned = pip(url, "install", "--target", str(tmp_path / "pinned"), "toy==1.1")
    assert by_pip.returncode == 0, by_pip.stderr
    assert by_uv.returncode == 0, by_uv.stderr
    older = {"toy-1.0", "toy_sm90-1.0"}
    assert installed(tmp_path / "pip") == older == installed(tmp_path / "uv")
    assert "a <bad> day" in pinned.stderr
    assert main(["index", str(index), "--unyank", "toy==1.1"]) == 0
    assert "not yanked any more: toy==1.1\n" in capsys.readouterr().out
    with serving(index) as (url, _):
        uv(url, "install", "--target", str(tmp_path / "again"), "toy[sm90]")
    assert installed(tmp_path / "again") == TOY_90


def test_uv_respects_upload_times(index: Path, tmp_path: Path) -> None:
    with serving(index, knows_json=True) as (url, _):
        options = ("--target", str(tmp_path), "--exclude-newer", "2026-11-21T12:00:00Z")
        done = uv(url, "install", *options, "toy[sm90]")
    assert done.returncode == 0, done.stderr
    assert installed(tmp_path) == {"toy-1.0", "toy_sm90-1.0"}
