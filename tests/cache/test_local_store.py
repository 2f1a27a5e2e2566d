"""The local store, its leases, its trimming and what it remembers."""

from __future__ import annotations

import fcntl
import hashlib
import os
import socket
import subprocess
import sys
import threading
import time
import zlib
from typing import TYPE_CHECKING

import pytest

from archsplit.cache.cache import Cache, Leases
from archsplit.cache.config import Settings
from archsplit.cache.entry import CacheEntry, KeyComponent, ManifestRow, compute_key, encode_entry
from archsplit.cache.file_digests import FileDigests
from archsplit.cache.local import (
    LocalStore,
    clear_store,
    evict,
    is_eviction_due,
    store_size,
    verify_store,
)
from archsplit.cache.sealed_blob import encode_result
from archsplit.cache.stats import CacheStats, MissLog, read_counts
from archsplit.cache.usage import TOO_NEW_NS
from archsplit.system.fs import atomic_replace
from killed_children import leave_half_an_output

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ENTRY = CacheEntry(
    components=(KeyComponent("flag", "-O3"),), files={"k.ptx": b"code"}, cpu_seconds=1.0
)
KEY = compute_key(ENTRY.components)


def store(folder: Path, said: list[str] | None = None) -> LocalStore:
    return LocalStore(folder, warn=(said if said is not None else []).append)


def cache(folder: Path, said: list[str] | None = None, **changes: object) -> Cache:
    settings = Settings(folder=folder, **changes)  # type: ignore[arg-type]
    return Cache(settings, warn=(said if said is not None else []).append)


def test_unreadable_folder_costs_only_its_entry(tmp_path: Path) -> None:
    # A name that is too long is refused for every user; a closed folder is not refused for root.
    said: list[str] = []
    closed = cache(tmp_path / ("x" * 300), said)
    closed.store(ENTRY)
    assert closed.find(ENTRY.components) is None
    assert len(said) == 1
    assert "File name too long" in said[0]


def test_entry_is_found_by_its_components(tmp_path: Path) -> None:
    assert cache(tmp_path).store(ENTRY)
    found = cache(tmp_path).find(ENTRY.components)
    assert found is not None
    assert found == (ENTRY, "local")
    assert cache(tmp_path).find([KeyComponent("flag", "-O2")]) is None


def test_local_store_has_the_layout_of_remote_caches(tmp_path: Path) -> None:
    cache(tmp_path).store(ENTRY)
    assert (tmp_path / "ac" / KEY[:2] / KEY).is_file()
    assert list(store(tmp_path).all_keys()) == [KEY]


@pytest.mark.parametrize("damage", [b"", b"rubbish", encode_entry(ENTRY)[:-1]])
def test_a_damaged_entry_is_dropped(tmp_path: Path, damage: bytes) -> None:
    said: list[str] = []
    cache(tmp_path).store(ENTRY)
    path = store(tmp_path).path(KEY)
    path.write_bytes(damage)
    assert cache(tmp_path, said, mode="read-only").find(ENTRY.components) is None
    assert path.exists()
    assert cache(tmp_path, said).find(ENTRY.components) is None
    assert not path.exists()
    why = f"a damaged file of the cache: {path}: its digest is wrong"
    assert said == [f"ignored {why}", f"deleted {why}"]


def test_entry_with_a_bad_frame_is_dropped(tmp_path: Path) -> None:
    said: list[str] = []
    path = store(tmp_path).path(KEY)
    path.parent.mkdir(parents=True)
    path.write_bytes(encode_result(zlib.compress(b"code")[:-1]))
    assert cache(tmp_path, said).find(ENTRY.components) is None
    assert not path.exists()
    why = "its compressed data can't be unpacked"
    assert said == [f"deleted a damaged file of the cache: {path}: {why}"]


