"""Object stores: S3 (moto's), and fakes of GCS and Azure."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

import pytest
import urllib3
from cloud_server import cloud
from moto.server import ThreadedMotoServer

from archsplit.cache.cache import Cache
from archsplit.cache.config import Settings
from archsplit.cache.entry import CacheEntry, KeyComponent, compute_key

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ENTRY = CacheEntry(
    components=(KeyComponent("flag", "-O3"),), files={"k.ptx": b"code" * 1000}, cpu_seconds=1.0
)
KEY = compute_key(ENTRY.components)
NOTHING = [KeyComponent("flag", "-O0")]
SECRET = base64.b64encode(b"no log may ever have this").decode()


def two_machines(folder: Path, address: str) -> list[str]:
    """Return the output of two machines; the second one hits what the first one stored."""
    said: list[str] = []
    first = Cache(
        Settings(folder=folder / "1", remote=(address,), remote_seconds=10), warn=said.append
    )
    first.store(ENTRY)
    first.close()
    second = Cache(
        Settings(folder=folder / "2", remote=(address,), remote_seconds=10), warn=said.append
    )
    assert second.find(ENTRY.components) == (ENTRY, address)
    assert second.find(NOTHING) is None
    second.close()
    assert Cache(Settings(folder=folder / "2"), warn=said.append).find(ENTRY.components) is not None
    return said


def nothing_tells(folder: Path, said: list[str]) -> bool:
    files = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    return not any(SECRET.encode() in text for text in [*files, *map(str.encode, said)])


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadedMotoServer]:
    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "me",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    urllib3.request("PUT", f"http://{host}:{port}/cache")
    yield server
    server.stop()


def test_s3_store_is_shared_and_its_loss_warns_once(tmp_path: Path, s3: ThreadedMotoServer) -> None:
    assert two_machines(tmp_path, "s3://cache/nightly") == []
    s3.stop()
    said: list[str] = []
    gone = Cache(
        Settings(folder=tmp_path / "3", remote=("s3://cache/nightly",), remote_seconds=2),
        warn=said.append,
    )
    assert gone.find(ENTRY.components) is None
    assert len(said) == 1
    assert nothing_tells(tmp_path, said)


def test_azure_store_is_shared_without_leaking_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cloud() as server:
        for name, value in {
            "AZURE_STORAGE_ACCOUNT_NAME": "me",
            "AZURE_STORAGE_ACCOUNT_KEY": SECRET,
            "AZURE_STORAGE_ENDPOINT": server.address,
            "AZURE_ALLOW_HTTP": "true",
        }.items():
            monkeypatch.setenv(name, value)
        assert two_machines(tmp_path, "az://cache/nightly") == []
        assert any("/cache/nightly/ac/" in path for path in server.kept)
        assert all(sent["authorization"].startswith("SharedKey me:") for sent in server.headers)
    assert nothing_tells(tmp_path, [])


def test_google_store_is_shared_without_leaking_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cloud() as server:
        account = tmp_path / "account.json"
        row = {"gcs_base_url": server.address, "disable_oauth": True, "client_email": "me"}
        account.write_text(json.dumps({**row, "private_key": SECRET, "private_key_id": "1"}))
        monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(account))
        assert two_machines(tmp_path / "machines", "gs://cache/nightly") == []
        assert len(server.kept) == 1
    assert nothing_tells(tmp_path / "machines", [])


@pytest.mark.parametrize("address", ["az://cache/nightly", "x-unknown://cache/nightly"])
def test_unconfigured_store_is_not_used(
    tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY"):
        monkeypatch.delenv(name, raising=False)
    said: list[str] = []
    cache = Cache(Settings(folder=tmp_path, remote=(address,)), warn=said.append)
    cache.store(ENTRY)
    assert cache.find(NOTHING) is None
    cache.close()
    assert len(said) == 1
    assert said[0].startswith(f"{address} is not used: its configuration is wrong")
