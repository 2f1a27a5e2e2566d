"""A remote store behind the Remote Execution API: action cache and content-addressable storage.

In: paths of entries and their bytes. Out: action results that any server of the API keeps. The
action of an entry has a command that names the path; its result has one output file, whose bytes
are a blob:

    Action(Command(archsplit cache PATH)) ─> ActionResult(output file "entry") ─> blob

Servers evict blobs and results as for a build, and check nothing else. The command is never
run. Source of the protocol: https://github.com/bazelbuild/remote-apis
"""

from __future__ import annotations

import hashlib
import time
import uuid
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import grpc

from archsplit.cache.local import MAX_ENTRY_BYTES
from archsplit.cache.remote import RemoteError, seal_reply
from archsplit.cache.sealed_blob import OUTPUT_NAME, decode_result, entry_action
from archsplit.formats.reapi_messages import decode_message, encode_message, new_message
from archsplit.system.env import is_loopback

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

REAPI = "/build.bazel.remote.execution.v2"
"""Package of the API's services, with which the names of their methods begin."""
_BLOCK = 1 << 20
"""Bytes of a message; servers and proxies accept at least 4 MB."""
_MOST_MESSAGE = 16 << 20
"""Bytes of a reply; servers put small files into results."""


class GrpcRemote:
    """A store at ``grpc://`` or ``grpcs://``, host, port and instance.

    Args:
        address: without secrets.
        token: bearer token; "" for none.

    Raises:
        RemoteError: the token would be sent without encryption.
    """

    def __init__(self, address: str, *, token: str = "") -> None:
        parts = urlsplit(address)
        tls = parts.scheme == "grpcs"
        if token and not tls and not is_loopback(parts.hostname or ""):
            raise RemoteError("its password would be sent without encryption; write grpcs://")
        self._instance = parts.path.strip("/")
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()
        host = parts.netloc if parts.port else f"{parts.netloc}:443"
        options = [("grpc.max_receive_message_length", _MOST_MESSAGE), ("grpc.enable_retries", 0)]
        # Neither of them connects before the first call.
        self._channel = (
            grpc.secure_channel(host, grpc.ssl_channel_credentials(), options=options)
            if tls
            else grpc.insecure_channel(host, options=options)
        )

    def get(self, path: str, *, seconds: float, most: int = MAX_ENTRY_BYTES) -> bytes | None:
        """Return the stored bytes, or None."""
        until = time.monotonic() + seconds
        try:
            result = self._call(
                "ActionCache/GetActionResult",
                new_message(
                    "GetActionResultRequest",
                    instance_name=self._instance,
                    action_digest=_digest(entry_action(path)[-1]),
                ),
                "ActionResult",
                until,
            )
            files = [file for file in result.output_files if file.path == OUTPUT_NAME]
            if not files:
                return None
            # The result of an entry that came by HTTP contains the bytes.
            found = files[0].contents or self._read(files[0], until, most)
            return seal_reply(found, files[0].digest.hash)
        except grpc.RpcError as error:
            # Neither is there a result whose blob was evicted.
            if error.code() is grpc.StatusCode.NOT_FOUND:
                return None
            raise _short_error(error) from None

    def put(self, path: str, blob: bytes, *, seconds: float) -> None:
        """Store bytes."""
        until = time.monotonic() + seconds
        messages = entry_action(path)
        content = bytes(decode_result(blob)[2] or b"")
        try:
            # The result last: a reader of the result finds its blobs.
            self._upload([*messages, content], until)
            output = new_message("OutputFile", path=OUTPUT_NAME, digest=_digest(content))
            request = new_message(
                "UpdateActionResultRequest",
                instance_name=self._instance,
                action_digest=_digest(messages[-1]),
                action_result=new_message("ActionResult", output_files=[output]),
            )
            self._call("ActionCache/UpdateActionResult", request, "ActionResult", until)
        except grpc.RpcError as error:
            raise _short_error(error) from None

    def _call(self, method: str, request: Any, reply: str, until: float) -> Any:
        call = self._channel.unary_unary(
            f"{REAPI}.{method}",
            request_serializer=encode_message,
            response_deserializer=lambda blob: decode_message(reply, blob),
        )
        return call(request, metadata=self._metadata, timeout=until - time.monotonic())

    def _read(self, file: Any, until: float, most: int) -> bytes:
        size = file.digest.size_bytes
        if size > most:
            raise RemoteError("its reply is too long for an entry")
        call = self._channel.unary_stream(
            "/google.bytestream.ByteStream/Read",
            request_serializer=encode_message,
            response_deserializer=lambda blob: decode_message("ReadResponse", blob).data,
        )
        name = f"{self._prefix()}blobs/{file.digest.hash}/{size}"
        request = new_message("ReadRequest", resource_name=name)
        parts = call(request, metadata=self._metadata, timeout=until - time.monotonic())
        return join_parts(parts, most=size)

    def _upload(self, blobs: list[bytes], until: float) -> None:
        by_hash = {_digest(blob).hash: blob for blob in blobs}
        request = new_message(
            "FindMissingBlobsRequest",
            instance_name=self._instance,
            blob_digests=[_digest(blob) for blob in by_hash.values()],
        )
        method = "ContentAddressableStorage/FindMissingBlobs"
        reply = self._call(method, request, "FindMissingBlobsResponse", until)
        for digest in reply.missing_blob_digests:
            blob = by_hash[digest.hash]
            name = f"{self._prefix()}uploads/{uuid.uuid4()}/blobs/{digest.hash}/{len(blob)}"
            self._channel.stream_unary(
                "/google.bytestream.ByteStream/Write",
                request_serializer=encode_message,
                response_deserializer=bytes,
            )(
                write_requests(name, blob),
                metadata=self._metadata,
                timeout=until - time.monotonic(),
            )

    def _prefix(self) -> str:
        return f"{self._instance}/" if self._instance else ""


def join_parts(parts: Iterable[bytes], *, most: int) -> bytes:
    """Return all parts of a stream that has at most so many bytes.

    Raises:
        RemoteError: the stream has more.
    """
    found = bytearray()
    for part in parts:
        found += part
        if len(found) > most:
            raise RemoteError("it returned wrong bytes")
    return bytes(found)


def _digest(blob: bytes) -> Any:
    return new_message("Digest", hash=hashlib.sha256(blob).hexdigest(), size_bytes=len(blob))


def write_requests(name: str, blob: bytes) -> Iterator[Any]:
    """Yield the requests of a ``Write`` call that uploads a blob.

    Args:
        name: resource name of the upload.
    """
    for at in range(0, max(len(blob), 1), _BLOCK):
        part = blob[at : at + _BLOCK]
        yield new_message(
            "WriteRequest",
            resource_name=name if at == 0 else "",
            write_offset=at,
            finish_write=at + len(part) == len(blob),
            data=part,
        )


def _short_error(error: Any) -> RemoteError:
    # Its own text has several lines, and a proxy may write anything into it.
    return RemoteError(f"its reply is {error.code().name}")
