"""The reader of ``core.json``: strict, because a damaged core must not be opened."""

from __future__ import annotations

import json
import os
import re

from ._core import Core
from ._errors import PluginError
from ._identity import is_replaced
from ._places import FOLDER

CORE_SCHEMA = 1

_ELF_HEADER, _SEGMENT = 64, 56


def read_core(folder: str = FOLDER) -> Core:
    """Read ``core.json`` in a folder.

    Raises:
        PluginError: it is missing, or is not what archsplit writes.
    """
    path = os.path.join(folder, "core.json")  # noqa: PTH118 (pathlib is slow)
    if folder == FOLDER and is_replaced():
        raise PluginError(f"{path} was replaced after it was imported; start the process again")
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123 (pathlib is slow)
            content = json.load(file)
    # ld.so opens no library inside an archive: only an unpacked installation works.
    except NotADirectoryError as error:
        raise PluginError(
            f"can't read {path}: a core can't run from a zip file; install it with pip"
        ) from error
    except OSError as error:
        raise PluginError(f"can't read {path}: {error.strerror}; install the core again") from error
    except ValueError as error:
        raise PluginError(f"{path} is damaged ({error}); install the core again") from error
    fault = _fault(content)
    # One fault is enough: a new installation replaces the whole file.
    if fault is not None:
        raise PluginError(f"{path} {fault}; install the core again")
    # Unknown fields are of later releases, and are ignored.
    return Core(**{name: content[name] for name in Core._fields if content.get(name) is not None})


def check_library(path: str) -> None:
    """Refuse a library that ends before its segments do: opening it would end the process.

    Raises:
        OSError: it does, or can't be read.
    """
    with open(path, "rb") as file:  # noqa: PTH123 (pathlib is slow)
        head = file.read(4096)
        size = file.seek(0, os.SEEK_END)
    # Only what ld.so would crash on is checked here; it reports other faults itself.
    if head[:4] != b"\x7fELF" or len(head) < _ELF_HEADER:
        raise OSError(f"{path} is no library")
    table, count = int.from_bytes(head[32:40], "little"), int.from_bytes(head[56:58], "little")
    for at in range(table, table + count * _SEGMENT, _SEGMENT):
        place = int.from_bytes(head[at + 8 : at + 16], "little")
        if place + int.from_bytes(head[at + 32 : at + 40], "little") > size:
            raise OSError(f"{path} is truncated: it has {size} bytes")


def _fault(content: object) -> str | None:
    """Return the first fault of the content, or None."""
    if not isinstance(content, dict):
        return "is damaged (it is no JSON object)"
    # The schema comes first: the fields of another one may have other meanings.
    if content.get("schema", CORE_SCHEMA) != CORE_SCHEMA:
        return f"has schema {content['schema']!r:.80}, expected {CORE_SCHEMA}"
    optional = () if content.get("packs") is None else _OF_SPLITS
    names = [name for name in Core._fields if name not in Core._field_defaults]
    # Cores of older releases have no digests.
    names += ["digests"] if content.get("digests") is not None else []
    for name in ("schema", *names, *optional):
        if name not in content:
            return f"has no {name!r}"
    for name in (*names, *optional):
        # A split core has packs in place of targets.
        if name == "targets" and optional:
            continue
        fits, expected = _FORMS.get(name, (_is_text, "a text"))
        if not fits(content[name]):
            return f"has {content[name]!r:.80} as {name!r}, expected {expected}"
    return None


def _is_text(value: object) -> bool:
    """Also without NUL, which would end it in C, and without what UTF-8 can't encode."""
    return isinstance(value, str) and value != "" and value.isprintable()


def _is_hash(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None


def _is_target(name: str) -> bool:
    return re.fullmatch("(sm|compute)_[1-9][0-9]{1,3}[af]?", name) is not None


def _has_targets(value: object) -> bool:
    return (
        isinstance(value, dict)
        and len(value) > 0
        and all(map(_is_target, value))
        and all(map(_is_text, value.values()))
    )


def _has_packs(value: object) -> bool:
    return (
        isinstance(value, dict)
        and len(value) > 0
        and all(
            isinstance(each, dict) and _is_text(each.get("distribution")) for each in value.values()
        )
    )


def _has_needs(value: object) -> bool:
    return isinstance(value, dict) and all(
        isinstance(each, list) and all(map(_is_text, each)) for each in value.values()
    )


def _has_digests(value: object) -> bool:
    return isinstance(value, dict) and all(map(_is_hash, value.values()))


_OF_SPLITS = ("packs", "needs")
_HASH = (_is_hash, "64 hexadecimal digits")
_FORMS = {
    "build_id": _HASH,
    "interface_hash": _HASH,
    "targets": (_has_targets, "at least one target, each with a distribution"),
    "packs": (_has_packs, "at least one pack, each with a distribution"),
    "digests": (_has_digests, "64 hexadecimal digits for each target"),
    "needs": (_has_needs, "the names of packs for each capability"),
}
"""Checks of the fields that are more than a text."""
