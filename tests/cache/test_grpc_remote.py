"""The store of the Remote Execution API, with a stand-in of grpc that has its server in memory."""

from __future__ import annotations

import hashlib
import importlib
import sys
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from archsplit.cache.backends import open_remote
from archsplit.cache.entry import CacheEntry, KeyComponent, encode_entry
from archsplit.cache.remote import RemoteError
from archsplit.cache.sealed_blob import OUTPUT_NAME, encode_result
from archsplit.formats.reapi_messages import decode_message, encode_message, new_message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

PATH = f"ac/{'ab' * 32}"
BLOB = encode_entry(
    CacheEntry(components=(KeyComponent("flag", "-O3"),), files={"k": b"code"}, cpu_seconds=1.0)
)


class RpcError(Exception):
    """An answer of the server other than a reply."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.status = getattr(STATUS, name)

    def code(self) -> SimpleNamespace:
        status: SimpleNamespace = self.status
        return status


STATUS = SimpleNamespace(
    NOT_FOUND=SimpleNamespace(name="NOT_FOUND"), UNAVAILABLE=SimpleNamespace(name="UNAVAILABLE")
)


class Server:
    """Results and blobs by digest, and a record of each channel and call."""

    def __init__(self) -> None:
        self.results: dict[str, bytes] = {}
        self.blobs: dict[str, bytes] = {}
        self.channels: list[tuple[str, bool]] = []
        self.calls: list[tuple[str, tuple[tuple[str, str], ...], float]] = []
        self.resources: list[str] = []
        self.requests: list[Any] = []
        self.fault = ""

    def channel(
        self, host: str, options: list[tuple[str, int]], *, encrypted: bool
    ) -> SimpleNamespace:
        # Servers put small files into results, and archsplit has retries of its own.
        expected = {"grpc.max_receive_message_length": 16 << 20, "grpc.enable_retries": 0}
        assert dict(options) == expected
        self.channels.append((host, encrypted))
        return SimpleNamespace(
            unary_unary=self.method, unary_stream=self.method, stream_unary=self.method
        )

    def method(
        self,
        name: str,
        *,
        request_serializer: Callable[[Any], bytes],
        response_deserializer: Callable[[bytes], Any],
    ) -> Callable[..., Any]:
        method = name.rpartition("/")[2]

        def call(request: Any, *, metadata: tuple[tuple[str, str], ...], timeout: float) -> Any:
            self.calls.append((name, metadata, timeout))
            if self.fault:
                raise RpcError(self.fault)
            if method == "Write":
                return self.write(
                    [decode_message("WriteRequest", encode_message(r)) for r in request]
                )
            asked = decode_message(REQUESTS[method], request_serializer(request))
            self.requests.append(asked)
            if method == "Read":
                return map(response_deserializer, self.read(asked))
            return response_deserializer(getattr(self, method)(asked))

        return call

    def GetActionResult(self, asked: Any) -> bytes:  # noqa: N802 - the method's own name
        if asked.action_digest.hash not in self.results:
            raise RpcError("NOT_FOUND")
        return self.results[asked.action_digest.hash]

    def UpdateActionResult(self, asked: Any) -> bytes:  # noqa: N802
        for file in asked.action_result.output_files:
            assert file.digest.hash in self.blobs, "a reader would not find the blob"
        self.results[asked.action_digest.hash] = encode_message(asked.action_result)
        return self.results[asked.action_digest.hash]

    def FindMissingBlobs(self, asked: Any) -> bytes:  # noqa: N802
        missing = [each for each in asked.blob_digests if each.hash not in self.blobs]
        return encode_message(new_message("FindMissingBlobsResponse", missing_blob_digests=missing))

    def read(self, asked: Any) -> Iterable[bytes]:
        self.resources.append(asked.resource_name)
        blob = self.blobs.get(asked.resource_name.split("/")[-2])
        if blob is None:
            raise RpcError("NOT_FOUND")
        for at in range(0, len(blob), 1000):
            yield encode_message(new_message("ReadResponse", data=blob[at : at + 1000]))

    def write(self, parts: list[Any]) -> None:
        name = parts[0].resource_name
        self.resources.append(name)
        assert [part.resource_name for part in parts[1:]] == [""] * (len(parts) - 1)
        assert [part.finish_write for part in parts] == [False] * (len(parts) - 1) + [True]
        blob = b""
        for part in parts:
            assert part.write_offset == len(blob)
            blob += part.data
        digest = hashlib.sha256(blob).hexdigest()
        assert name.split("/")[-2:] == [digest, str(len(blob))]
        self.blobs[digest] = blob


REQUESTS = {
    "GetActionResult": "GetActionResultRequest",
    "UpdateActionResult": "UpdateActionResultRequest",
    "FindMissingBlobs": "FindMissingBlobsRequest",
    "Read": "ReadRequest",
}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    made = Server()
    stand_in = SimpleNamespace(
        RpcError=RpcError,
        StatusCode=STATUS,
        ssl_channel_credentials=lambda: "credentials",
        secure_channel=lambda host, _, options: made.channel(host, options, encrypted=True),
        insecure_channel=lambda host, options: made.channel(host, options, encrypted=False),
    )
    monkeypatch.setitem(sys.modules, "grpc", stand_in)
    # Set, so that another test gets the module with the real grpc again.
    monkeypatch.setitem(sys.modules, "archsplit.cache.grpc_remote", sys)
    monkeypatch.delitem(sys.modules, "archsplit.cache.grpc_remote")
    return made


def remote(address: str, token: str = "") -> Any:
    module = importlib.import_module("archsplit.cache.grpc_remote")
    return module.GrpcRemote(address, token=token)


@pytest.mark.parametrize("host", ["farm.example", "10.0.0.1", "localhost.example", "[2001:db8::1]"])
def test_token_for_another_machine_is_refused_without_encryption(server: Server, host: str) -> None:
    with pytest.raises(RemoteError, match="would be sent without encryption; write grpcs://"):
        remote(f"grpc://{host}:8980/main", "secret")
    assert server.channels == []
    remote(f"grpc://{host}:8980/main")
    remote(f"grpcs://{host}/main", "secret")
    assert server.channels == [(f"{host}:8980", False), (f"{host}:443", True)]


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]"])
def test_token_for_this_machine_needs_no_encryption(server: Server, host: str) -> None:
    remote(f"grpc://{host}:8980", "secret")
    assert server.channels == [(f"{host}:8980", False)]


@pytest.mark.parametrize("user", [":secret", "me:secret", "secret"])
def test_address_may_have_the_token(server: Server, user: str) -> None:
    name, store = open_remote(f"grpc://{user}@localhost:1")
    assert name == "grpc://localhost:1"
    assert store.get(PATH, seconds=5) is None
    assert {metadata for _, metadata, _ in server.calls} == {(("authorization", "Bearer secret"),)}


@pytest.mark.parametrize("instance", ["", "main"])
@pytest.mark.parametrize("count", [1, 20_000])
def test_stored_bytes_are_found_again(server: Server, instance: str, count: int) -> None:
    store = remote(f"grpc://localhost:1/{instance}", "secret")
    blob = encode_result(BLOB * count)
    assert store.get(PATH, seconds=5) is None
    store.put(PATH, blob, seconds=5)
    assert store.get(PATH, seconds=5) == blob
    assert store.get(f"{PATH[:-1]}0", seconds=5) is None
    assert {metadata for _, metadata, _ in server.calls} == {(("authorization", "Bearer secret"),)}
    assert all(0 < timeout <= 5 for *_, timeout in server.calls)
    starts = {
        name.partition("uploads/" if "uploads" in name else "blobs/")[0]
        for name in server.resources
    }
    assert starts == {f"{instance}/" if instance else ""}
    named = [asked.instance_name for asked in server.requests if hasattr(asked, "instance_name")]
    assert set(named) == {instance}


def test_stored_blob_is_not_sent_again(server: Server) -> None:
    store = remote("grpc://localhost:1")
    store.put(PATH, encode_result(BLOB), seconds=5)
    sent = len(server.resources)
    store.put(PATH, encode_result(BLOB), seconds=5)
    assert len(server.resources) == sent > 1
    assert {metadata for _, metadata, _ in server.calls} == {()}


def test_wrong_bytes_of_a_server_are_refused(server: Server) -> None:
    store = remote("grpc://localhost:1")
    store.put(PATH, encode_result(BLOB), seconds=5)
    digest = hashlib.sha256(BLOB).hexdigest()
    with pytest.raises(RemoteError, match="too long for an entry"):
        store.get(PATH, seconds=5, most=len(BLOB) - 1)
    assert store.get(PATH, seconds=5, most=len(BLOB)) == encode_result(BLOB)
    for wrong in (BLOB[:-1], BLOB + b"?", bytes([BLOB[0] ^ 1]) + BLOB[1:]):
        server.blobs[digest] = wrong
        with pytest.raises(RemoteError, match="it returned wrong bytes"):
            store.get(PATH, seconds=5)
    del server.blobs[digest]
    assert store.get(PATH, seconds=5) is None


def test_changed_bytes_in_a_result_are_refused(server: Server) -> None:
    store = remote("grpc://localhost:1")
    store.put(PATH, encode_result(BLOB), seconds=5)
    (action,) = server.results
    server.results[action] = encode_result(BLOB)
    assert store.get(PATH, seconds=5) == encode_result(BLOB)
    server.results[action] = encode_result(BLOB).replace(BLOB, BLOB[::-1])
    with pytest.raises(RemoteError, match="it returned wrong bytes"):
        store.get(PATH, seconds=5)


def test_result_without_the_output_is_a_miss(server: Server) -> None:
    store = remote("grpc://localhost:1")
    store.put(PATH, encode_result(BLOB), seconds=5)
    (action,) = server.results
    other = new_message("OutputFile", path=f"{OUTPUT_NAME}.log", contents=b"log")
    server.results[action] = encode_message(new_message("ActionResult", output_files=[other]))
    assert store.get(PATH, seconds=5) is None


def test_error_of_a_server_is_its_status(server: Server) -> None:
    store = remote("grpc://localhost:1")
    server.fault = "UNAVAILABLE"
    with pytest.raises(RemoteError, match=r"^its reply is UNAVAILABLE$"):
        store.get(PATH, seconds=5)
    with pytest.raises(RemoteError, match=r"^its reply is UNAVAILABLE$"):
        store.put(PATH, encode_result(BLOB), seconds=5)
    server.fault = "NOT_FOUND"
    with pytest.raises(RemoteError, match=r"^its reply is NOT_FOUND$"):
        store.put(PATH, encode_result(BLOB), seconds=5)


def test_time_of_all_calls_is_limited_together(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = remote("grpc://localhost:1")
    seconds = iter(range(100))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(seconds)))
    store.put(PATH, encode_result(BLOB), seconds=50)
    store.get(PATH, seconds=50)
    timeouts = [timeout for *_, timeout in server.calls]
    count = len(timeouts) - 2
    assert timeouts == [*(50.0 - number for number in range(1, count + 1)), 49.0, 48.0]
