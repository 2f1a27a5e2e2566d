"""A client of the Remote Execution API, version 2: storage, action cache and execution.

All calls are coroutines of one event loop, so that a thousand running actions take one thread. A
call that a server drops is made again; after some time without any reply the server counts as gone.
Source of the protocol: https://github.com/bazelbuild/remote-apis
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import itertools
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc

from archsplit.cache.grpc_remote import REAPI, write_requests
from archsplit.cache.sealed_blob import decompressed_limit
from archsplit.errors import EngineRefusedError, EngineUnavailableError, InputError
from archsplit.formats.reapi_messages import decode_message, encode_message, new_message
from archsplit.formats.zstd import zstd

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from archsplit.remote.endpoint import Endpoint
    from archsplit.remote.farm_executor import Traffic

_OUTAGE_SECONDS = 30.0
"""Seconds without a reply after which a server counts as gone."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
_CALL_SECONDS = 60.0
_KEEPALIVE = (("grpc.keepalive_time_ms", 330_000), ("grpc.http2.max_pings_without_data", 0))
"""Pings of connections with a call: a router may drop a silent one without a word to either side.

By default servers close a connection with more than one ping in 5 minutes, so these are half a
minute slower. By default a client ends its pings after the second one without data. Source:
https://github.com/grpc/grpc/blob/master/doc/keepalive.md
"""
_ATTEMPTS = 6
"""Attempts at a call whose replies are errors."""
_SMALL = 1 << 16
"""Most bytes of a blob that is sent with others in one call."""
_BATCH = 3 << 20
"""Most bytes of such a call; messages of gRPC have 4 MB at most."""
_MOST_REPLY = 64 << 20
"""Bytes of a message of the server, which may put small files into results."""
_SHA256 = 1
_ZSTD = 1
"""The number of Zstandard in the API's list of compressors."""
_LEVEL = 1
_FRAME_BYTES = 1 << 16
"""Most bytes that compression adds to less than a gigabyte of content."""
_DIGESTS_PER_CALL = 10_000
_RETRIED = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.ABORTED,
    # By a server or a proxy: the end of a task of this process is another exception.
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
}
_REFUSED = {
    grpc.StatusCode.UNAUTHENTICATED: "asks for credentials that it accepts",
    grpc.StatusCode.PERMISSION_DENIED: "does not permit the call",
    grpc.StatusCode.UNIMPLEMENTED: "does not know the call",
}
_TOKEN_HINT = "put the token into ARCHSPLIT_REMOTE_TOKEN, or give --remote-cert and --remote-key"


class Digest(NamedTuple):
    """SHA-256 in hexadecimal digits, and number of bytes."""

    hash: str
    size: int

    def message(self) -> Any:
        """Return the digest as a message."""
        return new_message("Digest", hash=self.hash, size_bytes=self.size)


def digest_bytes(blob: bytes) -> Digest:
    """Return the digest of bytes."""
    return Digest(hashlib.sha256(blob).hexdigest(), len(blob))


def read_digest(message: Any) -> Digest:
    """Return the digest in a message."""
    return Digest(message.hash, message.size_bytes)


