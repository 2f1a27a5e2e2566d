"""Remote stores: real servers, well and unwell."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
import urllib3
from cache_server import serving
from moto.server import ThreadedMotoServer

from splitter.cache.addresses import remote_at
from splitter.cache.cache import Cache
from splitter.cache.entry import Entry, encode
from splitter.cache.manifest import Row
from splitter.cache.parts import Part, key_of
from splitter.cache.settings import Settings
from splitter.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cache_server import CacheServer

ENTRY = Entry(parts=(Part("flag", "-O3"),), files={"k.ptx": b"code" * 1000}, cpu_seconds=1.0)
KEY = key_of(ENTRY.parts)
NOTHING = [Part("flag", "-O0")]


@pytest.fixture
def server() -> Iterator[CacheServer]:
    with serving() as server:
        yield server


class Machine:
    """A cache on a machine of its own."""

    def __init__(self, folder: Path, *remote: str, mode: str = "on", seconds: float = 1.0) -> None:
        self.said: list[str] = []
        settings = Settings(folder=folder, remote=remote, remote_mode=mode, remote_seconds=seconds)
        self.cache = Cache(settings, warn=self.said.append)

    def find(self) -> str | None:
        found = self.cache.find(ENTRY.parts)
        assert found is None or found.entry == ENTRY
        return None if found is None else found.tier


def test_a_second_machine_finds_it_and_keeps_it(tmp_path: Path, server: CacheServer) -> None:
    first = Machine(tmp_path / "1", server.address)
    first.cache.store(ENTRY)
    first.cache.close()
    assert set(server.kept) == {f"/cache/ac/{KEY}"}
    second = Machine(tmp_path / "2", server.address)
    assert second.find() == server.address
    assert Machine(tmp_path / "2").find() == "local"
    assert first.said == second.said == []


def test_read_only_means_nothing_is_stored_there(tmp_path: Path, server: CacheServer) -> None:
    first = Machine(tmp_path / "1", server.address, mode="read-only")
    first.cache.store(ENTRY)
    first.cache.close()
    assert server.kept == {}


@pytest.mark.parametrize("mood", ["garbage", "hangs", "drips", "fails"])
def test_a_server_that_is_unwell_costs_its_deadline_once(
    tmp_path: Path, server: CacheServer, mood: str
) -> None:
    server.mood = mood
    machine = Machine(tmp_path, server.address, seconds=0.5)
    began = time.monotonic()
    assert machine.find() is None
    assert machine.cache.find(NOTHING) is None
    machine.cache.store(ENTRY)
    machine.cache.close()
    assert time.monotonic() - began < 1.5
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
    assert time.monotonic() - began < 1.0


def test_a_server_that_goes_away_is_no_error(tmp_path: Path) -> None:
    with serving() as server:
        machine = Machine(tmp_path, server.address)
        assert machine.find() is None
    machine.cache.store(ENTRY)
    machine.cache.close()
    assert machine.find() == "local"


def test_another_keys_entry_is_a_lie(tmp_path: Path, server: CacheServer) -> None:
    server.kept[f"/cache/ac/{key_of(NOTHING)}"] = encode(ENTRY)
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
    one, other = Row(files=(("k.cu", "1"),)), Row(files=(("k.cu", "2"),))
    Machine(tmp_path / "2").cache.add_row("ab" * 32, other)
    first = Machine(tmp_path / "1", server.address)
    first.cache.add_row("ab" * 32, one)
    first.cache.close()
    assert list(Machine(tmp_path / "2", server.address).cache.rows("ab" * 32)) == [other, one]
    assert list(Machine(tmp_path / "2").cache.rows("ab" * 32)) == [one, other]


@pytest.mark.parametrize("address", ["", "x", "/folder", "https://"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match="address"):
        remote_at(address)


def test_an_object_store_is_a_remote_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "me",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(name, value)
        urllib3.request("PUT", f"http://{host}:{port}/cache")
        first = Machine(tmp_path / "1", "s3://cache/nightly", seconds=10)
        first.cache.store(ENTRY)
        first.cache.close()
        second = Machine(tmp_path / "2", "s3://cache/nightly", seconds=10)
        assert second.find() == "s3://cache/nightly"
        assert second.cache.find(NOTHING) is None
        assert first.said == second.said == []
    finally:
        server.stop()
    gone = Machine(tmp_path / "3", "s3://cache/nightly", seconds=2)
    assert gone.find() is None
    assert not any("secret" in line for line in gone.said)
