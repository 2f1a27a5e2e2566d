"""Remote stores: real servers, well and unwell."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from archsplit.cache.backends import HttpRemote, ResultRemote, open_remote
from archsplit.cache.cache import Cache
from archsplit.cache.config import Settings, resolve_settings
from archsplit.cache.entry import CacheEntry, KeyComponent, ManifestRow, compute_key, encode_entry
from archsplit.cache.remote import RemoteError, TimeBudget
from archsplit.cache.sealed_blob import encode_result, entry_action
from archsplit.errors import UsageError
from archsplit.formats.reapi_messages import encode_message, new_message
from cache_server import serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cache_server import CacheServer

ENTRY = CacheEntry(
    components=(KeyComponent("flag", "-O3"),), files={"k.ptx": b"code" * 1000}, cpu_seconds=1.0
)
KEY = compute_key(ENTRY.components)
NOTHING = [KeyComponent("flag", "-O0")]
OTHER = CacheEntry(
    components=(KeyComponent("flag", "-O1"),), files={"k.ptx": b"x"}, cpu_seconds=1.0
)


@pytest.fixture
def server() -> Iterator[CacheServer]:
    with serving() as server:
        yield server


def kept_path(key: str) -> str:
    """Return the path of an entry: the digest of its action."""
    action = entry_action(f"ac/{key}")[-1]
    return f"/cache/ac/{hashlib.sha256(action).hexdigest()}"


class Machine:
    """A cache on a machine of its own."""

    def __init__(self, folder: Path, *remote: str, mode: str = "on", seconds: float = 1.0) -> None:
        self.said: list[str] = []
        settings = Settings(folder=folder, remote=remote, remote_mode=mode, remote_seconds=seconds)
        self.cache = Cache(settings, warn=self.said.append)

    def find(self) -> str | None:
        found = self.cache.find(ENTRY.components)
        assert found is None or found.entry == ENTRY
        return None if found is None else found.tier


def test_a_second_machine_finds_it_and_keeps_it(tmp_path: Path, server: CacheServer) -> None:
    first = Machine(tmp_path / "1", server.address)
    first.cache.store(ENTRY)
    first.cache.close()
    assert set(server.kept) == {kept_path(KEY)}
    second = Machine(tmp_path / "2", server.address)
    assert second.find() == server.address
    assert Machine(tmp_path / "2").find() == "local"
    assert first.said == second.said == []


def test_the_bytes_of_a_large_entry_are_a_blob(tmp_path: Path, server: CacheServer) -> None:
    large = ENTRY._replace(files={"k.cubin": random.Random(1).randbytes(4_100_000)})
    first = Machine(tmp_path / "1", server.address, seconds=20)
    first.cache.store(large)
    first.cache.close()
    result, blob = sorted(server.kept)
    assert result == kept_path(KEY)
    assert len(server.kept[result]) < 200
    second = Machine(tmp_path / "2", server.address, seconds=20)
    found = second.cache.find(large.components)
    assert found is not None
    assert found.entry == large
    # A proxy without this server's check, which still has the result.
    del server.kept[blob]
    third = Machine(tmp_path / "3", server.address, seconds=20)
    assert third.find() is None
    remote = ResultRemote(HttpRemote(server.address))
    path = f"ac/{KEY}"
    server.checks_blobs = False
    assert remote.get(path, seconds=20) is None
    assert first.said == second.said == third.said == []


@pytest.mark.parametrize("digest", ["../../secret", "", "ab/cd"])
def test_path_in_place_of_a_digest_is_refused(server: CacheServer, digest: str) -> None:
    file = new_message("OutputFile", path="entry", digest=new_message("Digest", hash=digest))
    server.checks_blobs = False
    server.kept[kept_path(KEY)] = encode_message(new_message("ActionResult", output_files=[file]))
    with pytest.raises(RemoteError, match="wrong bytes"):
        ResultRemote(HttpRemote(server.address)).get(f"ac/{KEY}", seconds=20)


@pytest.mark.parametrize("kind", ["result", "blob"])
def test_reply_longer_than_its_declared_size_is_refused(server: CacheServer, kind: str) -> None:
    content = bytes(17_000_000)
    server.kept[kept_path(KEY)] = encode_result(content, inline=kind == "result")
    digest = hashlib.sha256(content).hexdigest()
    server.kept[f"/cache/cas/{digest}"] = bytes(len(content) + 1)
    remote = open_remote(server.address)[1]
    with pytest.raises(RemoteError, match="too long"):
        remote.get(f"ac/{KEY}", seconds=9)


@pytest.mark.parametrize("kind", ["result", "blob"])
def test_changed_bytes_of_a_server_are_refused(server: CacheServer, kind: str) -> None:
    content, changed = b"content", b"Content"
    result = encode_result(content, inline=kind == "result")
    server.kept[kept_path(KEY)] = result.replace(content, changed)
    server.checks_blobs = False
    server.kept[f"/cache/cas/{hashlib.sha256(content).hexdigest()}"] = changed
    with pytest.raises(RemoteError, match="wrong bytes"):
        ResultRemote(HttpRemote(server.address)).get(f"ac/{KEY}", seconds=9)


def test_read_only_means_nothing_is_stored_there(tmp_path: Path, server: CacheServer) -> None:
    first = Machine(tmp_path / "1", server.address, mode="read-only")
    first.cache.store(ENTRY)
    first.cache.close()
    assert server.kept == {}


@pytest.mark.parametrize("mood", ["garbage", "hangs", "drips", "fails"])
def test_slow_server_costs_one_timeout(tmp_path: Path, server: CacheServer, mood: str) -> None:
    server.mood = mood
    machine = Machine(tmp_path, server.address, seconds=0.5)
    began = time.monotonic()
    assert machine.find() is None
    assert machine.cache.find(NOTHING) is None
    machine.cache.store(ENTRY)
    machine.cache.close()
    # It hangs, or drips, for half a minute at each question.
    assert time.monotonic() - began < 15
    assert len(server.authorizations) == 1
    assert machine.find() == "local"
    assert len(machine.said) == 1


@pytest.mark.parametrize("mood", ["hangs", "drips", "fails"])
def test_uploads_are_given_up_at_the_deadline(
    tmp_path: Path, server: CacheServer, mood: str
) -> None:
    server.mood = mood
    machine = Machine(tmp_path, server.address, seconds=0.5)
    machine.cache.store(ENTRY)
    began = time.monotonic()
    machine.cache.close()
    assert time.monotonic() - began < 15


def test_vanished_server_leaves_the_local_store_working(tmp_path: Path) -> None:
    with serving() as server:
        machine = Machine(tmp_path, server.address)
        assert machine.find() is None
    machine.cache.store(ENTRY)
    machine.cache.close()
    assert machine.find() == "local"


def test_another_keys_entry_is_a_lie(tmp_path: Path, server: CacheServer) -> None:
    server.kept[kept_path(compute_key(NOTHING))] = encode_entry(ENTRY)
    machine = Machine(tmp_path, server.address)
    assert machine.cache.find(NOTHING) is None
    assert "another key" in machine.said[0]
    assert Machine(tmp_path).cache.find(NOTHING) is None


def test_credentials_are_sent_but_never_said(tmp_path: Path, server: CacheServer) -> None:
    address = server.address.replace("http://", "http://me:secret@")
    machine = Machine(tmp_path, address)
    machine.find()
    server.mood = "fails"
    machine.cache.find(NOTHING)
    assert server.authorizations[0] == "Basic bWU6c2VjcmV0"
    assert machine.said
    assert not any("secret" in line for line in machine.said)


def test_credentials_come_from_netrc(
    tmp_path: Path, server: CacheServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / ".netrc"
    netrc.write_text("machine 127.0.0.1 login me password secret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    Machine(tmp_path / "1", server.address).find()
    assert server.authorizations == ["Basic bWU6c2VjcmV0"]


def test_another_machines_rows_are_added_to_ones_own(tmp_path: Path, server: CacheServer) -> None:
    one, other = ManifestRow(files=(("k.cu", "1"),)), ManifestRow(files=(("k.cu", "2"),))
    Machine(tmp_path / "2").cache.add_manifest_row("ab" * 32, other)
    first = Machine(tmp_path / "1", server.address)
    first.cache.add_manifest_row("ab" * 32, one)
    first.cache.close()
    assert list(Machine(tmp_path / "2", server.address).cache.manifest_rows("ab" * 32)) == [
        other,
        one,
    ]
    assert list(Machine(tmp_path / "2").cache.manifest_rows("ab" * 32)) == [one, other]


@pytest.mark.parametrize(
    "address",
    [
        *("me:secret@host/x", "/secret", "https://", "http://me:se/cret@host", "http://h:0"),
        *("http://me:secret@[::1/x", "http://me:secret@h\u2100st"),
    ],
)
def test_invalid_address_is_refused_without_its_password(address: str) -> None:
    with pytest.raises(UsageError, match="not an address") as refused:
        resolve_settings({"ARCHSPLIT_CACHE_REMOTE": address})
    assert "cret" not in str(refused.value)


def test_a_server_on_another_port_of_another_kind_of_address_is_named_in_full() -> None:
    assert open_remote("http://me:secret@[::1]:8080/x/")[0] == "http://[::1]:8080/x/"


def test_a_missing_library_is_said_and_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "urllib3", None)
    machine = Machine(tmp_path, "http://me:secret@localhost/x")
    assert machine.find() is None
    machine.cache.store(ENTRY)
    machine.cache.close()
    assert len(machine.said) == 1
    assert machine.said[0].startswith(
        "http://localhost/x is not used: its library is not installed"
    )


def test_answer_cut_off_midway_is_a_miss_and_leaves_nothing(
    tmp_path: Path, server: CacheServer
) -> None:
    server.kept[kept_path(KEY)] = encode_entry(ENTRY)
    server.mood = "cuts"
    machine = Machine(tmp_path, server.address)
    assert machine.find() is None
    assert len(machine.said) == 1
    # What was there in part has left nothing behind.
    assert Machine(tmp_path).find() is None


def test_full_server_still_gets_lookups(tmp_path: Path, server: CacheServer) -> None:
    server.kept[kept_path(KEY)] = encode_entry(ENTRY)
    server.mood = "full"
    machine = Machine(tmp_path / "1", server.address)
    machine.cache.store(OTHER)
    machine.cache.close()
    assert machine.said == [f"nothing more is stored in {server.address}: its reply has status 507"]
    assert Machine(tmp_path / "2", server.address).find() == server.address


def test_endless_reply_is_cut_at_the_limit(
    tmp_path: Path, server: CacheServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("archsplit.cache.backends.MAX_ENTRY_BYTES", 1 << 16)
    server.mood = "endless"
    machine = Machine(tmp_path, server.address)
    assert machine.find() is None
    assert machine.said == [f"{server.address} is not used: its reply is too long for an entry"]


def test_a_slow_server_costs_no_more_than_its_deadline_though_it_answers(
    tmp_path: Path, server: CacheServer
) -> None:
    cheap = [
        CacheEntry(components=(KeyComponent("n", str(n)),), files={"k": b"x"}, cpu_seconds=0.0)
        for n in range(20)
    ]
    server.kept |= {kept_path(compute_key(each.components)): encode_entry(each) for each in cheap}
    server.delay = 0.15
    machine = Machine(tmp_path, server.address, seconds=1.5)
    found = [machine.cache.find(each.components) for each in cheap]
    assert found[0] is not None
    assert found[-1] is None


@pytest.mark.parametrize("mood", ["hangs", "fails", "garbage"])
def test_a_build_of_many_processes_loses_the_deadline_once(
    tmp_path: Path, server: CacheServer, mood: str
) -> None:
    server.mood = mood
    first = Machine(tmp_path, server.address, seconds=0.5)
    assert first.find() is None
    asked = len(server.authorizations)
    # All together take less than one deadline; it is long, because a busy computer is slow.
    deadline = 30.0
    began = time.monotonic()
    for _ in range(20):
        other = Machine(tmp_path, server.address, seconds=deadline)
        assert other.find() is None
        other.cache.close()
        assert "it failed" in other.said[0]
    assert time.monotonic() - began < deadline
    assert len(server.authorizations) == asked


def test_server_is_tried_again_later(tmp_path: Path, server: CacheServer) -> None:
    server.mood = "fails"
    Machine(tmp_path, server.address).find()
    server.mood = "well"
    (mark,) = (tmp_path / "circuit-breaker").iterdir()
    os.utime(mark, (0, 0))
    first, second = (Machine(tmp_path, server.address) for _ in range(2))
    assert first.find() is None
    assert first.said == []
    # One at a time tries.
    assert second.find() is None
    assert "it failed" in second.said[0]
    first.cache.close()
    assert not mark.exists()


def test_failed_slow_server_is_not_asked_by_the_next_process(
    tmp_path: Path, server: CacheServer
) -> None:
    server.delay = 0.6
    first = Machine(tmp_path, server.address, seconds=5)
    assert first.find() is None
    first.cache.close()
    second = Machine(tmp_path, server.address, seconds=5)
    second.find()
    assert "it failed" in second.said[0]


def test_slow_hits_of_expensive_entries_keep_the_remote_in_use(
    tmp_path: Path, server: CacheServer
) -> None:
    dear = [
        CacheEntry(components=(KeyComponent("n", str(n)),), files={"k": b"x"}, cpu_seconds=9.0)
        for n in range(9)
    ]
    server.kept |= {kept_path(compute_key(each.components)): encode_entry(each) for each in dear}
    server.delay = 0.2
    machine = Machine(tmp_path, server.address, seconds=1.5)
    assert all(machine.cache.find(each.components) for each in dear)
    assert machine.said == []
    machine.cache.close()
    # Hits aren't counted as slow replies: the next process would not ask this remote.
    second = Machine(tmp_path, server.address, seconds=1.5)
    assert second.cache.find(dear[0].components)
    assert second.said == []


def test_uploads_are_finished_before_the_end(tmp_path: Path, server: CacheServer) -> None:
    server.delay = 0.5
    machine = Machine(tmp_path, server.address, seconds=60)
    entries = [
        CacheEntry(components=(KeyComponent("n", str(n)),), files={"k": b"x"}, cpu_seconds=1.0)
        for n in range(20)
    ]
    for each in entries:
        machine.cache.store(each)
    assert len(server.kept) < 20
    machine.cache.close()
    assert len(server.kept) == 20
    assert threading.active_count() < 40


def test_uploads_dont_fill_memory(
    tmp_path: Path, server: CacheServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("archsplit.cache.remote._MOST_BYTES", 2000)
    server.delay = 0.2
    machine = Machine(tmp_path, server.address)
    for number in range(100):
        parts = (KeyComponent("n", str(number)),)
        machine.cache.store(CacheEntry(components=parts, files={"k": b"x"}, cpu_seconds=1.0))
    machine.cache.close()
    assert 0 < len(server.kept) < 100
    assert machine.said == [
        "not all results are stored remotely: uploads are slower than the build"
    ]


def test_simultaneous_waits_use_the_budget_once() -> None:
    budget = TimeBudget(10.0)
    budget.start_waiting()
    budget.start_waiting()
    time.sleep(0.2)
    budget.stop_waiting()
    budget.stop_waiting()
    assert 9.5 < budget.remaining < 9.85
    budget.refund(5.0)
    assert budget.remaining == 10.0


HANGS = """
import sys
from pathlib import Path
from archsplit.cache.cache import Cache
from archsplit.cache.entry import CacheEntry
from archsplit.cache.entry import KeyComponent
from archsplit.cache.config import Settings

settings = Settings(folder=Path(sys.argv[1]), remote=(sys.argv[2],), remote_seconds=0.5)
cache = Cache(settings, warn=print)
made = CacheEntry(components=(KeyComponent("n", "1"),), files={"k": b"x"}, cpu_seconds=1.0)
assert cache.find(made.components) is None
cache.store(made)
cache.close()
"""


@pytest.mark.parametrize("scheme", ["http", "s3"])
def test_process_ends_although_the_server_hangs(
    tmp_path: Path, server: CacheServer, scheme: str
) -> None:
    server.mood = "hangs"
    address = server.address if scheme == "http" else "s3://cache/x"
    s3 = {"AWS_ENDPOINT_URL": server.address, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "x"}
    keys = {"AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "secret"}
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", HANGS, str(tmp_path), address],
        env={**os.environ, **s3, **keys},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=20,
    )
    assert time.monotonic() - began < 10
    assert "not used" in done.stdout
    assert "secret" not in done.stdout
