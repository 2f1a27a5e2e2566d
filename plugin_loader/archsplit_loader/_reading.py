"""Readers of ``core.json`` and of the loader's ELF header."""

from __future__ import annotations

import json
import os

from ._core import Core
from ._errors import PluginError
from ._folders import FOLDER
from ._identity import is_replaced

CORE_SCHEMA = 1

_TEXT_FIELDS = 7
"""Fields of a core that are texts."""
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
    # The loader compares plugins with the table; these fields are for commands and reports.
    try:
        if content["schema"] != CORE_SCHEMA:
            raise PluginError(f"{path} has schema {content['schema']}, expected {CORE_SCHEMA}")
        core = Core(**{name: content[name] for name in Core._fields if content.get(name)})
        # A text that is another value would be a traceback later.
        "".join(map(core.__getattribute__, core._fields[:_TEXT_FIELDS]))
        "".join((*core.targets, *core.targets.values()))
    except (AttributeError, KeyError, TypeError) as error:
        raise PluginError(f"{path} is damaged ({error}); install the core again") from error
    return core


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
        raise OSError(f"{path} is not a library")
    table, count = int.from_bytes(head[32:40], "little"), int.from_bytes(head[56:58], "little")
    for at in range(table, table + count * _SEGMENT, _SEGMENT):
        place = int.from_bytes(head[at + 8 : at + 16], "little")
        if place + int.from_bytes(head[at + 32 : at + 40], "little") > size:
            raise OSError(f"{path} is truncated: it has {size} bytes")
