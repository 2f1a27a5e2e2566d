"""The messages of the Remote Execution API, version 2, as far as archsplit uses them.

A table of fields becomes classes of the protobuf library when the module is imported, in a
descriptor pool of its own: other packages may have loaded the whole API in the same process. Fields
that the table lacks are kept by the library, and ignored here.
Source of names and numbers: https://github.com/bazelbuild/remote-apis
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_REAPI = "build.bazel.remote.execution.v2"
_BYTESTREAM = "google.bytestream"
_RPC = "google.rpc"
_OPERATIONS = "google.longrunning"
_ANY = "google.protobuf"

_TYPES = {"string": 9, "bytes": 12, "int64": 3, "int32": 5, "bool": 8, "enum": 5}
_MESSAGE = 11

# A field: number, type, and "*" for a repeated one. An enum is read as its number, which has the
# same encoding.
_TABLE: dict[str, dict[str, dict[str, str]]] = {
    _ANY: {
        "Any": {"type_url": "1 string", "value": "2 bytes"},
        "Timestamp": {"seconds": "1 int64", "nanos": "2 int32"},
    },
    _RPC: {"Status": {"code": "1 int32", "message": "2 string", "details": "3 *Any"}},
    _OPERATIONS: {
        "Operation": {
            "name": "1 string",
            "metadata": "2 Any",
            "done": "3 bool",
            "error": "4 Status",
            "response": "5 Any",
        },
        "CancelOperationRequest": {"name": "1 string"},
    },
    _BYTESTREAM: {
        "ReadRequest": {"resource_name": "1 string"},
        "ReadResponse": {"data": "10 bytes"},
        "WriteRequest": {
            "resource_name": "1 string",
            "write_offset": "2 int64",
            "finish_write": "3 bool",
            "data": "10 bytes",
        },
        "WriteResponse": {"committed_size": "1 int64"},
    },
    _REAPI: {
        "Digest": {"hash": "1 string", "size_bytes": "2 int64"},
        "FileNode": {"name": "1 string", "digest": "2 Digest", "is_executable": "4 bool"},
        "DirectoryNode": {"name": "1 string", "digest": "2 Digest"},
        "SymlinkNode": {"name": "1 string", "target": "2 string"},
        "Directory": {
            "files": "1 *FileNode",
            "directories": "2 *DirectoryNode",
            "symlinks": "3 *SymlinkNode",
        },
        "Property": {"name": "1 string", "value": "2 string"},
        "Platform": {"properties": "1 *Property"},
        "EnvironmentVariable": {"name": "1 string", "value": "2 string"},
        "Command": {
            "arguments": "1 *string",
            "environment_variables": "2 *EnvironmentVariable",
            # The old and the new field: servers read the one or the other.
            "output_files": "3 *string",
            "platform": "5 Platform",
            "output_paths": "7 *string",
        },
        "Action": {
            "command_digest": "1 Digest",
            "input_root_digest": "2 Digest",
            "platform": "10 Platform",
        },
        "OutputFile": {"path": "1 string", "digest": "2 Digest", "contents": "5 bytes"},
        "ExecutedActionMetadata": {
            "worker": "1 string",
            "input_fetch_start_timestamp": "5 Timestamp",
            "input_fetch_completed_timestamp": "6 Timestamp",
            "execution_start_timestamp": "7 Timestamp",
            "execution_completed_timestamp": "8 Timestamp",
            "output_upload_start_timestamp": "9 Timestamp",
            "output_upload_completed_timestamp": "10 Timestamp",
        },
        "ActionResult": {
            "output_files": "2 *OutputFile",
            "exit_code": "4 int32",
            "stdout_raw": "5 bytes",
            "stdout_digest": "6 Digest",
            "stderr_raw": "7 bytes",
            "stderr_digest": "8 Digest",
            "execution_metadata": "9 ExecutedActionMetadata",
        },
        "GetActionResultRequest": {
            "instance_name": "1 string",
            "action_digest": "2 Digest",
            "inline_stdout": "3 bool",
            "inline_stderr": "4 bool",
        },
        "UpdateActionResultRequest": {
            "instance_name": "1 string",
            "action_digest": "2 Digest",
            "action_result": "3 ActionResult",
        },
        "ExecutionPolicy": {"priority": "1 int32"},
        "ExecuteRequest": {
            "instance_name": "1 string",
            "skip_cache_lookup": "3 bool",
            "action_digest": "6 Digest",
            "execution_policy": "7 ExecutionPolicy",
            "inline_stdout": "10 bool",
            "inline_stderr": "11 bool",
            "inline_output_files": "12 *string",
        },
        "WaitExecutionRequest": {"name": "1 string"},
        "ExecuteOperationMetadata": {"stage": "1 enum", "action_digest": "2 Digest"},
        "ExecuteResponse": {
            "result": "1 ActionResult",
            "cached_result": "2 bool",
            "status": "3 Status",
            "message": "5 string",
        },
        "FindMissingBlobsRequest": {"instance_name": "1 string", "blob_digests": "2 *Digest"},
        "FindMissingBlobsResponse": {"missing_blob_digests": "2 *Digest"},
        # Messages of these three have the names of the request's and the reply's in the API. Names
        # are not part of the encoding.
        "BatchUpdate": {"digest": "1 Digest", "data": "2 bytes"},
        "BatchUpdateBlobsRequest": {"instance_name": "1 string", "requests": "2 *BatchUpdate"},
        "BatchUpdated": {"digest": "1 Digest", "status": "2 Status"},
        "BatchUpdateBlobsResponse": {"responses": "1 *BatchUpdated"},
        "BatchReadBlobsRequest": {"instance_name": "1 string", "digests": "2 *Digest"},
        "BatchRead": {"digest": "1 Digest", "data": "2 bytes", "status": "3 Status"},
        "BatchReadBlobsResponse": {"responses": "1 *BatchRead"},
        "GetCapabilitiesRequest": {"instance_name": "1 string"},
        "CacheCapabilities": {
            "digest_functions": "1 *enum",
            "max_batch_total_size_bytes": "4 int64",
            "supported_compressors": "6 *enum",
        },
        "ExecutionCapabilities": {"digest_function": "1 enum", "exec_enabled": "2 bool"},
        "ServerCapabilities": {
            "cache_capabilities": "1 CacheCapabilities",
            "execution_capabilities": "2 ExecutionCapabilities",
        },
    },
}
_PACKAGE_OF = {message: package for package, table in _TABLE.items() for message in table}


def _make_classes() -> dict[str, Any]:
    pool = descriptor_pool.DescriptorPool()
    for package, table in _TABLE.items():
        file = descriptor_pb2.FileDescriptorProto(
            name=f"archsplit/{package}.proto", package=package, syntax="proto3"
        )
        # The table has each package after those that it uses.
        before = list(_TABLE)[: list(_TABLE).index(package)]
        file.dependency.extend(f"archsplit/{each}.proto" for each in before)
        for message, fields in table.items():
            _add_message(file, message, fields)
        pool.Add(file)
    return {
        message: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{message}"))
        for message, package in _PACKAGE_OF.items()
    }


def _add_message(file: Any, message: str, fields: dict[str, str]) -> None:
    row = file.message_type.add(name=message)
    for name, text in fields.items():
        number, kind = text.split()
        field = row.field.add(name=name, number=int(number), label=3 if kind[0] == "*" else 1)
        kind = kind.lstrip("*")
        field.type = _TYPES.get(kind, _MESSAGE)
        if field.type == _MESSAGE:
            field.type_name = f".{_PACKAGE_OF[kind]}.{kind}"


_CLASSES = _make_classes()


def new_message(name: str, /, **fields: object) -> Any:
    """Return a new message with its fields."""
    return _CLASSES[name](**fields)


def encode_message(message: Any) -> bytes:
    """Return the canonical bytes of a message, of which digests are made."""
    return bytes(message.SerializeToString(deterministic=True))


def decode_message(name: str, blob: bytes) -> Any:
    """Return the message in the bytes."""
    return _CLASSES[name].FromString(blob)
