"""Folders that archsplit did not make survive every verb, whatever their names and ages."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from slim_site_samples import made, slim, snapshot
from slim_wheel_samples import NAME, fat_wheel

from archsplit.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("zipfile_for_pip")
FOREIGN = (
    *(".archsplit-cache", ".archsplit-notes", ".archsplit-slim", ".archsplit-1a2b3c4d"),
    ".archsplit-1a2b3c4d5e6f7a8b.d",
)
WHEEL = f"in/{NAME}"
VERBS = (
    # words, exit code; in this order, because some read what others have written
    (f"inspect {WHEEL} --html out/r.html", 0),
    (f"slim {WHEEL} --device 9.0 --out out", 0),
    (f"slim {WHEEL} --device 9.0 --dry-run", 0),
    ("slim in/library/libsample.so --device 9.0 --out out", 0),
    (f"split {WHEEL} --out out", 0),
    ("verify out", None),
    ("verify out --release --no-install", None),
    ("join out --out joined", 0),
    ("join out --out out", 10),
    ("gather out --out gathered", 0),
    ("gather out --out out", 0),
    (f"diff {WHEEL} {WHEEL}", 0),
    (f"index out --add {WHEEL}", 0),
    ("index out --check", 0),
    ("init out", None),
    ("plan out", None),
    ("build out --out out", None),
    (f"mirror {WHEEL} --out out --device 9.0", None),
    ("cache stats", 0),
    ("doctor fat", None),
)


def add_foreign(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for name in FOREIGN:
        (folder / name).mkdir()
        (folder / name / "mine").write_text("x")
        os.utime(folder / name, (0, 0))


def foreign(folder: Path) -> list[str]:
    return sorted(path.parent.name for path in folder.glob(".archsplit-*/mine"))


def test_foreign_folders_survive_every_verb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    fat_wheel(tmp_path / "in")
    folders = [tmp_path / name for name in (".", "out", "joined", "gathered", "in", "tmp", "home")]
    for folder in folders:
        add_foreign(folder)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ARCHSPLIT_CACHE_DIR", str(tmp_path / ".archsplit-cache"))
    monkeypatch.setattr("tempfile.tempdir", None)
    for words, expected in VERBS:
        try:
            code = main(words.split())
        except SystemExit as end:
            code = int(str(end.code))
        message = capsys.readouterr().err
        assert code != 1, (words, message)
        assert expected in {None, code}, (words, code, message)
        for folder in folders:
            assert foreign(folder) == sorted(FOREIGN), (words, folder)


def test_undo_store_survives_other_verbs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = made(tmp_path)
    site = environment.site
    slim(site)
    os.utime(site / ".archsplit-slim", (0, 0))
    store = snapshot(site / ".archsplit-slim")
    wheel = fat_wheel(tmp_path)
    for verb in (f"slim {wheel} --device 9.0 --out {site}", f"split {wheel} --out {site}"):
        assert main(verb.split()) == 0
        assert snapshot(site / ".archsplit-slim") == store
    assert main(["slim", "--site-packages", str(site), "--undo"]) == 0
