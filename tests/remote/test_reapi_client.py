"""Calls of a server whose replies are errors, which no real server makes to order."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("grpc", reason="needs archsplit[reapi]")

import grpc

from archsplit.errors import EngineRefusedError, EngineUnavailableError
from archsplit.formats.reapi_messages import decode_message, encode_message, new_message
from archsplit.formats.zstd import zstd
from archsplit.remote import reapi_client
from archsplit.remote.endpoint import parse_endpoint
from archsplit.remote.farm_executor import Traffic
from archsplit.remote.reapi_client import ReapiClient, digest_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BLOB = b"a small file\n"
STORAGE = "build.bazel.remote.execution.v2.ContentAddressableStorage"


class Server:
    """A server with one blob; it cancels its first calls, and may leave blobs out of batches."""

    def __init__(self, *, cancels: int = 0, batches: bool = True, content: bytes = BLOB) -> None:
        self.calls: list[str] = []
        self._cancels = cancels
        self._batches = batches
        self._content = content
        self._server = grpc.server(ThreadPoolExecutor(max_workers=1))
        batch = grpc.unary_unary_rpc_method_handler(self.read_batch)
        stream = grpc.unary_stream_rpc_method_handler(self.read)
        handlers = (
            grpc.method_handlers_generic_handler(STORAGE, {"BatchReadBlobs": batch}),
            grpc.method_handlers_generic_handler("google.bytestream.ByteStream", {"Read": stream}),
        )
        self._server.add_generic_rpc_handlers(handlers)
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    def read_batch(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self.calls.append("batch")
        if self._cancels:
            self._cancels -= 1
            context.abort(grpc.StatusCode.CANCELLED, "a proxy was restarted")
        (digest,) = decode_message("BatchReadBlobsRequest", request).digests
        row = new_message("BatchRead", digest=digest, data=self._content if self._batches else b"")
        return encode_message(new_message("BatchReadBlobsResponse", responses=[row]))

    def read(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        del request, context
        self.calls.append("stream")
        yield encode_message(new_message("ReadResponse", data=self._content))

    def download(self, blob: bytes) -> bytes:
        async def run() -> bytes:
            client = ReapiClient(parse_endpoint(f"grpc://127.0.0.1:{self.port}"), Traffic())
            try:
                return await client.download(digest_bytes(blob))
            finally:
                await client.close()

        try:
            return asyncio.run(run())
        finally:
            self._server.stop(None)


def test_a_small_file_takes_one_reply() -> None:
    server = Server()
    assert server.download(BLOB) == BLOB
    assert server.calls == ["batch"]


def test_cancelled_call_is_repeated() -> None:
    server = Server(cancels=2)
    assert server.download(BLOB) == BLOB
    assert server.calls == ["batch"] * 3


def test_file_missing_in_batches_is_streamed() -> None:
    server = Server(batches=False)
    assert server.download(BLOB) == BLOB
    assert server.calls == ["batch", "stream"]


def test_a_large_file_is_read_in_parts() -> None:
    large = bytes(1 << 17)
    server = Server(content=large)
    assert server.download(large) == large
    assert server.calls == ["stream"]


def test_reply_larger_than_any_message_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reapi_client, "_MOST_REPLY", 1 << 16)
    monkeypatch.setattr(reapi_client, "_ATTEMPTS", 1)
    server = Server(content=bytes(1 << 17))
    with pytest.raises(EngineUnavailableError, match="larger than max"):
        server.download(BLOB)


class PackingServer:
    """A server that has blobs as Zstandard frames, as bazel-remote and Buildbarn do; one upload."""

    def __init__(self, *, damages: bool = False) -> None:
        self.names: list[str] = []
        self.blobs: dict[str, bytes] = {}
        self._damages = damages
        self._server = grpc.server(ThreadPoolExecutor(max_workers=2))
        one, many = grpc.unary_unary_rpc_method_handler, grpc.method_handlers_generic_handler
        package = STORAGE.rpartition(".")[0]
        stream = {
            "Read": grpc.unary_stream_rpc_method_handler(self.read),
            "Write": grpc.stream_unary_rpc_method_handler(self.write),
        }
        self._server.add_generic_rpc_handlers(
            (
                many(f"{package}.Capabilities", {"GetCapabilities": one(self.capabilities)}),
                many(STORAGE, {"FindMissingBlobs": one(self.missing)}),
                many("google.bytestream.ByteStream", stream),
            )
        )
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    def capabilities(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        # As buildbox-casd does; others say NOT_FOUND.
        if instance := decode_message("GetCapabilitiesRequest", request).instance_name:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f'Invalid instance name "{instance}"')
        storage = new_message("CacheCapabilities", digest_functions=[1], supported_compressors=[1])
        execution = new_message("ExecutionCapabilities", digest_function=1, exec_enabled=True)
        return encode_message(
            new_message(
                "ServerCapabilities", cache_capabilities=storage, execution_capabilities=execution
            )
        )

    def missing(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        del context
        asked = decode_message("FindMissingBlobsRequest", request).blob_digests
        return encode_message(new_message("FindMissingBlobsResponse", missing_blob_digests=asked))

    def write(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        del context
        parts = [decode_message("WriteRequest", each) for each in requests]
        kind, name = parts[0].resource_name.split("/", 2)[2].rsplit("/", 2)[:2]
        blob = b"".join(part.data for part in parts)
        assert parts[-1].finish_write
        assert [part.write_offset for part in parts[1:]] == [1 << 20] * (len(parts) - 1)
        self.names.append(kind)
        self.blobs[name] = blob
        packed = zstd.decompress(blob) if "zstd" in kind else blob
        assert hashlib.sha256(packed).hexdigest() == name
        return encode_message(new_message("WriteResponse", committed_size=len(blob)))

    def read(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        del context
        kind, name = decode_message("ReadRequest", request).resource_name.rsplit("/", 2)[:2]
        assert kind == "compressed-blobs/zstd"
        frame, unpack = zstd.compress, zstd.decompress
        blob = self.blobs[name]
        # Two frames are one stream; one blob came whole, since a frame of it would be longer.
        whole = unpack(blob) if "zstd" in self.names[0] else blob
        sent = b"damaged" if self._damages else frame(whole[:100]) + frame(whole[100:])
        yield encode_message(new_message("ReadResponse", data=sent))

    def exchange(self, blob: bytes, *, instance: str = "") -> tuple[bytes, int, int]:
        async def run() -> tuple[bytes, int, int]:
            traffic = Traffic()
            endpoint = parse_endpoint(f"grpc://127.0.0.1:{self.port}/{instance}")
            client = ReapiClient(endpoint, traffic)
            try:
                await client.check_capabilities()
                await client.upload({digest_bytes(blob): blob})
                found = await client.download(digest_bytes(blob))
                return found, traffic.sent, traffic.received
            finally:
                await client.close()

        try:
            return asyncio.run(run())
        finally:
            self._server.stop(None)


def test_a_server_with_zstandard_gets_and_sends_less() -> None:
    text = b'# 1 "kernel.cu"\n__global__ void add(float* x);\n' * 40_000
    server = PackingServer()
    found, sent, received = server.exchange(text)
    assert found == text
    assert server.names == ["compressed-blobs/zstd"]
    assert max(sent, received) < len(text) / 100


def test_incompressible_blob_is_sent_raw() -> None:
    noise = random.Random(1).randbytes(1_100_000)
    server = PackingServer()
    found, sent, _ = server.exchange(noise)
    assert (found, sent, server.names) == (noise, len(noise), ["blobs"])


def test_an_unknown_instance_is_refused() -> None:
    with pytest.raises(EngineRefusedError, match='Invalid instance name "none"') as caught:
        PackingServer().exchange(b"", instance="none")
    assert "check the instance" in str(caught.value.hint)


def test_a_damaged_frame_is_refused() -> None:
    with pytest.raises(EngineRefusedError, match="damaged bytes of compressed-blobs/zstd/"):
        PackingServer(damages=True).exchange(b"text" * 100_000)


def test_other_bytes_than_asked_for_are_refused() -> None:
    with pytest.raises(EngineRefusedError, match="damaged bytes"):
        Server(content=b"other bytes").download(BLOB)


class Router:
    """A relay that may forget its first connection: bytes get lost, and no side is told."""

    def __init__(self, port: int) -> None:
        self.forgets = threading.Event()
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                server = socket.create_connection(("127.0.0.1", self._port))
                is_first = not self._sockets
                self._sockets += (client, server)
                for pair in ((client, server), (server, client)):
                    arguments = (*pair, is_first)
                    threading.Thread(target=self._relay, args=arguments, daemon=True).start()

    def _relay(self, source: socket.socket, target: socket.socket, is_first: bool) -> None:
        with contextlib.suppress(OSError):
            while block := source.recv(1 << 16):
                if not (is_first and self.forgets.is_set()):
                    target.sendall(block)

    def close(self) -> None:
        for each in (self._listener, *self._sockets):
            each.close()


class SlowServer:
    """A server whose only action ends when a second call waits for it."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self._is_done = threading.Event()
        self._server = grpc.server(ThreadPoolExecutor(max_workers=2))
        stream = grpc.unary_stream_rpc_method_handler
        methods = {"Execute": stream(self.execute), "WaitExecution": stream(self.wait)}
        name = f"{STORAGE.rpartition('.')[0]}.Execution"
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(name, methods),)
        )
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    def execute(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        del request, context
        self.calls.append("execute")
        yield encode_message(new_message("Operation", name="one"))
        self._is_done.wait(60)

    def wait(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        del context
        self.calls.append(f"wait {decode_message('WaitExecutionRequest', request).name}")
        operation = new_message("Operation", name="one", done=True)
        operation.response.value = encode_message(new_message("ExecuteResponse", message="done"))
        yield encode_message(operation)
        self._is_done.set()

    def run(self, port: int, on_stage: Callable[[int], None]) -> str:
        async def run() -> str:
            client = ReapiClient(parse_endpoint(f"grpc://127.0.0.1:{port}"), Traffic())
            try:
                done = await client.execute(
                    digest_bytes(BLOB),
                    priority=0,
                    skip_cache_lookup=False,
                    wanted=[],
                    on_stage=on_stage,
                )
                return str(done.message)
            finally:
                await client.close()

        try:
            return asyncio.run(run())
        finally:
            self._is_done.set()
            self._server.stop(None)


def test_connection_forgotten_by_a_router_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert dict(reapi_client._KEEPALIVE)["grpc.keepalive_time_ms"] >= 300_000
    quick = (("grpc.keepalive_time_ms", 500), ("grpc.http2.ping_timeout_ms", 500))
    monkeypatch.setattr(reapi_client, "_KEEPALIVE", quick)
    # An action may be silent for longer than a server is waited for.
    monkeypatch.setattr(reapi_client, "_OUTAGE_SECONDS", 0.4)
    server = SlowServer()
    router = Router(server.port)
    try:
        assert server.run(router.port, lambda _: router.forgets.set()) == "done"
    finally:
        router.close()
    assert server.calls == ["execute", "wait one"]
