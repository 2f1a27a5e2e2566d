# ruff: noqa: INP001 - a script
"""A server of the Remote Execution API that runs nothing, for a thousand actions at a time.

    python bench/farm_stub.py SECONDS FILE

Each action takes that many seconds and writes one file of the same bytes; FILE gets the port. No
real server runs a thousand programs on one machine. The client's cost depends on the number of
messages, not on what is in them: as real servers, this one reports each stage of an action, and
puts no outputs into results.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from archsplit.formats.reapi_messages import decode_message, encode_message, new_message
from archsplit.remote.reapi_client import digest_bytes
from archsplit.system.fs import write_file

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

_REAPI = "build.bazel.remote.execution.v2"
_CONTENT = b"a result\n"
_STAGES = (1, 2, 3)


class FarmStub:
    """Handlers of the calls that a client makes."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._blobs: dict[str, bytes] = {}

    def handlers(self) -> list[Any]:
        """Return the handlers of all services."""
        storage = {
            "FindMissingBlobs": _unary(self.find_missing, "FindMissingBlobsRequest"),
            "BatchUpdateBlobs": _unary(self.update, "BatchUpdateBlobsRequest"),
            "BatchReadBlobs": _unary(self.read_batch, "BatchReadBlobsRequest"),
        }
        cache = {"GetActionResult": _unary(self.find_result, "GetActionResultRequest")}
        capabilities = {"GetCapabilities": _unary(self.capabilities, "GetCapabilitiesRequest")}
        execution = {
            "Execute": grpc.unary_stream_rpc_method_handler(
                self.execute,
                request_deserializer=lambda blob: decode_message("ExecuteRequest", blob),
                response_serializer=encode_message,
            )
        }
        streams = {
            "Read": grpc.unary_stream_rpc_method_handler(
                self.read, response_serializer=encode_message
            )
        }
        return [
            grpc.method_handlers_generic_handler(f"{_REAPI}.ContentAddressableStorage", storage),
            grpc.method_handlers_generic_handler(f"{_REAPI}.ActionCache", cache),
            grpc.method_handlers_generic_handler(f"{_REAPI}.Capabilities", capabilities),
            grpc.method_handlers_generic_handler(f"{_REAPI}.Execution", execution),
            grpc.method_handlers_generic_handler("google.bytestream.ByteStream", streams),
        ]

    async def capabilities(self, request: Any, context: Any) -> Any:
        """Return that actions are run."""
        del request, context
        runs = new_message("ExecutionCapabilities", exec_enabled=True)
        return new_message("ServerCapabilities", execution_capabilities=runs)

    async def find_missing(self, request: Any, context: Any) -> Any:
        """Return that nothing is missing."""
        del request, context
        return new_message("FindMissingBlobsResponse")

    async def find_result(self, request: Any, context: Any) -> None:
        """Return no result."""
        del request
        await context.abort(grpc.StatusCode.NOT_FOUND)

    async def update(self, request: Any, context: Any) -> Any:
        """Store blobs."""
        del context
        for row in request.requests:
            self._blobs[row.digest.hash] = row.data
        rows = [new_message("BatchUpdated", digest=row.digest) for row in request.requests]
        return new_message("BatchUpdateBlobsResponse", responses=rows)

    async def read_batch(self, request: Any, context: Any) -> Any:
        """Return the content of all results, once for each digest."""
        del context
        rows = [
            new_message("BatchRead", digest=digest, data=_CONTENT) for digest in request.digests
        ]
        return new_message("BatchReadBlobsResponse", responses=rows)

    async def read(self, request: bytes, context: Any) -> AsyncIterator[Any]:
        """Yield the content of all results."""
        del request, context
        yield new_message("ReadResponse", data=_CONTENT)

    async def execute(self, request: Any, context: Any) -> AsyncIterator[Any]:
        """Report the stages of an action, and its result after some seconds."""
        del context
        name = request.action_digest.hash
        for stage in _STAGES:
            data = new_message("ExecuteOperationMetadata", stage=stage)
            packed = new_message("Any", value=encode_message(data))
            yield new_message("Operation", name=name, metadata=packed)
        await asyncio.sleep(self._seconds)
        action = decode_message("Action", self._blobs[name])
        command = decode_message("Command", self._blobs[action.command_digest.hash])
        digest = digest_bytes(_CONTENT).message()
        files = [new_message("OutputFile", path=p, digest=digest) for p in command.output_paths]
        reply = new_message(
            "ExecuteResponse", result=new_message("ActionResult", output_files=files)
        )
        packed = new_message("Any", value=encode_message(reply))
        yield new_message("Operation", name=name, done=True, response=packed)


def _unary(handler: Callable[[Any, Any], Any], request: str) -> Any:
    return grpc.unary_unary_rpc_method_handler(
        handler,
        request_deserializer=lambda blob: decode_message(request, blob),
        response_serializer=encode_message,
    )


async def serve(seconds: float, place: Path) -> None:
    """Serve until the process is killed."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(FarmStub(seconds).handlers())
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    write_file(place, str(port))
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(serve(float(sys.argv[1]), Path(sys.argv[2])))
