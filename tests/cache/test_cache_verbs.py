"""The verbs of ``archsplit cache``."""

from __future__ import annotations

import io
import json
import os
import random
import signal
import sys
import tarfile
from typing import TYPE_CHECKING

import pytest

from archsplit.cache.cache import Cache
from archsplit.cache.config import Settings
from archsplit.cache.entry import (
    CacheEntry,
    KeyComponent,
    ManifestRow,
    compute_key,
    encode_entry,
)
from archsplit.cache.local import LocalStore, import_store, mark_download, trim_downloads
from archsplit.cache.sealed_blob import seal
from archsplit.cache.stats import MissLog
from archsplit.cli.main import main
from full_disk import needs_mounts, run_on_full_disk

if TYPE_CHECKING:
    from pathlib import Path

ENTRY = CacheEntry(
    components=(KeyComponent("flag", "-O3"),), files={"k.ptx": b"code"}, cpu_seconds=2.0
)

"""A file as version 3 of the cache has written it."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    cache = Cache(Settings(folder=tmp_path / "store"), warn=pytest.fail)
    cache.store(ENTRY)
    cache.add_manifest_row("ab" * 32, ManifestRow(files=()))
    cache.store(ENTRY._replace(components=(KeyComponent("flag", "-O1"),)))
    cache.count_lookup("cicc", "sm_90", "local", 2.0)
    cache.count_lookup("cicc", "sm_80", None, 3.0)
    cache.close()
    return tmp_path / "store"


def run(folder: Path, *words: str) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ARCHSPLIT_CACHE_DIR", str(folder))
        return main(["cache", *words])


def test_stats_prints_the_hit_rate_as_text_and_json(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(folder, "stats") == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first == "hit rate: steps of the others 50% of 2; 2 CPU seconds saved"
    run(folder, "stats", "--json")
    facts = json.loads(capsys.readouterr().out)
    assert facts["schema"] == 1
    assert facts["saved_cpu_seconds"] == 2.0
    assert [row["tier"] for row in facts["counts"]] == ["miss", "local"]


def test_verify_removes_and_reports_damaged_entries(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(folder, "verify") == 0
    assert ": 3 of 3" in capsys.readouterr().out
    store = LocalStore(folder, warn=pytest.fail)
    path = store.path("22" * 32)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"x")
    store.put("00" * 32, encode_entry(ENTRY))
    store.put("11" * 32, seal(b"x"))
    assert run(folder, "verify") == 9
    assert "00000000" in capsys.readouterr().err
    assert run(folder, "verify") == 0


def test_a_store_moves_as_one_file_of_fixed_bytes(folder: Path, tmp_path: Path) -> None:
    one, other = tmp_path / "one.tar", tmp_path / "other.tar"
    run(folder, "export", str(one))
    assert run(tmp_path / "new", "import", str(one)) == 0
    run(tmp_path / "new", "export", str(other))
    assert one.read_bytes() == other.read_bytes()
    found = Cache(Settings(folder=tmp_path / "new"), warn=pytest.fail).find(ENTRY.components)
    assert found is not None


@needs_mounts
def test_import_on_a_full_disk_fails_and_leaves_complete_files(
    folder: Path, tmp_path: Path
) -> None:
    cache = Cache(Settings(folder=folder), warn=pytest.fail)
    for number in range(8):
        parts = (KeyComponent("number", str(number)),)
        content = random.Random(number).randbytes(40_000)
        cache.store(ENTRY._replace(components=parts, files={"k.o": content}))
    cache.close()
    tar, old = tmp_path / "cache.tar", tmp_path / "old"
    assert run(folder, "export", str(tar)) == 0
    (old / "store").mkdir(parents=True)
    launch = "from archsplit.cli.main import entry_point; entry_point()"
    variables = {"ARCHSPLIT_CACHE_DIR": str(tmp_path / "disk/out/store")}
    for free, code in ((0, 11), (120 << 10, 11), (8 << 20, 0)):
        argv = (sys.executable, "-c", launch, "cache", "import", str(tar))
        done = run_on_full_disk(tmp_path, argv, outputs=old, free=free, **variables)
        assert done.code == code, (free, done.stderr)
        assert "Traceback" not in done.stderr
        assert done.left == ()
        assert run(tmp_path / f"after-{free}/out/store", "verify") == 0


def test_export_removes_leftovers_of_a_killed_export(folder: Path, tmp_path: Path) -> None:
    def kill(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    place = tmp_path / "place"
    place.mkdir()
    # It has no marker, so it may be anyone's file.
    (place / ".cache.tar.1a2b3c4d").write_text("mine")
    child = os.fork()
    if child == 0:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("archsplit.cache.local.export_store", kill)
            run(folder, "export", str(place / "cache.tar"))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert len(os.listdir(place)) == 3
    run(folder, "export", str(place / "cache.tar"))
    assert sorted(os.listdir(place)) == [".cache.tar.1a2b3c4d", "cache.tar"]
    assert (place / "cache.tar").stat().st_mode & 0o777 == 0o644


def test_export_writes_to_a_pipe(folder: Path, tmp_path: Path) -> None:
    run(folder, "export", str(tmp_path / "one.tar"))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert run(folder, "export", str(pipe)) == 0
    assert os.read(reader, 1 << 20) == (tmp_path / "one.tar").read_bytes()
    os.close(reader)
    assert pipe.is_fifo()


def test_import_skips_foreign_names(tmp_path: Path) -> None:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name in ("ac/../../etc/x", f"ac/{'0' * 64}", f"other/{'0' * 64}", "ac"):
            member = tarfile.TarInfo(name)
            member.size = 1
            tar.addfile(member, io.BytesIO(b"x"))
    file.seek(0)
    store = LocalStore(tmp_path / "store", warn=pytest.fail)
    assert import_store(store, file, where="x.tar") == (0, 3)
    assert not (tmp_path / "store").exists()


def test_import_leaves_out_members_over_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob = encode_entry(ENTRY)
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        member = tarfile.TarInfo(f"ac/{compute_key(ENTRY.components)}")
        member.size = len(blob)
        tar.addfile(member, io.BytesIO(blob))
    store = LocalStore(tmp_path / "store", warn=pytest.fail)
    for limit, count in ((len(blob) - 1, 0), (1, 0), (len(blob), 1)):
        file.seek(0)
        monkeypatch.setattr("archsplit.cache.local.MAX_ENTRY_BYTES", limit)
        assert import_store(store, file, where="x.tar") == (count, 1)


def test_import_of_a_file_other_than_an_export_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("x" * 2000)
    assert run(folder, "import", str(tmp_path / "x")) == 14
    assert run(folder, "import", str(tmp_path / "none")) == 14


def test_unwritable_store_imports_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(folder, "export", str(tmp_path / "one.tar"))
    (tmp_path / "new").write_text("a file where a folder should be")
    assert run(tmp_path / "new", "import", str(tmp_path / "one.tar")) == 10
    monkeypatch.setenv("ARCHSPLIT_CACHE", "read-only")
    assert run(folder, "import", str(tmp_path / "one.tar")) == 10


def test_downloaded_wheels_are_counted_trimmed_and_cleared(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels = folder / "wheels"
    (wheels / ".archsplit-runs").mkdir(parents=True)
    for number, name in enumerate(("a", "b", "c"), start=1):
        path = wheels / f"{name}-1-py3-none-any.whl"
        path.write_bytes(bytes(400_000))
        os.utime(path, (number, number))
    # The oldest file is the one in use.
    mark_download(wheels / "a-1-py3-none-any.whl")
    run(folder, "stats")
    assert "downloaded wheels: 3, 1.20 MB of at most " in capsys.readouterr().out
    run(folder, "stats", "--json")
    facts = json.loads(capsys.readouterr().out)
    assert (facts["wheels"], facts["wheel_bytes"]) == (3, 1_200_000)
    monkeypatch.setenv("ARCHSPLIT_CACHE_MAX_SIZE", "900k")
    assert run(folder, "trim") == 0
    assert "downloaded wheels removed: 1 (400 kB), left: 2" in capsys.readouterr().out
    left = sorted(path.name[0] for path in wheels.glob("*.whl"))
    assert left == ["a", "c"]
    kept = trim_downloads(folder, maximum=0, keep=wheels / "c-1-py3-none-any.whl")
    assert (kept.files, kept.removed, kept.freed) == (1, 1, 400_000)
    assert run(folder, "clear") == 0
    assert "downloaded wheels removed: 1 (400 kB)" in capsys.readouterr().out
    assert [path.name for path in wheels.iterdir()] == [".archsplit-runs"]
    mark_download(wheels / "gone.whl")


def test_trim_and_clear_remove_entries_and_refuse_a_file(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARCHSPLIT_CACHE_MAX_SIZE", "1")
    assert run(folder, "trim") == 0
    assert " left" in capsys.readouterr().out
    assert run(folder, "clear") == 0
    assert not any(path.is_file() for path in (folder / "ac").rglob("*"))
    assert run(folder / "none", "trim") == 0
    assert "files removed: 0 (0 B), left: 0" in capsys.readouterr().out
    (folder / "file").touch()
    assert run(folder / "file", "trim") == 14
    assert "hint: try again, or see its permissions" in capsys.readouterr().err


def test_explain_prints_the_recorded_reasons(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "k.cu"
    lines = (
        ("", "h.h has changed"),
        ("sm_90", "ptxas sm_90: cache miss"),
        ("sm_80", "ptxas sm_80: cache miss"),
    )
    MissLog(folder).write_reasons(str(source), lines)
    assert run(folder, "explain", str(source), "--target", "sm_90") == 0
    assert capsys.readouterr().out == "h.h has changed\nptxas sm_90: cache miss\n"
    run(folder, "explain", str(source))
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert run(folder, "explain", str(tmp_path / "other.cu")) == 14