def test_an_entry_under_another_ones_key_is_dropped(tmp_path: Path) -> None:
    other = compute_key([KeyComponent("flag", "-O2")])
    store(tmp_path).put(other, encode_entry(ENTRY))
    assert cache(tmp_path).find([KeyComponent("flag", "-O2")]) is None
    assert not store(tmp_path).path(other).exists()


def test_bytes_without_their_digest_are_dropped(tmp_path: Path) -> None:
    store(tmp_path).put("ab" * 32, b"text")
    assert store(tmp_path).get("ab" * 32) is None
    assert not store(tmp_path).path("ab" * 32).exists()


def test_cheap_or_small_entry_is_not_stored(tmp_path: Path) -> None:
    assert not cache(tmp_path, min_seconds=2.0).store(ENTRY)
    assert not cache(tmp_path, min_size=5).store(ENTRY)
    assert not cache(tmp_path, mode="read-only").store(ENTRY)
    assert not tmp_path.joinpath("ac").exists()


def test_unwritable_folder_warns_once(tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "ac").write_text("a file where a folder should be")
    used = cache(tmp_path, said)
    used.store(ENTRY)
    used.store(ENTRY)
    assert used.find(ENTRY.components) is None
    used.close()
    assert len([line for line in said if "written" in line]) == 1


def make_folder(path: Path) -> None:
    (path / "folder").mkdir(parents=True)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        # The path of a socket has at most 107 bytes.
        made.bind(os.path.relpath(path))


IRREGULAR: dict[str, Callable[[Path], None]] = {
    "folder": make_folder,
    "FIFO": os.mkfifo,
    "socket": make_socket,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "broken link": lambda path: path.symlink_to("nowhere"),
}


@pytest.fixture(params=IRREGULAR)
def make_irregular(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Path], None]:
    """Put something else in the place of a cache's file."""

    def replace(path: Path) -> None:
        path.unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        monkeypatch.chdir(path.parent)
        IRREGULAR[request.param](path)
        monkeypatch.chdir(tmp_path)

    return replace


def test_irregular_file_in_place_of_an_entry_is_replaced(
    make_irregular: Callable[[Path], None], tmp_path: Path
) -> None:
    said: list[str] = []
    path = store(tmp_path).path(KEY)
    used = cache(tmp_path, said)
    for _ in range(2):
        make_irregular(path)
        assert cache(tmp_path, said, mode="read-only").find(ENTRY.components) is None
        assert os.path.lexists(path)
        assert used.find(ENTRY.components) is None
        make_irregular(path)
        assert used.store(ENTRY)
        assert path.is_file()
        assert used.find(ENTRY.components) is not None
    make_irregular(path)
    assert verify_store(store(tmp_path)).damaged == (KEY,)
    assert not os.path.lexists(path)
    used.close()
    assert said == []


def test_other_files_of_the_cache_are_replaced_too(
    make_irregular: Callable[[Path], None], tmp_path: Path
) -> None:
    make_irregular(tmp_path / "last-eviction")
    assert evict(tmp_path, maximum=1, warn=print) is not None
    digests, known = FileDigests(tmp_path), tmp_path / os.uname().nodename / "group"
    make_irregular(known)
    digests.load("group")
    assert digests.digest(sys.executable, group="group")
    digests.save()
    assert known.is_file()
    log = MissLog(tmp_path)
    log.write_reasons("k.cu", (("", "line"),))
    (told,) = (tmp_path / "miss-reasons").iterdir()
    make_irregular(told)
    assert log.read_reasons("k.cu") == ()
    log.write_reasons("k.cu", (("", "line"),))
    assert log.read_reasons("k.cu") == (("", "line"),)
    leases = Leases(tmp_path / "lease", seconds=5)
    make_irregular(tmp_path / "lease" / "k")
    assert leases.wait("k")
    assert leases.acquire("k")
    assert not Leases(tmp_path / "lease", seconds=5).acquire("k")