class ReapiClient:
    """Calls of one server; to be made and used in one event loop.

    Args:
        traffic: counts the bytes of blobs.
    """

    def __init__(self, endpoint: Endpoint, traffic: Traffic) -> None:
        self.endpoint = endpoint
        self._traffic = traffic
        self._channel = _open_channel(endpoint)
        self._metadata = (("authorization", f"Bearer {endpoint.token}"),) if endpoint.token else ()
        self._replied = time.monotonic()
        self._stored: set[Digest] = set()
        self._compresses = False
        self._uploads: dict[Digest, asyncio.Task[None]] = {}
        self._batch_size = _BATCH

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close()

    async def check_capabilities(self) -> None:
        """Ask the server for its capabilities.

        Raises:
            EngineUnavailableError: it doesn't reply.
            EngineRefusedError: it runs no actions, has no SHA-256, or doesn't know the instance.
        """
        request = self._request("GetCapabilitiesRequest")
        try:
            reply = await self._call("Capabilities/GetCapabilities", request, "ServerCapabilities")
        except grpc.aio.AioRpcError as error:
            # Servers have no common code for an instance that they don't know.
            raise EngineRefusedError(
                f"{self.endpoint.address} refuses the connection: {error.details()}",
                hint="check the instance, the last part of grpcs://host:port/instance",
            ) from error
        if not reply.execution_capabilities.exec_enabled:
            raise EngineRefusedError(
                f"{self.endpoint.address} is a cache that runs no actions",
                hint="ask for an instance with execution: grpcs://host:port/instance",
            )
        if most := reply.cache_capabilities.max_batch_total_size_bytes:
            self._batch_size = min(_BATCH, most)
        self._compresses = _ZSTD in reply.cache_capabilities.supported_compressors
        functions = reply.cache_capabilities.digest_functions
        if functions and _SHA256 not in functions:
            raise EngineRefusedError(f"{self.endpoint.address} has no SHA-256 digests")

    async def upload(self, blobs: dict[Digest, bytes | Path]) -> None:
        """Store blobs that the server lacks."""
        new = {digest: blobs[digest] for digest in blobs if digest not in self._stored}
        # Actions that start together have the same files: a whole toolkit is sent once.
        running = {self._uploads[digest] for digest in new if digest in self._uploads}
        pending = {digest: blob for digest, blob in new.items() if digest not in self._uploads}
        if pending:
            upload = asyncio.create_task(self._upload_new(pending))
            self._uploads.update(dict.fromkeys(pending, upload))
            running.add(upload)
        # A canceled action doesn't take along the others, which wait for its uploads.
        for each in running:
            await asyncio.shield(each)

    async def _upload_new(self, blobs: dict[Digest, bytes | Path]) -> None:
        try:
            # Most blobs of an action have a few hundred bytes: one call sends all of them. If there
            # are no larger ones, to ask first which of them the server has would cost more.
            batch: dict[Digest, bytes] = {}
            size = 0
            is_cheap = sum(digest.size for digest in blobs) <= _SMALL
            for digest in blobs if is_cheap else await self.find_missing(list(blobs)):
                blob = blobs[digest]
                if digest.size > _SMALL:
                    await self._write(digest, blob)
                    continue
                # What is small enough is read without a thread.
                batch[digest] = blob if isinstance(blob, bytes) else _read(blob)
                size += digest.size
                if size > self._batch_size - _SMALL:
                    await self._write_batch(batch, blobs)
                    batch, size = {}, 0
            await self._write_batch(batch, blobs)
            self._stored.update(blobs)
        finally:
            for digest in blobs:
                del self._uploads[digest]

    async def _write_batch(
        self, blobs: dict[Digest, bytes], sources: dict[Digest, bytes | Path]
    ) -> None:
        for digest, blob in blobs.items():
            _check_content(digest, blob, sources[digest])
        if not blobs:
            return
        rows = [
            new_message("BatchUpdate", digest=digest.message(), data=blob)
            for digest, blob in blobs.items()
        ]
        request = self._request("BatchUpdateBlobsRequest", requests=rows)
        reply = await self._call(
            "ContentAddressableStorage/BatchUpdateBlobs", request, "BatchUpdateBlobsResponse"
        )
        failed = {read_digest(row.digest) for row in reply.responses if row.status.code}
        self._traffic.sent += sum(digest.size for digest in blobs.keys() - failed)
        # One by one, so that a refusal has the reason for its blob.
        for digest in failed:
            await self._write(digest, blobs[digest])

    def forget_uploads(self) -> None:
        """Ask again for each blob whether the server has it."""
        self._stored.clear()

    async def download(self, digest: Digest) -> bytes:
        """Return a blob.

        Raises:
            EngineRefusedError: the server lacks it, or returns other bytes.
        """
        if digest.size == 0:
            return b""
        blob = await self._read_small(digest) if digest.size <= _SMALL else None
        if blob is None:
            return await self._read_stream(digest)
        self._traffic.received += len(blob)
        return blob

    async def _read_small(self, digest: Digest) -> bytes | None:
        """Return a small blob; None if the server doesn't return it.

        One reply costs half of a stream, which has three events.
        """
        request = self._request("BatchReadBlobsRequest", digests=[digest.message()])
        reply = await self._call(
            "ContentAddressableStorage/BatchReadBlobs", request, "BatchReadBlobsResponse"
        )
        found = (row.data for row in reply.responses if digest_bytes(row.data) == digest)
        return next(found, None)

    async def _read_stream(self, digest: Digest, *, may_compress: bool = True) -> bytes:
        is_compressed = may_compress and self._should_compress(digest)
        name = self._prefix() + _blob_name(digest, is_compressed=is_compressed)

        async def read() -> bytes:
            call = self._channel.unary_stream(
                "/google.bytestream.ByteStream/Read",
                request_serializer=encode_message,
                response_deserializer=lambda blob: decode_message("ReadResponse", blob).data,
            )(new_message("ReadRequest", resource_name=name), metadata=self._metadata)
            blob = bytearray()
            async for part in call:
                blob += part
                # A stream without end must not fill memory; the digest is wrong then.
                if len(blob) > digest.size + _FRAME_BYTES:
                    call.cancel()
                    break
            return bytes(blob)

        found: bytes = await self._retry(read)
        self._traffic.received += len(found)
        if is_compressed and digest.size > decompressed_limit(len(found)):
            # Either an attack that would fill the memory, or a file of zeros: read it uncompressed.
            return await self._read_stream(digest, may_compress=False)
        blob = await asyncio.to_thread(_decompress, found, digest.size) if is_compressed else found
        if digest_bytes(blob) != digest:
            raise EngineRefusedError(f"{self.endpoint.address} returned damaged bytes of {name}")
        return blob

    async def cached_result(self, action: Digest) -> Any | None:
        """Return the result of an action in the action cache; None if there is none."""
        request = self._request(
            "GetActionResultRequest",
            action_digest=action.message(),
            inline_stdout=True,
            inline_stderr=True,
        )
        try:
            return await self._call("ActionCache/GetActionResult", request, "ActionResult")
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.NOT_FOUND:
                raise
            return None

    async def execute(
        self,
        action: Digest,
        *,
        priority: int,
        skip_cache_lookup: bool,
        wanted: list[str],
        on_stage: Callable[[int], None],
    ) -> Any:
        """Run an action and return its ``ExecuteResponse``.

        Args:
            action: the action, whose blobs are stored.
            priority: the lowest number starts first.
            skip_cache_lookup: True to ignore a result in the action cache.
            wanted: names of outputs that the server may put into the result.
            on_stage: called with the number of each stage that the server reports.
        """
        request = self._request(
            "ExecuteRequest",
            action_digest=action.message(),
            skip_cache_lookup=skip_cache_lookup,
            execution_policy=new_message("ExecutionPolicy", priority=priority),
            inline_stdout=True,
            inline_stderr=True,
            inline_output_files=wanted,
        )
        name = ""

        async def run() -> Any:
            nonlocal name
            # After a lost connection the action runs on.
            waits, is_joined = bool(name), False
            call = self._channel.unary_stream(
                f"{REAPI}.Execution/{'WaitExecution' if waits else 'Execute'}",
                request_serializer=encode_message,
                response_deserializer=lambda blob: decode_message("Operation", blob),
            )(
                new_message("WaitExecutionRequest", name=name) if waits else request,
                metadata=self._metadata,
            )
            try:
                async for operation in call:
                    self._replied, is_joined = time.monotonic(), True
                    name = operation.name
                    if operation.done:
                        return operation
                    data = decode_message("ExecuteOperationMetadata", operation.metadata.value)
                    on_stage(data.stage)
            except asyncio.CancelledError:
                call.cancel()
                await self._cancel(name)
                raise
            except grpc.aio.AioRpcError as error:
                # The stream was silent while the action ran: the outage begins now.
                if is_joined:
                    self._replied = time.monotonic()
                # A server that was started again knows no operation of before, and some servers
                # have no such call. All of them join a second Execute with a running action.
                if waits and error.code() is not grpc.StatusCode.UNAVAILABLE:
                    name = ""
                    return None
                raise
            # The stream ended early.
            return None

        operation = await self._retry(run)
        if operation.error.code:
            return new_message("ExecuteResponse", status=operation.error)
        return decode_message("ExecuteResponse", operation.response.value)

    async def _cancel(self, name: str) -> None:
        request = new_message("CancelOperationRequest", name=name)
        call = self._channel.unary_unary(
            "/google.longrunning.Operations/CancelOperation",
            request_serializer=encode_message,
            response_deserializer=bytes,
        )
        try:
            await call(request, metadata=self._metadata, timeout=1.0)
        except grpc.aio.AioRpcError:
            # The server ends the action by itself, or its result is of no use.
            return

    async def find_missing(self, digests: list[Digest]) -> list[Digest]:
        """Return the blobs that the server lacks."""
        missing: list[Digest] = []
        for at in range(0, len(digests), _DIGESTS_PER_CALL):
            part = digests[at : at + _DIGESTS_PER_CALL]
            blobs = [digest.message() for digest in part]
            request = self._request("FindMissingBlobsRequest", blob_digests=blobs)
            reply = await self._call(
                "ContentAddressableStorage/FindMissingBlobs", request, "FindMissingBlobsResponse"
            )
            missing += map(read_digest, reply.missing_blob_digests)
        return missing

    async def _write(self, digest: Digest, content: bytes | Path) -> None:
        whole = content if isinstance(content, bytes) else await asyncio.to_thread(_read, content)
        _check_content(digest, whole, content)
        # Preprocessed text takes a tenth; cubins and small files are not worth it.
        blob = whole
        if self._should_compress(digest):
            blob = min(whole, await asyncio.to_thread(zstd.compress, whole, _LEVEL), key=len)
        name = _blob_name(digest, is_compressed=len(blob) < len(whole))
        name = f"{self._prefix()}uploads/{uuid.uuid4()}/{name}"

        async def write() -> Any:
            return await self._channel.stream_unary(
                "/google.bytestream.ByteStream/Write",
                request_serializer=encode_message,
                response_deserializer=bytes,
            )(write_requests(name, blob), metadata=self._metadata)

        await self._retry(write)
        self._traffic.sent += len(blob)

    async def _call(self, method: str, request: Any, reply: str) -> Any:
        call = self._channel.unary_unary(
            f"{REAPI}.{method}",
            request_serializer=encode_message,
            response_deserializer=lambda blob: decode_message(reply, blob),
        )

        async def run() -> Any:
            return await call(request, metadata=self._metadata, timeout=_CALL_SECONDS)

        return await self._retry(run)

    async def _retry(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Make a call until it has a reply; None counts as none.

        Raises:
            EngineUnavailableError: there was none for some time.
            EngineRefusedError: the reply is a refusal.
            AioRpcError: the reply is another error.
        """
        pause, began = _FIRST_PAUSE, time.monotonic()
        for attempt in itertools.count(1):
            try:
                result = await call()
            except grpc.aio.AioRpcError as error:
                self._check_error(error, since=began, attempt=attempt)
            else:
                self._replied = time.monotonic()
                if result is not None:
                    return result
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        raise AssertionError  # for the type checker: the loop has no end

    def _check_error(self, error: grpc.aio.AioRpcError, *, since: float, attempt: int) -> None:
        if reason := _REFUSED.get(error.code()):
            raise EngineRefusedError(
                f"{self.endpoint.address} {reason}: {error.details()}", hint=_TOKEN_HINT
            ) from error
        if error.code() not in _RETRIED:
            self._replied = time.monotonic()
            raise error
        # Another call's reply shows that the server is there, so this call is tried again.
        is_gone = time.monotonic() - max(since, self._replied) > _OUTAGE_SECONDS
        # A server that replies with the same error again and again has a fault.
        replies = error.code() is not grpc.StatusCode.UNAVAILABLE
        if is_gone or (replies and attempt >= _ATTEMPTS):
            raise EngineUnavailableError(
                f"{self.endpoint.address} has not replied for {_OUTAGE_SECONDS:.0f} s:"
                f" {error.details()}"
                if is_gone
                else f"{self.endpoint.address} failed {attempt} times: {error.details()}",
                hint="check the address and the server; a second build continues at the results"
                " that the server has",
            ) from error

    def _request(self, kind: str, **fields: Any) -> Any:
        return new_message(kind, instance_name=self.endpoint.instance, **fields)

    def _should_compress(self, digest: Digest) -> bool:
        return self._compresses and digest.size > _SMALL

    def _prefix(self) -> str:
        return f"{self.endpoint.instance}/" if self.endpoint.instance else ""


def _blob_name(digest: Digest, *, is_compressed: bool) -> str:
    kind = "compressed-blobs/zstd" if is_compressed else "blobs"
    return f"{kind}/{digest.hash}/{digest.size}"


def _decompress(blob: bytes, size: int) -> bytes:
    """Return the content of a zstd frame; at most one byte more than its expected size."""
    try:
        return zstd.ZstdFile(io.BytesIO(blob)).read(size + 1)
    except (zstd.ZstdError, EOFError):
        # These bytes have the wrong digest, which the caller reports.
        return b""


def _check_content(digest: Digest, blob: bytes, source: bytes | Path) -> None:
    # Otherwise the server reports a digest, and the user doesn't learn which file has changed.
    if digest_bytes(blob) != digest:
        name = source if isinstance(source, Path) else "an input"
        raise InputError(f"{name} has changed during the build", hint="build again")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"can't read {path}: {error.strerror}") from error


def _open_channel(endpoint: Endpoint) -> Any:
    options = [("grpc.max_receive_message_length", _MOST_REPLY), ("grpc.enable_retries", 0)]
    options += _KEEPALIVE
    # Between the attempts of `_retry`; grpc's own pause grows to two minutes.
    options.append(("grpc.max_reconnect_backoff_ms", int(_LONGEST_PAUSE * 1000)))
    if not endpoint.tls:
        return grpc.aio.insecure_channel(endpoint.host, options=options)
    files: Iterable[Path | None] = (
        endpoint.certificates,
        endpoint.client_key,
        endpoint.client_certificate,
    )
    roots, key, chain = (None if path is None else _read(path) for path in files)
    credentials = grpc.ssl_channel_credentials(roots, key, chain)
    return grpc.aio.secure_channel(endpoint.host, credentials, options=options)
