"""The messages of the Remote Execution API, version 2, as far as archsplit uses them.

The messages of ``reapi.proto`` become classes of the protobuf library when the module is imported,
in a descriptor pool of its own: other packages may have loaded the whole API in the same process.
Fields that the file lacks are kept by the library, and ignored here.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE = "archsplit.reapi"
_TYPES = {"string": 9, "bytes": 12, "int64": 3, "int32": 5, "bool": 8}
_OTHER_MESSAGE = 11
_MESSAGE = re.compile(r"^message (\w+) \{(.*?)\}$", re.DOTALL | re.MULTILINE)
_FIELD = re.compile(r"(repeated )?(\w+) (\w+) = (\d+);")


def _make_classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="reapi.proto", package=_PACKAGE, syntax="proto3")
    text = Path(__file__).with_name("reapi.proto").read_text("ascii")
    for message, fields in _MESSAGE.findall(text):
        row = file.message_type.add(name=message)
        for repeated, kind, name, number in _FIELD.findall(fields):
            field = row.field.add(name=name, number=int(number), label=3 if repeated else 1)
            field.type = _TYPES.get(kind, _OTHER_MESSAGE)
            if field.type == _OTHER_MESSAGE:
                field.type_name = f".{_PACKAGE}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = (pool.FindMessageTypeByName(f"{_PACKAGE}.{row.name}") for row in file.message_type)
    return {each.name: message_factory.GetMessageClass(each) for each in found}


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
