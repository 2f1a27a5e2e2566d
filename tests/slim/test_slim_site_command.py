"""The verb on an installed environment: its options, and what it says."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from rich.console import Console
from slim_site_samples import LIBRARY, Environment, made, snapshot

from archsplit.cli import slim
from archsplit.errors import InputError, TargetError, UsageError
from archsplit.formats.elf import Elf
from archsplit.formats.fatbin import Compression, host_containers
from archsplit.formats.reader import open_file
from archsplit.slim.transaction import TRANSACTION_FOLDER
from handmade_samples import Maker, container, held, lz4_image

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.formats.fatbin import Container


def run(*argv: str | Path) -> int:
    parser = argparse.ArgumentParser()
    slim.add_to(parser.add_subparsers())
    arguments = parser.parse_args(["slim", *map(str, argv)])
    code: int = arguments.run(arguments, Console(stderr=True))
    return code


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return made(tmp_path_factory.mktemp("made"))


@pytest.fixture
def site(original: Environment, tmp_path: Path) -> Path:
    return original.copy(tmp_path / "env").site


def test_undo_restores_every_file(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = snapshot(site)
    assert run("--site-packages", site, "--device", "9.0") == 0
    said = capsys.readouterr().out
    assert "loads" not in said
    assert "B before; --undo restores it" in said.replace("\n", " ")
    assert run("--site-packages", site, "--undo") == 0
    assert "restored 6 files" in capsys.readouterr().err
    assert snapshot(site) == before


def test_an_environment_in_place_of_its_site_packages_is_refused(tmp_path: Path) -> None:
    inside = tmp_path / "env" / "lib" / "python3.12" / "site-packages"
    inside.mkdir(parents=True)
    with pytest.raises(InputError, match="env is an environment") as refused:
        run("--site-packages", tmp_path / "env", "--device", "9.0")
    assert refused.value.hint == f"name the folder inside: --site-packages {inside}"


LIBCUDA = "int cuDriverGetVersion(int *version) { *version = %d; return 0; }"


@pytest.mark.parametrize(
    ("driver", "options", "is_zstd"),
    [
        (12040, (), True),
        (12030, (), False),
        (None, (), False),
        (12040, ("--recompress", "off"), False),
        (None, ("--recompress", "9"), True),
    ],
)
def test_installed_images_become_zstd_if_the_driver_reads_it(
    driver: int | None,
    options: tuple[str, ...],
    is_zstd: bool,
    site: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "libcuda.so.1"
    if driver is None:
        path.write_text("no driver")
    else:
        command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)]
        subprocess.run(command, input=(LIBCUDA % driver).encode(), check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    folder = tmp_path / "library"
    folder.mkdir()
    library = Maker(folder=folder).library((container(lz4_image(), lz4_image("sm_80")),))
    shutil.copyfile(library, site / LIBRARY)
    before = snapshot(site)
    assert run("--site-packages", site, "--device=9.0", "--ignore-record", *options) == 0
    (one,) = read_containers_of(site / LIBRARY)
    assert [entry.compression is Compression.ZSTD for entry in one.entries()] == [is_zstd]
    assert run("--site-packages", site, "--undo") == 0
    assert snapshot(site) == before


def read_containers_of(path: Path) -> list[Container]:
    return [one for _, one in host_containers(Elf(open_file(path)))]


def test_commit_at_once_frees_the_space_for_good(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--site-packages", site, "--keep", "sm_90,sm_90a,sm_80", "--commit") == 0
    free, old, new = map(float, re.findall(r"(\d+\.\d) MB", capsys.readouterr().err))
    assert free == pytest.approx(old - new, abs=0.11)
    assert not (site / TRANSACTION_FOLDER).exists()
    assert held(site / LIBRARY)[0] == ["sm_80", "sm_90", "compute_90"]
    assert run("--site-packages", site, "--commit") == 0
    with pytest.raises(
        TargetError, match="device code was removed from it by `--keep sm_80,sm_90,"
    ):
        run("--site-packages", site, "--keep", "sm_86")


def test_report_of_an_environment_is_written_as_json(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--site-packages", site, "--device", "9.0", "--json", "--dry-run") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["output"] is None
    assert [file["path"] for file in report["files"]] == [LIBRARY, "other/libother.so"]
    assert report["notes"] == []
    assert run("--site-packages", site, "--device", "9.0", "--json") == 0
    assert json.loads(capsys.readouterr().out)["output"] == str(site)


def test_interrupted_run_is_finished(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("--site-packages", site, "--device", "9.0")
    journal = site / TRANSACTION_FOLDER / "journal.json"
    journal.write_text(journal.read_text().replace('"slimmed"', '"switching"'))
    assert run("--site-packages", site, "--device", "9.0") == 0
    said = capsys.readouterr().out
    assert "an interrupted run was finished" in said
    assert f"`archsplit doctor --site-packages {site}` refuses it" in said


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ((), "name a file to slim, or an environment"),
        (("x.so", "--site-packages", "y", "--commit"), "are for environments"),
        (("x.so", "--undo"), "are for environments"),
        (("x.so", "--commit"), "are for environments"),
        (("--site-packages", "y", "--undo", "--commit"), "use --undo only with --site-packages"),
        (
            ("--site-packages", "y", "--undo", "--keep", "sm_90"),
            "use --undo only with --site-packages",
        ),
        (("--site-packages", "y", "--undo", "--dry-run"), "--dry-run can't be combined"),
        (("--site-packages", "y", "--device=9.0", "--label"), "--label is for wheels"),
        (("--site-packages", "y"), "name one of --device"),
    ],
)
def test_options_have_to_go_together(
    options: tuple[str, ...], match: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "y").mkdir()
    with pytest.raises(UsageError, match=match):
        run(*options)