def test_irregular_files_among_counts_are_left_out(
    make_irregular: Callable[[Path], None], tmp_path: Path
) -> None:
    statistics = tmp_path / "statistics"
    save_count(tmp_path)
    (path,) = statistics.iterdir()
    make_irregular(path)
    save_count(tmp_path)
    (statistics / "zz").write_text('[["cicc", "sm_90", "local", 1, 2.0]]\n')
    assert [count.step for count in read_counts(tmp_path)] == ["cicc"]


def save_count(folder: Path) -> None:
    stats = CacheStats()
    stats.add("cicc", "sm_90", "local", 2.0)
    stats.save(folder)


def test_file_in_the_place_of_a_folder_stops_only_its_entries(tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "ac").mkdir()
    (tmp_path / "ac" / KEY[:2]).write_text("a file where a folder should be")
    used = cache(tmp_path, said)
    used.store(ENTRY)
    assert used.find(ENTRY.components) is None
    other = ENTRY._replace(components=(KeyComponent("flag", "-O2"),))
    assert used.store(other)
    assert used.find(other.components) is not None
    assert said == []


def test_full_disk_warns_once_and_leaves_no_file(tmp_path: Path) -> None:
    # A limit on the size of files gives the same kind of error in the same place.
    code = (
        "import resource, signal, pathlib, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (16, 16))\n"
        "from archsplit.cache.local import LocalStore\n"
        "said = []; store = LocalStore(pathlib.Path(sys.argv[1]), warn=said.append)\n"
        "assert not store.put('ab' * 32, b'x' * 1000); assert len(said) == 1, said\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_reading_touches_at_most_hourly(tmp_path: Path) -> None:
    path = store(tmp_path).path(KEY)
    cache(tmp_path).store(ENTRY)
    for age, touched in ((600, False), (7200, True)):
        then = time.time() - age
        os.utime(path, (then, then))
        store(tmp_path).get(KEY)
        assert (time.time() - path.stat().st_mtime < 60) == touched


def test_rows_come_newest_first(tmp_path: Path) -> None:
    one, other = ManifestRow(files=(("k.cu", "1"),)), ManifestRow(files=(("k.cu", "2"),))
    for row in (one, other, one):
        cache(tmp_path).add_manifest_row("ab" * 32, row)
    assert list(cache(tmp_path).manifest_rows("ab" * 32)) == [one, other]


def test_a_damaged_manifest_is_dropped(tmp_path: Path) -> None:
    store(tmp_path).put("ab" * 32, encode_entry(ENTRY))
    assert list(cache(tmp_path).manifest_rows("ab" * 32)) == []
    assert not store(tmp_path).path("ab" * 32).exists()


def test_only_one_makes_a_thing(tmp_path: Path) -> None:
    first, second = (Leases(tmp_path / "lease", seconds=5) for _ in range(2))
    assert first.acquire("k")
    assert not second.acquire("k")
    threading.Timer(0.2, first.release, ["k"]).start()
    assert second.wait("k")
    assert second.acquire("k")
    second.release_all()


def test_wait_for_a_lease_ends_at_its_limit(tmp_path: Path) -> None:
    first, second = (Leases(tmp_path, seconds=0.3) for _ in range(2))
    first.acquire("k")
    began = time.monotonic()
    second.wait("k")
    assert time.monotonic() - began < 20
    assert second.acquire("k")


def test_a_dead_process_holds_nothing(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    (tmp_path / "k").write_text(f"{socket.gethostname()} {dead.pid}")
    assert Leases(tmp_path, seconds=60).acquire("k")


def test_lease_of_an_unreaped_killed_process_is_free(tmp_path: Path) -> None:
    killed = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    (tmp_path / "k").write_text(f"{socket.gethostname()} {killed.pid}")
    assert not Leases(tmp_path, seconds=60).acquire("k")
    killed.kill()
    assert Leases(tmp_path, seconds=5).wait("k")
    killed.communicate()


def test_another_machines_process_may_live(tmp_path: Path) -> None:
    (tmp_path / "k").write_text("elsewhere 1")
    assert not Leases(tmp_path, seconds=60).acquire("k")


def test_without_leases_everybody_may(tmp_path: Path) -> None:
    assert Leases(tmp_path, seconds=0).acquire("k")
    assert Leases(tmp_path / "k" / "no", seconds=1).acquire("k")


def fill(folder: Path, count: int) -> list[Path]:
    paths = []
    for number in range(count):
        digest = hashlib.sha256(b"%d" % number).hexdigest()
        store(folder).put(digest, b"%d" % number * 1)
        paths.append(store(folder).path(digest))
        os.utime(paths[-1], (time.time() - 10_000 + number,) * 2)
    return paths


def test_eviction_removes_the_least_recently_used_entries(tmp_path: Path) -> None:
    paths = fill(tmp_path, 10)
    done = evict(tmp_path, maximum=8, warn=print)
    assert done is not None
    assert [path.exists() for path in paths] == [False] * 3 + [True] * 7
    assert (done.files, done.size, done.removed, done.freed) == (7, 7, 3, 3)
    assert store_size(tmp_path) == (7, 7)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may delete each file")
def test_undeletable_file_does_not_stop_eviction(tmp_path: Path) -> None:
    check_eviction_beside_a_closed_folder(tmp_path, lambda folder: folder.chmod(0o500))


def test_refused_deletion_is_one_warning_and_eviction_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[Path] = []
    unlink = os.unlink

    def refuse(path: str) -> None:
        if any(path.startswith(f"{folder}/") for folder in closed):
            raise PermissionError(1, "Operation not permitted", path)
        unlink(path)

    monkeypatch.setattr(os, "unlink", refuse)
    check_eviction_beside_a_closed_folder(tmp_path, closed.append)


def check_eviction_beside_a_closed_folder(root: Path, close: Callable[[Path], None]) -> None:
    now = time.time()
    for age, name in enumerate(("new", "ours", "theirs", "old")):
        path = root / "ac" / name / "entry"
        path.parent.mkdir(parents=True)
        path.write_bytes(bytes(10))
        os.utime(path, (now - 100 * age, now - 100 * age))
    for name in ("theirs", "old"):
        close(root / "ac" / name)
    said: list[str] = []
    done = evict(root, maximum=10, warn=said.append)
    for name in ("theirs", "old"):
        (root / "ac" / name).chmod(0o700)
    assert done is not None
    # 20 of 40 bytes can't be deleted; all others are.
    assert (done.removed, done.files, done.size) == (2, 2, 20)
    assert len(said) == 1
    assert "files that stay: 2 (" in said[0]


def test_two_passes_dont_meet(tmp_path: Path) -> None:
    with (tmp_path / "last-eviction").open("w") as mark:
        fcntl.flock(mark, fcntl.LOCK_EX)
        assert evict(tmp_path, maximum=0, warn=print) is None


def test_pass_is_due_after_writes_or_time(tmp_path: Path) -> None:
    assert is_eviction_due(tmp_path, written=1, maximum=100)
    evict(tmp_path, maximum=100, warn=print)
    assert not is_eviction_due(tmp_path, written=1, maximum=100)
    assert is_eviction_due(tmp_path, written=50, maximum=100)
    os.utime(tmp_path / "last-eviction", (0, 0))
    assert is_eviction_due(tmp_path, written=1, maximum=100)
    assert not is_eviction_due(tmp_path, written=0, maximum=100)


def test_eviction_removes_leftovers_of_killed_writers(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    folder = tmp_path / "ac" / "00"
    folder.mkdir(exist_ok=True)
    left = leave_half_an_output(folder / "00killed")
    assert left
    with atomic_replace(folder / "00written") as new:
        sizes = store_size(tmp_path)
        evict(tmp_path, maximum=0, warn=print)
        assert new.exists()
    assert sizes[0] == 1
    assert os.listdir(folder) == ["00written"]


def test_clearing_leaves_only_foreign_files(tmp_path: Path) -> None:
    fill(tmp_path, 3)
    (tmp_path / "history").mkdir()
    (tmp_path / "history" / "k.json").write_text("{}")
    assert clear_store(tmp_path).removed == 3
    assert store_size(tmp_path) == (0, 0)
    assert (tmp_path / "history" / "k.json").exists()


def test_digests_are_remembered_and_notice_every_change(tmp_path: Path) -> None:
    path = tmp_path / "k.h"
    path.write_bytes(b"one")
    os.utime(path, (1, 1))
    time.sleep(2.1)  # a file that has just changed isn't remembered
    first = FileDigests(tmp_path / "memory")
    assert first.digest(str(path), group="g") == hashlib.sha256(b"one").hexdigest()
    first.save()
    second = FileDigests(tmp_path / "memory")
    second.load("g")
    assert second.digest(str(path), group="g") == hashlib.sha256(b"one").hexdigest()
    path.write_bytes(b"two")
    os.utime(path, (1, 1))  # same size, same time of modification
    third = FileDigests(tmp_path / "memory")
    third.load("g")
    assert third.digest(str(path), group="g") == hashlib.sha256(b"two").hexdigest()
    assert third.digest(str(tmp_path / "none"), group="g") is None


def test_digest_of_a_just_changed_file_is_not_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing is remembered of a file system that has no identity of its own.
    monkeypatch.setattr("archsplit.cache.usage.device_identity", lambda _: 1)
    path = tmp_path / "k.h"
    path.write_bytes(b"one")
    os.utime(path, (1, 1))
    # A second change within the clock's tick would have the same time.
    fresh = FileDigests(tmp_path / "memory")
    fresh.digest(str(path), group="g")
    fresh.save()
    assert not list((tmp_path / "memory").glob("*"))
    later = time.time_ns() + TOO_NEW_NS + 1_000_000_000
    monkeypatch.setattr(time, "time_ns", lambda: later)
    fresh.recheck()
    fresh.digest(str(path), group="g")
    fresh.save()
    assert len(list((tmp_path / "memory").glob("*"))) == 1


def test_a_damaged_memory_is_an_empty_one(tmp_path: Path) -> None:
    memory = tmp_path / socket.gethostname() / "g"
    memory.parent.mkdir()
    for text in ("x", "[]", '{"a": 1}', '{"a": [1, 2]}'):
        memory.write_text(text)
        digests = FileDigests(tmp_path)
        digests.load("g")
        assert digests.digest(str(memory), group="g") == hashlib.sha256(text.encode()).hexdigest()


def test_counts_of_all_processes_are_added(tmp_path: Path) -> None:
    for _ in range(2):
        tally = CacheStats()
        tally.add("cicc", "sm_90", "local", 1.5)
        tally.add("cicc", "sm_90", "local", 1.5)
        tally.save(tmp_path)
        tally.save(tmp_path)
    (damaged,) = (tmp_path / "statistics").iterdir()
    damaged.write_text(damaged.read_text() + "rubbish\n[[1]]\n")
    assert read_counts(tmp_path) == (("cicc", "sm_90", "local", 4, 6.0),)
    assert read_counts(tmp_path / "none") == ()


def test_notes_are_found_again(tmp_path: Path) -> None:
    notes = MissLog(tmp_path)
    for number in range(10):
        notes.add_components("k.cu", (KeyComponent("flag", str(number)),))
    assert len(notes.previous_components("k.cu")) == 8
    assert notes.previous_components("k.cu")[0] == (("flag", "9"),)
    notes.write_reasons("k.cu", (("sm_90", "a line"),))
    assert notes.read_reasons("k.cu") == (("sm_90", "a line"),)
    assert notes.read_reasons("other.cu") == ()
    for path in tmp_path.rglob("*"):
        if path.is_file():
            path.write_text("[1]")
    assert notes.previous_components("k.cu") == ()
    assert notes.read_reasons("k.cu") == ()
