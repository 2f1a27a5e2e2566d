"""A server of the Remote Execution API as a store of the compile cache."""

from __future__ import annotations

import concurrent.futures
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from farm import Farm, find_casd

from archsplit.cache.backends import open_remote
from archsplit.cache.cache import Cache
from archsplit.cache.config import Settings
from archsplit.cache.entry import CacheEntry, KeyComponent, compute_key, encode_entry
from archsplit.cache.remote import RemoteError
from archsplit.cache.sealed_blob import entry_action
from archsplit.formats.reapi_messages import decode_message

if TYPE_CHECKING:
    from collections.abc import Iterator

TINYVEC = Path(__file__).parents[1] / "tinyvec"
ENTRY = CacheEntry(
    components=(KeyComponent("flag", "-O3"),),
    files={"k.ptx": b"code" * 1000, "large": bytes(range(256)) * 12_000},
    cpu_seconds=1.0,
)
NOTHING = [KeyComponent("flag", "-O0")]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Farm]:
    find_casd()
    server = Farm(tmp_path / "store")
    server.start()
    yield server
    server.kill()


def cache(folder: Path, address: str, said: list[str], seconds: float = 20) -> Cache:
    settings = Settings(folder=folder, remote=(address,), remote_seconds=seconds)
    return Cache(settings, warn=said.append)


def test_a_second_machine_finds_the_entries_of_the_first(store: Farm, tmp_path: Path) -> None:
    said: list[str] = []
    first = cache(tmp_path / "1", store.address, said)
    first.store(ENTRY)
    first.close()
    second = cache(tmp_path / "2", store.address, said)
    assert second.find(ENTRY.components) == (ENTRY, store.address)
    assert second.find(NOTHING) is None
    second.close()
    # Entries outlive the server, which keeps them on its disk.
    store.kill()
    store.start()
    third = cache(tmp_path / "3", store.address, said)
    assert third.find(ENTRY.components) == (ENTRY, store.address)
    assert said == []


def test_an_entry_in_the_result_itself_is_read_too(tmp_path: Path) -> None:
    """bazel-remote returns one that it got by HTTP with the bytes in the result."""
    grpc = pytest.importorskip("grpc", reason="needs archsplit[reapi]")
    action = hashlib.sha256(entry_action(f"ac/{compute_key(ENTRY.components)}")[-1]).hexdigest()

    def result(request: bytes, context: object) -> bytes:
        asked = decode_message("GetActionResultRequest", request)
        assert asked.action_digest.hash == action
        return encode_entry(ENTRY)

    method = grpc.unary_unary_rpc_method_handler(result)
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(1))
    service = "build.bazel.remote.execution.v2.ActionCache"
    handler = grpc.method_handlers_generic_handler(service, {"GetActionResult": method})
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    said: list[str] = []
    found = cache(tmp_path, f"grpc://127.0.0.1:{port}", said).find(ENTRY.components)
    server.stop(None).wait()
    assert found == (ENTRY, f"grpc://127.0.0.1:{port}")
    assert said == []


def test_missing_store_is_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="needs archsplit[reapi]")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"grpc://127.0.0.1:{free.getsockname()[1]}"
    said: list[str] = []
    began = time.monotonic()
    gone = cache(tmp_path, address, said, seconds=2)
    assert gone.find(ENTRY.components) is None
    gone.store(ENTRY)
    gone.close()
    assert time.monotonic() - began < 60
    assert len(said) == 1
    assert said[0].startswith(f"{address} is not used: ")


def test_a_password_never_travels_without_encryption() -> None:
    pytest.importorskip("grpc", reason="needs archsplit[reapi]")
    with pytest.raises(RemoteError, match="without encryption; write grpcs://") as refused:
        open_remote("grpc://:secret@farm.example:8980/main")
    assert "secret" not in str(refused.value)
    name, _ = open_remote("grpcs://:secret@farm.example/main")
    assert name == "grpcs://farm.example/main"


@pytest.mark.nvcc
def test_a_build_without_engine_takes_the_results_of_another_machine(
    store: Farm, tmp_path: Path
) -> None:
    def build(name: str) -> tuple[dict[str, str], str]:
        shutil.copytree(TINYVEC, tmp_path / name)
        words: list[str | Path] = [
            "build",
            tmp_path / name,
            "--targets",
            "sm_80",
            "--json",
            "--cache",
            "on",
        ]
        settings = {"ARCHSPLIT_CACHE_DIR": str(tmp_path / f"{name} cache")}
        settings |= {"ARCHSPLIT_CACHE_REMOTE": store.address}
        settings |= {"ARCHSPLIT_CACHE_MIN_SECONDS": "0", "ARCHSPLIT_CACHE_REMOTE_SECONDS": "60"}
        done = subprocess.run(
            [sys.executable, "-m", "archsplit", *words, "--out", tmp_path / f"{name} out"],
            stdin=subprocess.DEVNULL,
            env={**os.environ, **settings},
            capture_output=True,
            text=True,
            check=True,
        )
        wheels = json.loads(done.stdout)["wheels"]
        return {wheel["file"]: wheel["sha256"] for wheel in wheels}, done.stderr

    (first, compiled), (second, found) = build("one"), build("two")
    assert first == second
    assert "cicc" in compiled
    assert "cicc" not in found
